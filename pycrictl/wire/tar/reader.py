"""Reading a tar archive, strictly. Pure.

The reader takes the bytes of an archive as they come and reports what is in them. It understands
pax and ustar archives, those of the seventh edition of Unix, and GNU's long names. It never looks
back, keeps at most one extended header in memory, and passes content on as views of the bytes that
it was given.

Archives are outside data. Refused are: what two readers could understand differently (a size said
twice with two results, a record said twice, a NUL within a name), files with holes in a form of
their own (their real size is not that of their content), entry types that mean nothing on Linux,
content of anything but a file, an archive without its end mark, and anything but zeros behind it.
Whether an entry's *name* is acceptable is not decided here but in ``copy.rules.policy``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from pycrictl.errors import RemoteProtocolError, StreamError
from pycrictl.units import quote
from pycrictl.wire.tar.header import (
    BLOCK_BYTES,
    INTERPRETED_RECORDS,
    MAX_SIZE_BYTES,
    NS_PER_S,
    Block,
    Entry,
    EntryType,
    WrongChecksum,
    cut,
    decode_block,
    decode_decimal,
    decode_records,
    decode_time,
)

__all__ = [
    "ArchiveFinished",
    "DataReceived",
    "Entry",
    "EntryFinished",
    "EntryStarted",
    "EntryType",
    "Event",
    "TarReader",
    "read",
]

MAX_EXTENSION_BYTES: Final = 1024 * 1024
"""All extended headers of one entry together; two names of 4 KiB and some attributes need less."""

MAX_GLOBAL_HEADERS: Final = 64
MAX_TRAILER_BYTES: Final = 16 * 1024 * 1024
"""Zeros behind the end mark: writers fill up the last record of a tape."""

_ZERO_BLOCK: Final = bytes(BLOCK_BYTES)

_KINDS: Final = {
    b"0": EntryType.FILE,
    b"\0": EntryType.FILE,
    b"7": EntryType.FILE,  # contiguous, where a system knows that
    b"1": EntryType.HARDLINK,
    b"2": EntryType.SYMLINK,
    b"3": EntryType.CHARACTER,
    b"4": EntryType.BLOCK,
    b"5": EntryType.DIRECTORY,
    b"6": EntryType.FIFO,
}
_PAX: Final = b"x"
_PAX_GLOBAL: Final = b"g"
_GNU_NAME: Final = b"L"
_GNU_LINK: Final = b"K"
_GNU_VOLUME: Final = b"V"
_GNU_SPARSE: Final = b"S"
_EXTENSIONS: Final = frozenset({_PAX, _PAX_GLOBAL, _GNU_NAME, _GNU_LINK})

_COMPRESSIONS: Final = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
}


class EntryStarted(NamedTuple):
    """An entry begins; its content follows."""

    entry: Entry


class DataReceived(NamedTuple):
    """Content of the entry. The view is of the bytes given to ``receive_data``: not a copy."""

    data: memoryview


class EntryFinished(NamedTuple):
    """The entry's content is complete."""


class ArchiveFinished(NamedTuple):
    """The whole archive has been read, with its end mark and the end of the input."""


Event = EntryStarted | DataReceived | EntryFinished | ArchiveFinished


# States of the reader. A member of an enumeration takes long to look up.
_HEADER, _EXTENSION, _CONTENT, _PADDING, _END_MARK, _TRAILER, _OVER = range(7)


class TarReader:
    """Bytes of an archive in, events out.

    ``receive_data`` never raises: an error is kept in ``error``, after which nothing is read. The
    events before it are still delivered.

    Attributes:
        error: what is wrong with the archive, or None.
    """

    def __init__(self) -> None:
        self.error: StreamError | None = None
        self._events: list[Event] = []
        self._state = _HEADER
        self._is_first = True
        self._gathered = bytearray()  # of a header or an extended header; never of content
        self._wanted = BLOCK_BYTES
        self._left = 0  # bytes of content or padding still to come
        self._padding = 0
        self._extension = b""  # the type of the extended header being gathered
        self._extension_size = 0
        self._extension_bytes = 0
        self._global_headers = 0
        self._trailer_bytes = 0
        self._records: dict[bytes, bytes] | None = None
        self._long_name: bytes | None = None
        self._long_link: bytes | None = None

    @property
    def is_finished(self) -> bool:
        """Return whether nothing more is read: after the end, or after an error."""
        return self._state is _OVER

    def receive_data(self, data: bytes | bytearray | memoryview) -> None:
        """Read the next bytes. They must stay as they are until the events are dealt with."""
        view = memoryview(data)
        position, end = 0, len(view)
        try:
            while position < end and self._state is not _OVER:
                if self._state is _CONTENT:
                    position = self._content(view, position)
                elif self._state is _PADDING:
                    taken = min(self._left, end - position)
                    position += taken
                    self._left -= taken
                    if not self._left:
                        self._state = _HEADER
                elif self._state is _TRAILER:
                    self._trailer(view[position:])
                    position = end
                elif not self._gathered and end - position >= self._wanted:
                    block = bytes(view[position : position + self._wanted])
                    position += self._wanted
                    self._block(block)
                else:
                    position = self._gather(view, position)
        except StreamError as exc:
            self._fail(exc)

    def receive_eof(self) -> None:
        """Take in that the input has ended."""
        if self._state is _TRAILER:
            self._state = _OVER
            self._events.append(ArchiveFinished())
        elif self._state is not _OVER:
            self._fail(StreamError("the archive ends too early"))

    def events_received(self) -> list[Event]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events

    def _fail(self, error: StreamError) -> None:
        self.error = error
        self._state = _OVER
        self._gathered.clear()

    def _content(self, view: memoryview, position: int) -> int:
        piece = view[position : position + self._left]
        self._events.append(DataReceived(piece))
        self._left -= len(piece)
        if not self._left:
            self._events.append(EntryFinished())
            self._left = self._padding
            self._state = _PADDING if self._left else _HEADER
        return position + len(piece)

    def _trailer(self, view: memoryview) -> None:
        self._trailer_bytes += len(view)
        if self._trailer_bytes > MAX_TRAILER_BYTES or bytes(view).strip(b"\0"):
            raise RemoteProtocolError("something follows the end of the archive")

    def _gather(self, view: memoryview, position: int) -> int:
        piece = view[position : position + self._wanted - len(self._gathered)]
        self._gathered += piece
        if len(self._gathered) == self._wanted:
            block = bytes(self._gathered)
            self._gathered.clear()
            self._block(block)
        return position + len(piece)

    def _block(self, block: bytes) -> None:
        """Handle a complete header block or the complete body of an extended header."""
        if self._state is _EXTENSION:
            self._extended(block[: self._extension_size])
            self._state = _HEADER
            self._wanted = BLOCK_BYTES
        elif self._state is _END_MARK:
            if block != _ZERO_BLOCK:
                raise RemoteProtocolError("the end mark of the archive is not complete")
            self._state = _TRAILER
        elif block == _ZERO_BLOCK:
            if self._extension_bytes:
                raise RemoteProtocolError("the archive ends after an extended header")
            self._state = _END_MARK
        else:
            self._header(block)
        self._is_first = False

    def _header(self, block: bytes) -> None:
        try:
            header = decode_block(block)
        except WrongChecksum:
            if not self._is_first:
                raise
            raise _not_an_archive(block) from None
        if header.type in _EXTENSIONS:
            self._begin_extension(header)
        elif header.type == _GNU_VOLUME:
            if header.size_bytes:
                raise RemoteProtocolError("a volume label of the archive has content")
        elif header.type == _GNU_SPARSE:
            raise RemoteProtocolError(
                "the archive holds a sparse file in a form of its own",
                hint="archives made without the option --sparse are understood",
            )
        elif header.type in _KINDS:
            self._begin_entry(header)
        else:
            shown = quote(header.type.decode("iso-8859-1"))
            raise RemoteProtocolError(f"the archive has an entry of the unknown type {shown}")

    def _begin_extension(self, header: Block) -> None:
        self._extension = header.type
        self._extension_size = header.size_bytes
        if header.type == _PAX_GLOBAL:
            self._global_headers += 1
            if self._global_headers > MAX_GLOBAL_HEADERS:
                raise RemoteProtocolError("the archive has too many global headers")
        self._extension_bytes += header.size_bytes
        if not header.size_bytes or self._extension_bytes > MAX_EXTENSION_BYTES:
            raise RemoteProtocolError("an extended header of the archive is empty or too long")
        self._state = _EXTENSION
        self._wanted = header.size_bytes + _padding(header.size_bytes)

    def _extended(self, body: bytes) -> None:
        if self._extension == _PAX_GLOBAL:
            self._extension_bytes -= len(body)  # it belongs to no entry
            if not INTERPRETED_RECORDS.isdisjoint(decode_records(body)):
                raise RemoteProtocolError("a global header of the archive is about single entries")
        elif self._extension == _PAX:
            if self._records is not None:
                raise RemoteProtocolError("an entry of the archive has two pax headers")
            self._records = decode_records(body)
        elif self._extension == _GNU_NAME:
            if self._long_name is not None:
                raise RemoteProtocolError("an entry of the archive has two long names")
            self._long_name = _long(body)
        else:
            if self._long_link is not None:
                raise RemoteProtocolError("an entry of the archive has two long link names")
            self._long_link = _long(body)

    def _begin_entry(self, header: Block) -> None:
        entry = self._combine(header)
        self._records = self._long_name = self._long_link = None
        self._extension_bytes = 0
        self._events.append(EntryStarted(entry))
        if entry.size_bytes:
            self._left = entry.size_bytes
            self._padding = _padding(entry.size_bytes)
            self._state = _CONTENT
        else:
            self._events.append(EntryFinished())

    def _combine(self, header: Block) -> Entry:
        kind = _KINDS[header.type]
        name, mode, uid, gid, size_bytes, mtime_s, _, link = header
        mtime_ns = mtime_s * NS_PER_S
        is_link = kind is EntryType.SYMLINK or kind is EntryType.HARDLINK
        if self._long_link is not None and not is_link:
            raise _named_link(kind)
        records = self._records
        if records is None:
            name = name if self._long_name is None else self._long_name
            link = link if self._long_link is None else self._long_link
        else:
            if b"linkpath" in records and not is_link:
                raise _named_link(kind)
            name = _one_of(records.get(b"path"), self._long_name, name)
            link = _one_of(records.get(b"linkpath"), self._long_link, link)
            if (value := records.get(b"size")) is not None:
                size_bytes = decode_decimal(value, "size")
                # Writers put 0 or the same into the field that cannot hold it.
                if header.size_bytes not in (0, size_bytes) or size_bytes > MAX_SIZE_BYTES:
                    raise RemoteProtocolError("an entry of the archive has two sizes")
            if (value := records.get(b"mtime")) is not None:
                mtime_ns = decode_time(value)
            if (value := records.get(b"uid")) is not None:
                uid = decode_decimal(value, "owner")
            if (value := records.get(b"gid")) is not None:
                gid = decode_decimal(value, "group")
        if kind is EntryType.DIRECTORY:
            # Only one: what "a//" is supposed to be is for the policy to say.
            name = name.removesuffix(b"/") or name
        if size_bytes and kind is not EntryType.FILE:
            raise RemoteProtocolError(f"a {kind.value} of the archive has content")
        return Entry(name, kind, size_bytes, mode, mtime_ns, uid, gid, link if is_link else b"")


def read(pieces: Iterable[bytes | memoryview]) -> Iterator[Event]:
    """Yield what is in an archive, and raise what is wrong with it.

    An event is dealt with before the next is asked for.
    """
    reader = TarReader()
    for piece in pieces:
        reader.receive_data(piece)
        yield from _events(reader)
    reader.receive_eof()
    yield from _events(reader)


def _events(reader: TarReader) -> Iterator[Event]:
    yield from reader.events_received()
    if reader.error is not None:
        raise reader.error


def _named_link(kind: EntryType) -> RemoteProtocolError:
    return RemoteProtocolError(f"a {kind.value} of the archive has a link name")


def _padding(size_bytes: int) -> int:
    return -size_bytes % BLOCK_BYTES


def _long(body: bytes) -> bytes:
    """Return the name in the body of one of GNU's extended headers; a NUL ends it."""
    name = cut(body)
    if body[len(name) :].strip(b"\0"):
        raise RemoteProtocolError("a name in the archive holds a NUL")
    return name


def _one_of(record: bytes | None, long: bytes | None, short: bytes) -> bytes:
    if record is not None and long is not None:
        raise RemoteProtocolError("an entry of the archive has two names")
    if record is not None and b"\0" in record:
        raise RemoteProtocolError("a name in the archive holds a NUL")
    return short if record is None and long is None else (record or long or b"")


def _not_an_archive(block: bytes) -> RemoteProtocolError:
    for magic, name in _COMPRESSIONS.items():
        if block.startswith(magic):
            return RemoteProtocolError(
                f"the archive is compressed ({name})", hint="only a plain tar archive is read"
            )
    return RemoteProtocolError("this is not a tar archive")
