"""Writing a tar archive. Pure.

An archive is, for each entry, ``encode_entry``, its content, and ``padding_after``; at the end
``END_OF_ARCHIVE``. It is pax, with times to the nanosecond, names of any length and bytes, and
files of any size.

Holes of a file are written as zeros, which every reader understands; whoever unpacks the archive
finds the zeros and makes holes of them. Pax has no holes, and the form that GNU tar gave it makes
an archive whose real size is hidden from those who must limit it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pycrictl.errors import LocalProtocolError
from pycrictl.wire.tar.header import (
    BLOCK_BYTES,
    MAX_SIZE_BYTES,
    NS_PER_S,
    Entry,
    EntryType,
    encode_block,
    encode_record,
    encode_time,
    fits_octal,
)

__all__ = ["END_OF_ARCHIVE", "MAX_HEADER_BYTES", "encode_entry", "padding_after"]

END_OF_ARCHIVE: Final = bytes(2 * BLOCK_BYTES)

MAX_HEADER_BYTES: Final = 16 * 1024
"""The most that ``encode_entry`` returns for names that Linux can hold (4095 bytes)."""

_TYPES: Final = {
    EntryType.FILE: b"0",
    EntryType.HARDLINK: b"1",
    EntryType.SYMLINK: b"2",
    EntryType.CHARACTER: b"3",
    EntryType.BLOCK: b"4",
    EntryType.DIRECTORY: b"5",
    EntryType.FIFO: b"6",
}
_NAME_BYTES: Final = 100
_PAX_NAME: Final = b"././@PaxHeader"
_GNU_NAME: Final = b"././@LongLink"


def encode_entry(entry: Entry, *, busybox: bool = False) -> bytes:
    """Encode all headers of one entry.

    Args:
        entry: what to write. The content of a file follows; others have none.
        busybox: write what does not fit into the header in GNU's way, which BusyBox understands;
            it skips pax headers. Every other reader understands both.

    Raises:
        LocalProtocolError: a name that no archive can hold, or a size out of range.
    """
    if not entry.name or b"\0" in entry.name or b"\0" in entry.link:
        raise LocalProtocolError("a name is empty or holds a NUL")
    if not 0 <= entry.size_bytes <= MAX_SIZE_BYTES:
        raise LocalProtocolError("the size of an entry is out of range")
    name = entry.name
    if entry.kind is EntryType.DIRECTORY and not name.endswith(b"/"):
        name += b"/"
    seconds, fraction = divmod(entry.mtime_ns, NS_PER_S)
    records = b""
    if fraction or (not fits_octal(seconds, 12) and not busybox):
        records += encode_record(b"mtime", encode_time(entry.mtime_ns))
    long_names = b""
    if busybox:
        size, uid, gid, mtime_s = entry.size_bytes, entry.uid, entry.gid, seconds
        if len(entry.link) > _NAME_BYTES:
            long_names += _long_name(b"K", entry.link)
        if len(name) > _NAME_BYTES:
            long_names += _long_name(b"L", name)
    else:
        records += _text_records(
            (keyword, value)
            for keyword, value in ((b"path", name), (b"linkpath", entry.link))
            if len(value) > _NAME_BYTES
        )
        size, more = _octal_or_record(b"size", entry.size_bytes, 12)
        records += more
        uid, more = _octal_or_record(b"uid", entry.uid, 8)
        records += more
        gid, more = _octal_or_record(b"gid", entry.gid, 8)
        records += more
        mtime_s = seconds if fits_octal(seconds, 12) else 0
    header = encode_block(
        name,
        _TYPES[entry.kind],
        size=size,
        mode=entry.mode & 0o7777,
        uid=uid,
        gid=gid,
        mtime_s=mtime_s,
        link=entry.link,
    )
    # GNU's headers stand next to the entry: BusyBox forgets them over a pax header.
    return (_extension(b"x", _PAX_NAME, records) if records else b"") + long_names + header


def padding_after(size_bytes: int) -> bytes:
    """Return the zeros that follow so many bytes of content."""
    return bytes(-size_bytes % BLOCK_BYTES)


def _octal_or_record(keyword: bytes, value: int, width: int) -> tuple[int, bytes]:
    """Return the number for the header, and the record for what does not fit into it."""
    if fits_octal(value, width):
        return value, b""
    return 0, encode_record(keyword, b"%d" % value)


def _text_records(texts: Iterable[tuple[bytes, bytes]]) -> bytes:
    records, is_utf8 = b"", True
    for keyword, value in texts:
        records += encode_record(keyword, value)
        try:
            value.decode("utf-8")
        except UnicodeDecodeError:
            is_utf8 = False
    # Without it a reader may convert the names, as pax wants UTF-8 (POSIX, "hdrcharset").
    return records if is_utf8 else encode_record(b"hdrcharset", b"BINARY") + records


def _long_name(kind: bytes, name: bytes) -> bytes:
    return _extension(kind, _GNU_NAME, name + b"\0")


def _extension(kind: bytes, name: bytes, body: bytes) -> bytes:
    header = encode_block(name, kind, size=len(body), mode=0o644, uid=0, gid=0, mtime_s=0, link=b"")
    return header + body + padding_after(len(body))
