"""Memory of a service that is free again, or would be: how it is given back."""

from __future__ import annotations

import ctypes
import gc
import os
from asyncio import AbstractEventLoop, TimerHandle
from pathlib import Path
from typing import Final

LOOK_S: Final = 0.1
"""How soon after a call the memory is looked at."""

GROWTH_BYTES: Final = 16 * 1024 * 1024
"""By how much it may have grown since the start, or since it was last cleared."""

_PAGES: Final = Path("/proc/self/statm")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def trim_memory() -> None:
    """Give free memory back to the system, where the C library can (malloc_trim(3))."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class Reclaimer:
    """Collects reference cycles when the memory of the process has grown.

    gRPC's server leaves each call that it refuses in a cycle, and with the call its connection and
    all that came on it: megabytes of headers. Python's collector counts objects, not their bytes,
    and would come after a hundred such calls.
    """

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: TimerHandle | None = None
        gc.freeze()  # a collection takes a thousandth of the time without all that is there now
        self._most_bytes = _resident_bytes() + GROWTH_BYTES

    def call_began(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._timer = None
        if _resident_bytes() > self._most_bytes:
            gc.collect()
            trim_memory()
            self._most_bytes = _resident_bytes() + GROWTH_BYTES


def _resident_bytes() -> int:
    return int(_PAGES.read_text().split()[1]) * _PAGE_BYTES
