"""Files that are written once and read once, without filling the memory with them."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

_WINDOW_BYTES: Final = 8 * 1024 * 1024
_KEPT_WINDOWS: Final = 4


def forget_behind(fd: int, begin: int, end: int) -> None:
    """Let the system write what a file has had for longer to the disk, and forget it.

    Call it after each piece that was written or read. The memory of what is on the disk is used
    again for what comes next: memory that has not been used lately costs more than the copying,
    above all in a virtual machine, and what a container's limit counts does not grow.

    Args:
        fd: the file.
        begin, end: of the piece.
    """
    edge = end - end % _WINDOW_BYTES
    if edge > begin:
        kept_bytes = _KEPT_WINDOWS * _WINDOW_BYTES
        with suppress(OSError):  # not a file of a disk
            os.posix_fadvise(fd, max(edge - kept_bytes, 0), kept_bytes, os.POSIX_FADV_DONTNEED)
