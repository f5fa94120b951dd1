"""A tree as a tar archive."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from pycrictl.copy.tree.content import HOLE_BYTES, OnBytes, segments, shrunk
from pycrictl.copy.tree.places import Source
from pycrictl.copy.tree.rootfs import to_error
from pycrictl.copy.tree.walk import OnSkip, walk
from pycrictl.streams.wire.tar.header import Entry
from pycrictl.streams.wire.tar.writer import END_OF_ARCHIVE, encode_entry, padding_after

PIECE_BYTES: Final = 1024 * 1024
"""The size of every piece but the last."""

_ZEROS: Final = memoryview(bytes(PIECE_BYTES))

OnEntry = Callable[[Entry], None]


@dataclass(frozen=True)
class FilePart:
    """Content that is still in its file, readable until the next part is requested."""

    fd: int
    offset: int
    size_bytes: int
    shown: bytes

    def __len__(self) -> int:
        return self.size_bytes


Part = bytes | memoryview | FilePart


def pack(
    source: Source,
    *,
    on_skip: OnSkip,
    on_entry: OnEntry | None = None,
    on_bytes: OnBytes | None = None,
    offset: int = 0,
) -> Generator[memoryview, None, None]:
    """Yield a tree as an archive, in large pieces, each valid until the next is requested.

    Args:
        on_entry: called with each entry, before its header is yielded.
        on_bytes: called with the number of content bytes packed since the last call.
        offset: where to begin; file content before it is not read.
    """
    piece, used = memoryview(bytearray(PIECE_BYTES)), 0
    with closing(_unread(source, on_skip, on_entry)) as parts:
        for part in parts:
            size_bytes = len(part)
            position = min(offset, size_bytes)
            offset -= position
            while position < size_bytes:
                done = _read_part(part, position, piece[used : used + size_bytes - position])
                position += done
                used += done
                if on_bytes is not None and not isinstance(part, bytes):
                    on_bytes(done)
                if used == PIECE_BYTES:
                    yield piece
                    used = 0
    if used:
        yield piece[:used]


def _read_part(part: Part, position: int, into: memoryview) -> int:
    """Read some of a part from a position; return the number of bytes."""
    if not isinstance(part, FilePart):
        into[:] = part[position : position + len(into)]
        return len(into)
    try:
        done = os.preadv(part.fd, [into], part.offset + position)
    except OSError as exc:
        raise to_error(exc, "copy", part.shown) from exc
    if not done:
        raise shrunk(part.shown)
    return done


def file_pieces(fd: int, offset: int, end: int) -> Generator[memoryview, None, None]:
    """Yield a file's bytes between two offsets, each piece valid until the next is requested."""
    buffer = memoryview(bytearray(PIECE_BYTES))
    while offset < end:
        count = os.preadv(fd, [buffer[: end - offset]], offset)
        if not count:
            raise shrunk()
        yield buffer[:count]
        offset += count


def _unread(
    source: Source, on_skip: OnSkip, on_entry: OnEntry | None
) -> Generator[Part, None, None]:
    """Yield the bytes of ``pack`` in parts: headers as ``bytes``, content in its file or zeros."""
    shown = source.text.path
    padding = b""
    try:
        for entry, fd in walk(source, on_skip=on_skip):
            shown = entry.name
            if on_entry is not None:
                on_entry(entry)
            yield padding + encode_entry(entry)
            if entry.size_bytes:
                yield from _content(fd, entry.size_bytes, shown)
            padding = padding_after(entry.size_bytes)
        yield padding + END_OF_ARCHIVE
    except OSError as exc:
        raise to_error(exc, "copy", shown) from exc


def _content(fd: int, size_bytes: int, shown: bytes) -> Iterator[memoryview | FilePart]:
    if size_bytes < HOLE_BYTES:
        yield FilePart(fd, 0, size_bytes, shown)
        return
    position = 0
    for start, end in [*segments(fd, size_bytes), (size_bytes, size_bytes)]:
        for begin in range(position, start, PIECE_BYTES):
            yield _ZEROS[: start - begin]
        if start < end:
            yield FilePart(fd, start, end - start, shown)
        position = end
    if os.fstat(fd).st_size < size_bytes:
        raise shrunk(shown)
