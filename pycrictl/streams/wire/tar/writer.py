"""Writing a tar archive. Pure.

An archive consists of ``encode_entry``, the content and ``padding_after`` for each entry, and
``END_OF_ARCHIVE``. Its format is pax: times in nanoseconds, names of any length and any bytes, and
files of any size.

Holes in a file are written as zeros, which every reader understands; unpacking turns long runs of
zeros into holes again. Pax has no holes, and GNU tar's extension for them hides an archive's real
size from programs that must limit it.
"""

from __future__ import annotations

from typing import Final

from pycrictl.base.errors import LocalProtocolError
from pycrictl.streams.wire.tar.header import (
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

END_OF_ARCHIVE: Final = bytes(2 * BLOCK_BYTES)

_FILE: Final = b"0"
_TYPES: Final = {
    EntryType.FILE: _FILE,
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

    With ``busybox``, values that do not fit into the header use GNU's extensions: BusyBox skips pax
    headers; every other reader understands both.
    """
    if not entry.name or b"\0" in entry.name or b"\0" in entry.link:
        raise LocalProtocolError("a name is empty or holds a NUL")
    if not 0 <= entry.size_bytes <= MAX_SIZE_BYTES:
        raise LocalProtocolError("the size of an entry is out of range")
    name = entry.name
    if entry.kind is EntryType.DIRECTORY and not name.endswith(b"/"):
        name += b"/"
    size, uid, gid = entry.size_bytes, entry.uid, entry.gid
    mtime_s, fraction = divmod(entry.mtime_ns, NS_PER_S)
    records = long_names = b""
    if fraction or (not fits_octal(mtime_s, 12) and not busybox):
        records = encode_record(b"mtime", encode_time(entry.mtime_ns))
    if busybox:
        if len(entry.link) > _NAME_BYTES:
            long_names += _long_name(b"K", entry.link)
        if len(name) > _NAME_BYTES:
            long_names += _long_name(b"L", name)
    else:
        if len(name) > _NAME_BYTES or len(entry.link) > _NAME_BYTES:
            records += _text_records(name, entry.link)
        for keyword, value, width in ((b"size", size, 12), (b"uid", uid, 8), (b"gid", gid, 8)):
            if not fits_octal(value, width):
                records += encode_record(keyword, b"%d" % value)
        size = size if fits_octal(size, 12) else 0
        uid = uid if fits_octal(uid, 8) else 0
        gid = gid if fits_octal(gid, 8) else 0
        mtime_s = mtime_s if fits_octal(mtime_s, 12) else 0
    kind = _FILE if entry.kind is EntryType.FILE else _TYPES[entry.kind]
    mode, link = entry.mode & 0o7777, entry.link
    header = encode_block(name, kind, size, mode, uid, gid, mtime_s, link)
    # GNU's headers are next to the entry: a pax header in between makes BusyBox drop them.
    return (_extension(b"x", _PAX_NAME, records) if records else b"") + long_names + header


def padding_after(size_bytes: int) -> bytes:
    """Return the zeros that follow ``size_bytes`` bytes of content."""
    return bytes(-size_bytes % BLOCK_BYTES)


def _text_records(name: bytes, link: bytes) -> bytes:
    records, is_utf8 = b"", True
    for keyword, value in ((b"path", name), (b"linkpath", link)):
        if len(value) > _NAME_BYTES:
            records += encode_record(keyword, value)
            try:
                value.decode("utf-8")
            except UnicodeDecodeError:
                is_utf8 = False
    # Without it a reader may convert the names, as pax requires UTF-8 (POSIX, "hdrcharset").
    return records if is_utf8 else encode_record(b"hdrcharset", b"BINARY") + records


def _long_name(kind: bytes, name: bytes) -> bytes:
    return _extension(kind, _GNU_NAME, name + b"\0")


def _extension(kind: bytes, name: bytes, body: bytes) -> bytes:
    return (
        encode_block(name, kind, len(body), 0o644, 0, 0, 0, b"") + body + padding_after(len(body))
    )
