"""The checksum of a copy stream, CRC-32 (IEEE 802.3).

With isal, which not all machines have, it takes a third of the time. It finds damage, not malice:
anyone can make bytes with a given checksum.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from pycrictl.copy.tree.content import shrunk
from pycrictl.errors import CopyError

_combine: Callable[[int, int, int], int] | None
try:
    from isal.isal_zlib import crc32
    from isal.isal_zlib import crc32_combine as _combine
except ImportError:
    from zlib import crc32

    _combine = None

__all__ = ["crc32", "crc32_of_file", "joined", "wrong_checksum"]

_READ_BYTES: Final = 512 * 1024
"""What is read at once: of less, two threads wait for each other too often."""

_HALVED_BYTES: Final = 4 * 1024 * 1024
"""Of less, a second thread takes longer to begin than it saves."""


def crc32_of_file(fd: int, offset: int, size_bytes: int, value: int = 0) -> int:
    """Take in a part of a file; two processors share the work on a large one."""
    if _combine is None or size_bytes < _HALVED_BYTES:
        return _crc32_of_file(fd, offset, size_bytes, value)
    half = size_bytes // 2
    rest = size_bytes - half
    with ThreadPoolExecutor(1) as thread:  # which is over before the caller closes the file
        second = thread.submit(_crc32_of_file, fd, offset + half, rest, 0)
        first = _crc32_of_file(fd, offset, half, value)
    return _combine(first, second.result(), rest)


def joined(first: int, second: int, second_part: bytes | memoryview) -> int:
    """Return the checksum of two parts that follow each other, from that of each.

    Args:
        second_part: itself, which is only read where the two cannot be combined.
    """
    if _combine is None:
        return crc32(second_part, first)
    return _combine(first, second, len(second_part))


def wrong_checksum() -> CopyError:
    return CopyError(
        "what arrived has another checksum than announced",
        hint="it changed while it was copied, or was damaged on its way; try again",
    )


def _crc32_of_file(fd: int, offset: int, size_bytes: int, value: int) -> int:
    buffer = memoryview(bytearray(min(size_bytes, _READ_BYTES)))
    end = offset + size_bytes
    while offset < end:
        count = os.preadv(fd, [buffer[: end - offset]], offset)
        if not count:
            raise shrunk()
        value = crc32(buffer[:count], value)
        offset += count
    return value
