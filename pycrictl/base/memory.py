"""What becomes of freed memory: it is reused, or returned to the system."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, TimerHandle

CHECK_S: Final = 0.1
"""How soon after a call the memory is checked."""

GROWTH_BYTES: Final = 16 * 1024 * 1024
"""How much the memory may grow after the start, or after the last collection."""

_REUSED_BYTES: Final = 4 * 1024 * 1024
_PAGES: Final = Path("/proc/self/statm")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def reuse_blocks() -> None:
    """Let the C library reuse freed blocks of up to 4 MiB, the pieces of streams and copies.

    Once a block of this size is freed, glibc no longer maps smaller ones anew (mallopt(3),
    M_MMAP_THRESHOLD). This saves three quarters of a sender's CPU time.
    """
    bytes(_REUSED_BYTES)


def trim_memory() -> None:
    """Return free memory to the system, if the C library can (malloc_trim(3))."""
    import ctypes  # noqa: PLC0415 (exec and cp do not need it)

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class Reclaimer:
    """Collects reference cycles when the memory of the process has grown.

    A call that gRPC's server refuses remains in a reference cycle, together with its connection and
    all data received on it: megabytes of headers. Python's collector counts objects, not their
    bytes, and would run only after a hundred such calls.
    """

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: TimerHandle | None = None
        gc.freeze()  # collections take a thousandth of the time without the objects that exist now
        self._most_bytes = _resident_bytes() + GROWTH_BYTES

    def call_began(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(CHECK_S, self._check)

    def _check(self) -> None:
        self._timer = None
        if _resident_bytes() > self._most_bytes:
            gc.collect()
            trim_memory()
            self._most_bytes = _resident_bytes() + GROWTH_BYTES


def _resident_bytes() -> int:
    return int(_PAGES.read_text().split()[1]) * _PAGE_BYTES
