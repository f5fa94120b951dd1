"""Reading a tar archive, strictly. Pure.

The reader turns the bytes of an archive into events as they arrive. It understands pax and ustar
archives, those of the seventh edition of Unix, and GNU's long names. It never seeks, keeps the
extended headers of at most one entry in memory, and passes content on as views of its input.

Archives are untrusted input. The reader refuses anything that two readers could interpret
differently (two different sizes, a repeated record, a NUL within a name), sparse files in special
formats (their real size is not that of their content), entry types unknown on Linux, content of
anything but a file, a missing end mark, and anything but zeros after it. Whether an entry's *name*
is acceptable is decided in ``copy.rules.policy``.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

from pycrictl.base.errors import RemoteProtocolError, StreamError
from pycrictl.base.units import quote
from pycrictl.streams.wire.tar.header import (
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

MAX_EXTENSION_BYTES: Final = 1024 * 1024
"""The limit for all extended headers of one entry; two names of 4 KiB and attributes need less."""

MAX_GLOBAL_HEADERS: Final = 64
MAX_TRAILER_BYTES: Final = 16 * 1024 * 1024
"""Zeros allowed after the end mark: writers pad the last record of a tape."""

_ZERO_BLOCK: Final = bytes(BLOCK_BYTES)

_KINDS: Final = {
    b"0": EntryType.FILE,
    b"\0": EntryType.FILE,
    b"7": EntryType.FILE,  # contiguous, on systems that have such files
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
_LONG: Final = {_GNU_NAME: "long names", _GNU_LINK: "long link names"}
_EXTENSIONS: Final = frozenset({_PAX, _PAX_GLOBAL, *_LONG})

_FORMATS: Final = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
    b"LZIP": "lzip",
    b"\x1f\x9d": "compress",
    b"PK\x03\x04": "zip",
    b"PK\x05\x06": "zip",  # an empty one
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"Rar!\x1a\x07": "rar",
    b"07070": "cpio",
    b"!<arch>\n": "ar",
}
"""The first bytes of other formats that users mistake for tar archives."""


class EntryStarted(NamedTuple):
    """An entry begins; its content follows."""

    entry: Entry


class DataReceived(NamedTuple):
    """Content of the entry: a view of the bytes given to ``receive_data``, not a copy."""

    data: memoryview


class EntryFinished(NamedTuple):
    """The entry's content is complete."""


Event = EntryStarted | DataReceived | EntryFinished

T = TypeVar("T")
_Reading = Generator[None, None, T]
_NOTHING: Final = memoryview(b"")


class TarReader:
    """Turns the bytes of an archive into events.

    ``receive_data`` never raises: the first error is kept in ``error`` and ends the reading. Events
    before it are still delivered.

    Attributes:
        error: what is wrong with the archive, or None.
    """

    def __init__(self) -> None:
        self.error: StreamError | None = None
        self._events: list[Event] = []
        self._start = b""
        self._unread = _NOTHING
        self._has_end_mark = False
        self._extension_bytes = 0
        self._global_headers = 0
        self._records: dict[bytes, bytes] | None = None
        self._long: dict[bytes, bytes] = {}
        self._reading = self._archive()

    def receive_data(self, data: bytes | bytearray | memoryview) -> None:
        """Read the next bytes, which must not change until their events have been handled."""
        self._unread = memoryview(data)
        if len(self._start) < BLOCK_BYTES:
            self._start += bytes(self._unread[: BLOCK_BYTES - len(self._start)])
        try:
            next(self._reading, None)
        except StreamError as exc:
            self.error = exc
        self._unread = _NOTHING

    def receive_eof(self) -> None:
        """Handle the end of the input."""
        self._reading.close()
        if self.error is not None or self._has_end_mark:
            return
        is_other = other_format(self._start)
        self.error = (
            _not_tar(self._start) if is_other else StreamError("the archive ends too early")
        )

    def events_received(self) -> list[Event]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events

    def _archive(self) -> _Reading[None]:
        """Read the whole archive; yield when all bytes are used up, and resume with more."""
        block = yield from self._take(BLOCK_BYTES)
        if block != _ZERO_BLOCK:
            _require_header(block)
        while block != _ZERO_BLOCK:
            yield from self._member(decode_block(block))
            block = yield from self._take(BLOCK_BYTES)
        if self._extension_bytes:
            raise RemoteProtocolError("the archive ends after an extended header")
        if (yield from self._take(BLOCK_BYTES)) != _ZERO_BLOCK:
            raise RemoteProtocolError("the end mark of the archive is not complete")
        self._has_end_mark = True
        size_bytes = 0
        while True:
            size_bytes += len(self._unread)
            if size_bytes > MAX_TRAILER_BYTES or bytes(self._unread).strip(b"\0"):
                raise RemoteProtocolError("there is data after the end of the archive")
            yield

    def _take(self, size_bytes: int) -> _Reading[bytes]:
        """Return the next ``size_bytes``; not used for content, which may be of any size."""
        taken = bytes(self._unread[:size_bytes])
        self._unread = self._unread[size_bytes:]
        if len(taken) == size_bytes:
            return taken
        gathered = bytearray(taken)
        while missing := size_bytes - len(gathered):
            yield
            gathered += self._unread[:missing]
            self._unread = self._unread[missing:]
        return bytes(gathered)

    def _member(self, header: Block) -> _Reading[None]:
        if header.type in _EXTENSIONS:
            self._check_extension(header)
            body = yield from self._take(header.size_bytes + _padding(header.size_bytes))
            self._extended(header.type, body[: header.size_bytes])
        elif header.type in _KINDS:
            entry = self._combine(header)
            self._records, self._long = None, {}
            self._extension_bytes = 0
            self._events.append(EntryStarted(entry))
            yield from self._content(entry.size_bytes)
        elif header.type == _GNU_VOLUME:
            if header.size_bytes:
                raise RemoteProtocolError("a volume label of the archive has content")
        elif header.type == _GNU_SPARSE:
            raise RemoteProtocolError(
                "the archive holds a sparse file in an unsupported format",
                hint="make the archive without tar's option --sparse",
            )
        else:
            shown = quote(header.type.decode("iso-8859-1"))
            raise RemoteProtocolError(f"the archive has an entry of the unknown type {shown}")

    def _content(self, size_bytes: int) -> _Reading[None]:
        left = size_bytes
        while left:
            if not self._unread:
                yield
            piece = self._unread[:left]
            self._unread = self._unread[left:]
            left -= len(piece)
            if piece:
                self._events.append(DataReceived(piece))
        self._events.append(EntryFinished())
        yield from self._take(_padding(size_bytes))

    def _check_extension(self, header: Block) -> None:
        if header.type == _PAX_GLOBAL:
            self._global_headers += 1
            if self._global_headers > MAX_GLOBAL_HEADERS:
                raise RemoteProtocolError("the archive has too many global headers")
        self._extension_bytes += header.size_bytes
        if not header.size_bytes or self._extension_bytes > MAX_EXTENSION_BYTES:
            raise RemoteProtocolError("an extended header of the archive is empty or too long")

    def _extended(self, kind: bytes, body: bytes) -> None:
        if kind == _PAX_GLOBAL:
            self._extension_bytes -= len(body)  # it belongs to no entry
            if not INTERPRETED_RECORDS.isdisjoint(decode_records(body)):
                raise RemoteProtocolError("a global header of the archive describes single entries")
        elif kind == _PAX:
            if self._records is not None:
                raise RemoteProtocolError("an entry of the archive has two pax headers")
            self._records = decode_records(body)
        elif kind in self._long:
            raise RemoteProtocolError(f"an entry of the archive has two {_LONG[kind]}")
        else:
            self._long[kind] = _long(body)

    def _combine(self, header: Block) -> Entry:
        kind = _KINDS[header.type]
        name, mode, uid, gid, size_bytes, mtime_s, _, link = header
        mtime_ns = mtime_s * NS_PER_S
        is_link = kind is EntryType.SYMLINK or kind is EntryType.HARDLINK
        records = self._records or {}
        if not is_link and (_GNU_LINK in self._long or b"linkpath" in records):
            raise RemoteProtocolError(f"a {kind.value} of the archive has a link name")
        name = _one_of(records.get(b"path"), self._long.get(_GNU_NAME), name)
        link = _one_of(records.get(b"linkpath"), self._long.get(_GNU_LINK), link)
        if (value := records.get(b"size")) is not None:
            size_bytes = decode_decimal(value, "size")
            # Writers put 0 or the same size into the header's own field.
            if header.size_bytes not in (0, size_bytes) or size_bytes > MAX_SIZE_BYTES:
                raise RemoteProtocolError("an entry of the archive has two sizes")
        if (value := records.get(b"mtime")) is not None:
            mtime_ns = decode_time(value)
        if (value := records.get(b"uid")) is not None:
            uid = decode_decimal(value, "owner")
        if (value := records.get(b"gid")) is not None:
            gid = decode_decimal(value, "group")
        if kind is EntryType.DIRECTORY:
            # Only one slash: the policy decides what "a//" means.
            name = name.removesuffix(b"/") or name
        if size_bytes and kind is not EntryType.FILE:
            raise RemoteProtocolError(f"a {kind.value} of the archive has content")
        return Entry(name, kind, size_bytes, mode, mtime_ns, uid, gid, link if is_link else b"")


def read(pieces: Iterable[bytes | memoryview]) -> Iterator[Event]:
    """Yield the events of an archive; raise the reader's error after them, if there is one.

    The caller must handle each event before it requests the next.
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


def _padding(size_bytes: int) -> int:
    return -size_bytes % BLOCK_BYTES


def _long(body: bytes) -> bytes:
    """Return the name in the body of a GNU extended header, up to a NUL."""
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


def other_format(start: bytes) -> str:
    """Return the format of input that is not a tar archive; empty if it is one, or if unknown.

    Args:
        start: the input's first ``BLOCK_BYTES``, or all of it if it is shorter.
    """
    with suppress(RemoteProtocolError):
        if start == _ZERO_BLOCK or (len(start) == BLOCK_BYTES and decode_block(start)):
            return ""  # its first name may begin like another format
    return next((name for magic, name in _FORMATS.items() if start.startswith(magic)), "")


def _require_header(block: bytes) -> None:
    """Raise an error that names the input's format if its first block is not a header."""
    try:
        decode_block(block)
    except WrongChecksum:
        raise _not_tar(block) from None


def _not_tar(start: bytes) -> RemoteProtocolError:
    name = other_format(start)
    return RemoteProtocolError(
        f"this is not a tar archive but {name}" if name else "this is not a tar archive",
        hint="only a plain tar archive is read here" if name else None,
    )
