"""Work on the bytes of a copy that goes on beside the rest of it.

What takes long there, checksums and writing, leaves Python's lock alone, so a thread of its own
lets two processors share it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Generic, TypeVar

T = TypeVar("T")

WORTH_BYTES: Final = 128 * 1024
"""Below that, handing bytes to the thread takes longer than it saves."""


class Beside(Generic[T]):
    """Does one thing at a time, in a thread that there is only once it is needed."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._pending: Future[T] | None = None

    def start(self, work: Callable[[], T]) -> None:
        """Begin something, which must have been waited for before anything else begins."""
        assert self._pending is None
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1)
        self._pending = self._thread.submit(work)

    def wait(self) -> T | None:
        """The result of what was begun, once; None if nothing was. Raises what that has raised."""
        pending, self._pending = self._pending, None
        return None if pending is None else pending.result()

    def close(self) -> None:
        """End the thread, when it has done what it was told; an error in that is not told."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
