"""An archive from any offset on, in pieces that are valid until the next one is asked for."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import closing

from pycrictl.copy.archive.pack import FilePart, pack_unread
from pycrictl.copy.archive.pieces import PIECE_BYTES
from pycrictl.copy.rules.policy import Skipped
from pycrictl.copy.tree.content import shrunk
from pycrictl.copy.tree.places import Source


def tree_pieces(source: Source, offset: int) -> Generator[memoryview, None, None]:
    """Yield the archive of a tree from an offset on; what is before that is not read."""
    buffer = memoryview(bytearray(PIECE_BYTES))
    with closing(pack_unread(source, on_skip=_ignore_skip, on_entry=_ignore_entry)) as parts:
        for part in parts:
            size_bytes = part.size_bytes if isinstance(part, FilePart) else len(part)
            begin = min(offset, size_bytes)
            offset -= begin
            if isinstance(part, FilePart):
                yield from _read_pieces(part.fd, part.offset + begin, size_bytes - begin, buffer)
                continue
            for start in range(begin, size_bytes, PIECE_BYTES):
                yield part[start : start + PIECE_BYTES]


def file_pieces(fd: int, offset: int, end: int) -> Generator[memoryview, None, None]:
    """Yield what a file has between two offsets."""
    yield from _read_pieces(fd, offset, end - offset, memoryview(bytearray(PIECE_BYTES)))


def _read_pieces(
    fd: int, offset: int, size_bytes: int, buffer: memoryview
) -> Generator[memoryview, None, None]:
    end = offset + size_bytes
    while offset < end:
        count = os.preadv(fd, [buffer[: end - offset]], offset)
        if not count:
            raise shrunk()
        yield buffer[:count]
        offset += count


def _ignore_skip(_: Skipped) -> None:
    """Do nothing: it was reported when the archive was measured."""


def _ignore_entry(_: object) -> None:
    """Count nothing."""
