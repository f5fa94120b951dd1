"""A tree as a tar archive, and an archive as a tree."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Final

from pycrictl.copy.arrival import Arrival, Summary
from pycrictl.copy.content import CHUNK_BYTES, OnBytes, SparseWriter, segments, shrunk
from pycrictl.copy.places import Destination, Source
from pycrictl.copy.policy import Rules
from pycrictl.copy.rootfs import to_error
from pycrictl.copy.walk import OnSkip, walk
from pycrictl.errors import CopyError
from pycrictl.wire.tar import (
    ArchiveFinished,
    DataReceived,
    EntryFinished,
    EntryStarted,
    TarReader,
)
from pycrictl.wire.tar_header import Entry
from pycrictl.wire.tar_writer import END_OF_ARCHIVE, encode_entry, padding_after

_BUFFER_BYTES: Final = 16 * CHUNK_BYTES

_MIN_PART_BYTES: Final = 256 * 1024
"""Less content than that is not worth the trouble of leaving it in its file."""

_MAX_PART_BYTES: Final = 32 * 1024 * 1024
"""Some milliseconds' work for whoever reads it."""


OnEntry = Callable[[Entry], None]


@dataclass(frozen=True, slots=True)
class FilePart:
    """Content that is still in its file, ``len`` bytes of it.

    Attributes:
        fd: the file, readable until the next piece of the archive is asked for.
        offset: where the content is.
        size_bytes: how much it is.
    """

    fd: int
    offset: int
    size_bytes: int

    def __len__(self) -> int:
        return self.size_bytes


def pack(
    source: Source,
    *,
    on_skip: OnSkip,
    on_entry: OnEntry | None = None,
    on_bytes: OnBytes | None = None,
    busybox: bool = False,
) -> Generator[memoryview, None, None]:
    """Yield a tree as an archive, in large pieces, each valid until the next is asked for.

    Args:
        source: what to pack; closed by the caller.
        on_skip: told what is left out.
        on_entry: told of each entry, before any of its content is read.
        on_bytes: told how much content has been packed.
        busybox: write long names in the way that BusyBox understands.

    Raises:
        CopyError: something cannot be read, or a file became shorter meanwhile.
    """
    packer = _Packer(on_bytes or _ignore)
    with closing(_pack(packer, source, on_skip, on_entry, busybox=busybox)) as pieces:
        for piece in pieces:
            assert isinstance(piece, memoryview)
            yield piece


def pack_unread(
    source: Source, *, on_skip: OnSkip, on_entry: OnEntry
) -> Generator[memoryview | FilePart, None, None]:
    """Yield the same bytes as ``pack``, but leave most content of large files in them."""
    packer = _Packer(_ignore, leaves_parts=True)
    return _pack(packer, source, on_skip, on_entry, busybox=False)


def _pack(
    packer: _Packer, source: Source, on_skip: OnSkip, on_entry: OnEntry | None, *, busybox: bool
) -> Generator[memoryview | FilePart, None, None]:
    shown = source.text.path
    try:
        for entry, fd in walk(source, on_skip=on_skip):
            shown = entry.name
            if on_entry is not None:
                on_entry(entry)
            yield from packer.text(encode_entry(entry, busybox=busybox))
            if fd >= 0:
                yield from packer.content(fd, entry.size_bytes, shown)
                yield from packer.text(padding_after(entry.size_bytes))
        yield from packer.text(END_OF_ARCHIVE)
        yield packer.rest()
    except OSError as exc:
        raise to_error(exc, "copy", shown) from exc


class _Packer:
    """Fills a buffer; file content is read right into it.

    Args:
        leaves_parts: leave the content of large files in them.
    """

    def __init__(self, on_bytes: OnBytes, *, leaves_parts: bool = False) -> None:
        self._view = memoryview(bytearray(_BUFFER_BYTES))
        self._used = 0
        self._on_bytes = on_bytes
        self._leaves_parts = leaves_parts

    def text(self, data: bytes) -> Iterator[memoryview]:
        if self._used + len(data) > _BUFFER_BYTES:
            yield self.rest()
        # Headers are at most MAX_HEADER_BYTES long: they fit into an empty buffer.
        self._view[self._used : self._used + len(data)] = data
        self._used += len(data)

    def content(self, fd: int, size_bytes: int, shown: bytes) -> Iterator[memoryview | FilePart]:
        position = 0
        for start, end in [*segments(fd, size_bytes), (size_bytes, size_bytes)]:
            while position < end:
                if self._leaves_parts and position >= start and end - position >= _MIN_PART_BYTES:
                    if self._used:
                        yield self.rest()
                    part = FilePart(fd, position, min(end - position, _MAX_PART_BYTES))
                    yield part
                    position += len(part)
                    continue
                if self._used == _BUFFER_BYTES:
                    yield self.rest()
                limit = start if position < start else end
                free = self._view[self._used : self._used + limit - position]
                if position < start:
                    free[:] = _ZEROS[: len(free)]
                    done = len(free)
                else:
                    done = os.preadv(fd, [free], position)
                    if not done:
                        raise shrunk(shown)
                position += done
                self._used += done
                self._on_bytes(done)
        if os.fstat(fd).st_size < size_bytes:
            raise shrunk(shown)

    def rest(self) -> memoryview:
        """What is in the buffer, which begins anew."""
        full = self._view[: self._used]
        self._used = 0
        return full


_ZEROS: Final = memoryview(bytes(_BUFFER_BYTES))


class Unpacker:
    """The bytes of an archive in, a tree at the destination out.

    Nothing is visible before ``finish``. Use it as a context manager: without ``finish`` nothing
    remains.

    Args:
        destination: where it goes; closed by the caller.
        rules: what the user allows.
        on_skip: told what is left out.
        on_bytes: told how much content has been written.
        single: the archive holds one file or directory; else any number of them.
        name: what it must be called; None accepts any name.
    """

    def __init__(
        self,
        destination: Destination,
        rules: Rules,
        *,
        on_skip: OnSkip,
        on_bytes: OnBytes | None = None,
        single: bool = True,
        name: bytes | None = None,
    ) -> None:
        self._arrival = Arrival(destination, rules, on_skip=on_skip, single=single, name=name)
        self._on_bytes = on_bytes or _ignore
        self._reader = TarReader()
        self._writer: SparseWriter | None = None
        self.size_bytes = 0

    def __enter__(self) -> Unpacker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def receive_data(self, data: bytes | bytearray | memoryview) -> None:
        """Unpack the next bytes.

        Raises:
            StreamError: this is no acceptable archive.
            EntryRefused: an entry breaks a rule.
            CopyError: the destination cannot take it.
        """
        self.size_bytes += len(data)
        self._reader.receive_data(data)
        self._deal()

    def finish(self, *, size_bytes: int | None = None) -> Summary:
        """The archive has ended: verify it, and put what came into its place.

        Args:
            size_bytes: how long the archive was announced to be.

        Raises:
            CopyError: it is longer or shorter than that, or something is in the way.
            StreamError: it is not complete.
        """
        if size_bytes is not None and size_bytes != self.size_bytes:
            raise CopyError(
                f"{self.size_bytes} bytes arrived, and {size_bytes} were announced",
                hint="nothing was changed; try again",
            )
        self._reader.receive_eof()
        self._deal()
        return self._arrival.commit()

    def close(self) -> None:
        """Remove what was not finished."""
        self._arrival.close()

    def _deal(self) -> None:
        for event in self._reader.events_received():
            if isinstance(event, DataReceived):
                self._write(event.data)
            elif isinstance(event, EntryStarted):
                fd = self._arrival.begin(event.entry)
                if fd is not None:
                    self._writer = SparseWriter(fd, event.entry.size_bytes)
            elif isinstance(event, EntryFinished):
                if self._writer is not None:
                    with self._failures():
                        self._writer.finish()
                    self._writer = None
                self._arrival.end()
            else:
                assert isinstance(event, ArchiveFinished)
        if self._reader.error is not None:
            raise self._reader.error

    def _write(self, data: memoryview) -> None:
        if self._writer is None:
            return
        with self._failures():
            self._writer.write(data)
        self._on_bytes(len(data))

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            raise self._arrival.failure(exc) from exc


def _ignore(_: int) -> None:
    """Nobody wants to know."""
