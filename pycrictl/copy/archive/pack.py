"""Packs trees as tar archives; counts and checks archives that are made or pass through.

The checksum is CRC-32 (IEEE 802.3). With isal, which not all machines have, it takes a third of the
time. It detects damage, not malice: anyone can make bytes with a given checksum.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Final, NamedTuple

from pycrictl.base.errors import CopyError
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import EntryPolicy, Rules
from pycrictl.copy.tree.content import HOLE_BYTES, OnBytes, segments, shrunk
from pycrictl.copy.tree.places import Source
from pycrictl.copy.tree.rootfs import to_error
from pycrictl.copy.tree.walk import OnSkip, Watch, walk
from pycrictl.streams.wire.tar.header import END_OF_ARCHIVE, Entry, encode_entry, padding_after
from pycrictl.streams.wire.tar.reader import EntryStarted, TarReader

try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

__all__ = ["Census", "Measured", "crc32", "measure", "pack", "report_total", "wrong_checksum"]

PIECE_BYTES: Final = 1024 * 1024
"""The size of every piece but the last."""

MAX_ENTRIES: Final = 50_000
"""A tree with more entries is not walked in advance just to show progress."""

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
    """Yield the bytes of ``pack`` in parts: headers as ``bytes``, content as files or zeros."""
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


class Census:
    """Counts the entries of an archive, and validates it.

    Attributes:
        summary: entries so far, without devices and pipes; files count once their header is read.
    """

    def __init__(self, rules: Rules | None = None) -> None:
        self.summary = Summary()
        self._policy = None if rules is None else EntryPolicy(rules, single=False)
        self._reader = TarReader()

    def through(self, pieces: Iterable[memoryview]) -> Generator[memoryview, None, None]:
        """Yield the pieces of an archive unchanged; raise an error if it is invalid."""
        for piece in pieces:
            self._reader.receive_data(piece)
            self._count()
            yield piece
        self._reader.receive_eof()
        self._count()

    def count(self, entry: Entry) -> None:
        if self._policy is not None:
            self._policy.decide(entry)
        self.summary.count(entry)

    def _count(self) -> None:
        for event in self._reader.events_received():
            if isinstance(event, EntryStarted):
                self.count(event.entry)
        if self._reader.error is not None:
            raise self._reader.error


class Measured(NamedTuple):
    """The properties of an archive, known before it is sent."""

    size_bytes: int
    crc32: int
    summary: Summary


def measure(
    source: Source,
    *,
    on_skip: OnSkip,
    check: Callable[[int], None] | None = None,
    rules: Rules | None = None,
) -> Measured:
    """Measure the archive that ``pack`` would yield.

    Args:
        check: called with the size of the archive as it grows; raises an error if it is too large.
    """
    census = Census(rules)
    size_bytes = checksum = 0
    with closing(pack(source, on_skip=on_skip, on_entry=census.count)) as pieces:
        for piece in pieces:
            size_bytes += len(piece)
            if check is not None:
                check(size_bytes)
            checksum = crc32(piece, checksum)
    return Measured(size_bytes, checksum, census.summary)


def report_total(source: Source, watch: Watch) -> None:
    """Report the total size of a copy, if it is wanted and quickly available.

    Errors are ignored here: the copy itself will encounter them.
    """
    if watch.on_total is None and watch.on_archive is None:
        return
    content_bytes, archive_bytes = 0, len(END_OF_ARCHIVE)
    try:
        with closing(walk(source, on_skip=lambda _: None, opens=False)) as entries:
            for count, (entry, _) in enumerate(entries):
                if count >= MAX_ENTRIES:
                    return
                content_bytes += entry.size_bytes
                if watch.on_archive is not None:
                    archive_bytes += len(encode_entry(entry) + padding_after(entry.size_bytes))
    except (OSError, CopyError):
        return
    if watch.on_total is not None:
        watch.on_total(content_bytes)
    if watch.on_archive is not None:
        watch.on_archive(archive_bytes + content_bytes)


def wrong_checksum() -> CopyError:
    return CopyError(
        "the received data does not have the announced checksum",
        hint="it changed during the copy or was damaged in transit; try again",
    )
