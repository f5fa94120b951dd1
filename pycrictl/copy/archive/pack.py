"""A tree as a tar archive."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import Final, NamedTuple

from pycrictl.copy.tree.content import CHUNK_BYTES, HOLE_BYTES, OnBytes, segments, shrunk
from pycrictl.copy.tree.places import Source
from pycrictl.copy.tree.rootfs import to_error
from pycrictl.copy.tree.walk import OnSkip, walk
from pycrictl.wire.tar.header import Entry
from pycrictl.wire.tar.writer import END_OF_ARCHIVE, encode_entry, padding_after

_BUFFER_BYTES: Final = 16 * CHUNK_BYTES
_ZEROS: Final = memoryview(bytes(_BUFFER_BYTES))

PIECE_BYTES: Final = 1024 * 1024
"""The most that is in a piece."""

_MIN_PART_BYTES: Final = 256 * 1024
"""Less content than this is not worth leaving in its file."""

_MAX_PART_BYTES: Final = 32 * 1024 * 1024
"""As much as takes some milliseconds to read."""

OnEntry = Callable[[Entry], None]


class FilePart(NamedTuple):
    """Content that is still in its file, readable until the next piece is asked for."""

    fd: int
    offset: int
    size_bytes: int


def pack(
    source: Source,
    *,
    on_skip: OnSkip,
    on_entry: OnEntry | None = None,
    on_bytes: OnBytes | None = None,
    offset: int = 0,
) -> Generator[memoryview, None, None]:
    """Yield a tree as an archive, in large pieces, each valid until the next is asked for.

    Args:
        on_entry: called with each entry, before any of its content is read.
        on_bytes: called with how much more content has been packed.
        offset: where to begin; what is before that is not read, as far as that can be.
    """
    on_bytes = on_bytes or _ignore
    buffer = memoryview(bytearray(PIECE_BYTES))
    with closing(
        pack_unread(source, on_skip=on_skip, on_entry=on_entry, on_bytes=on_bytes)
    ) as parts:
        for part in parts:
            size_bytes = part.size_bytes if isinstance(part, FilePart) else len(part)
            begin = min(offset, size_bytes)
            offset -= begin
            if isinstance(part, FilePart):
                start, end = part.offset + begin, part.offset + size_bytes
                for piece in file_pieces(part.fd, start, end, buffer):
                    on_bytes(len(piece))
                    yield piece
                continue
            for start in range(begin, size_bytes, PIECE_BYTES):
                yield part[start : start + PIECE_BYTES]


def file_pieces(
    fd: int, offset: int, end: int, buffer: memoryview | None = None
) -> Generator[memoryview, None, None]:
    """Yield what a file has between two offsets, each piece valid until the next is asked for."""
    buffer = buffer or memoryview(bytearray(PIECE_BYTES))
    while offset < end:
        count = os.preadv(fd, [buffer[: end - offset]], offset)
        if not count:
            raise shrunk()
        yield buffer[:count]
        offset += count


def pack_unread(
    source: Source,
    *,
    on_skip: OnSkip,
    on_entry: OnEntry | None = None,
    on_bytes: OnBytes | None = None,
) -> Generator[memoryview | FilePart, None, None]:
    """Yield the same bytes as ``pack``, but leave most content of large files in them."""
    packer = _Packer(on_bytes or _ignore)
    shown = source.text.path
    try:
        for entry, fd in walk(source, on_skip=on_skip):
            shown = entry.name
            if on_entry is not None:
                on_entry(entry)
            head, size_bytes = encode_entry(entry), entry.size_bytes
            padding = padding_after(size_bytes)
            is_small = size_bytes < HOLE_BYTES
            needed = len(head) + len(padding) + (size_bytes if is_small else 0)
            if packer.free_bytes < needed:
                yield packer.rest()
            packer.add(head)
            if is_small:
                packer.read(fd, size_bytes, shown)
            else:
                yield from packer.content(fd, size_bytes, shown)
                if packer.free_bytes < len(padding):
                    yield packer.rest()
            packer.add(padding)
        if packer.free_bytes < len(END_OF_ARCHIVE):
            yield packer.rest()
        packer.add(END_OF_ARCHIVE)
        yield packer.rest()
    except OSError as exc:
        raise to_error(exc, "copy", shown) from exc


class _Packer:
    """Fills a buffer; content of small files is read right into it.

    Attributes:
        free_bytes: how much fits into it; an empty one holds all headers of an entry and a small
            file.
    """

    def __init__(self, on_bytes: OnBytes) -> None:
        self.free_bytes = _BUFFER_BYTES
        self._view = memoryview(bytearray(_BUFFER_BYTES))
        self._on_bytes = on_bytes

    def add(self, data: bytes) -> None:
        used = _BUFFER_BYTES - self.free_bytes
        self._view[used : used + len(data)] = data
        self.free_bytes -= len(data)

    def read(self, fd: int, size_bytes: int, shown: bytes) -> None:
        """Take in a whole small file, which fits."""
        while size_bytes:
            used = _BUFFER_BYTES - self.free_bytes
            done = os.readv(fd, [self._view[used : used + size_bytes]])
            if not done:
                raise shrunk(shown)
            self.free_bytes -= done
            size_bytes -= done
            self._on_bytes(done)

    def content(self, fd: int, size_bytes: int, shown: bytes) -> Iterator[memoryview | FilePart]:
        position = 0
        for start, end in [*segments(fd, size_bytes), (size_bytes, size_bytes)]:
            while position < end:
                if position >= start and end - position >= _MIN_PART_BYTES:
                    if self.free_bytes < _BUFFER_BYTES:
                        yield self.rest()
                    part = FilePart(fd, position, min(end - position, _MAX_PART_BYTES))
                    yield part
                    position += part.size_bytes
                    continue
                if not self.free_bytes:
                    yield self.rest()
                limit = start if position < start else end
                used = _BUFFER_BYTES - self.free_bytes
                free = self._view[used : used + limit - position]
                if position < start:
                    free[:] = _ZEROS[: len(free)]
                    done = len(free)
                else:
                    done = os.preadv(fd, [free], position)
                    if not done:
                        raise shrunk(shown)
                position += done
                self.free_bytes -= done
                self._on_bytes(done)
        if os.fstat(fd).st_size < size_bytes:
            raise shrunk(shown)

    def rest(self) -> memoryview:
        full = self._view[: _BUFFER_BYTES - self.free_bytes]
        self.free_bytes = _BUFFER_BYTES
        return full


def _ignore(_: int) -> None:
    """Do nothing: no count is wanted."""
