"""Reads and writes the blocks of a tar archive: headers, numbers and pax records. Pure.

The formats are those of POSIX.1-2024 (pax, "ustar Interchange Format" and "pax Header Block"), of
the seventh edition of Unix, and of GNU tar. Names are bytes: neither tar nor Linux defines their
encoding.

Input that two readers could interpret differently is refused: many attacks used archives that one
program had checked and another unpacked.

An archive has three parts for each entry (``encode_entry``, the content, ``padding_after``), and
ends with ``END_OF_ARCHIVE``. Its format is pax: times in nanoseconds, names of any length
and any bytes, and files of any size.

Holes in a file are written as zeros, which every reader understands; unpacking turns long runs of
zeros into holes again. Pax has no holes, and GNU tar's extension for them hides an archive's real
size from programs that must limit it.
"""

from __future__ import annotations

import re
import struct
import zlib
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple

from pycrictl.base.errors import LocalProtocolError, RemoteProtocolError

BLOCK_BYTES: Final = 512
MAX_SIZE_BYTES: Final = 2**63 - 1
"""The size of the largest file that Linux can have."""

NS_PER_S: Final = 10**9

# name mode uid gid size mtime checksum type link magic+version uname gname major minor prefix
_LAYOUT: Final = struct.Struct("100s8s8s8s12s12s8sc100s8s64x16x155s12x")
_NUMBERS: Final = slice(100, 148)

# The five number fields in the form that nearly every writer uses.
_PLAIN_NUMBERS: Final = re.compile(
    rb"([0-7]{7})[ \0]([0-7]{7})[ \0]([0-7]{7})[ \0]([0-7]{11})[ \0]([0-7]{11})[ \0]"
)

_MAGIC_POSIX: Final = b"ustar\x0000"
_MAGIC_GNU: Final = b"ustar  \x00"
_MAGIC_NONE: Final = bytes(8)

_OCTAL: Final = re.compile(rb" *([0-7]*)[ \0]*")
_DECIMAL: Final = re.compile(rb"[0-9]{1,20}")
_TIME: Final = re.compile(rb"(-?)([0-9]{1,20})(?:\.([0-9]*))?")
_RECORD_LENGTH: Final = re.compile(rb"([1-9][0-9]{0,9}) ")

_SPARSE_RECORDS: Final = (b"GNU.sparse.", b"SCHILY.realsize", b"SUN.holesdata")

INTERPRETED_RECORDS: Final = frozenset({b"path", b"linkpath", b"size", b"mtime", b"uid", b"gid"})
"""The pax records that change an entry; all others are ignored."""


class WrongChecksum(RemoteProtocolError):
    """A block is not a header, or is corrupt."""


class EntryType(Enum):
    """The type of an entry. The value is its name in messages."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symbolic link"
    HARDLINK = "hard link"
    CHARACTER = "character device"
    BLOCK = "block device"
    FIFO = "named pipe"


class Entry(NamedTuple):
    """One member of an archive, as its headers describe it; nothing in it is checked.

    Attributes:
        name: its name in the archive, minus one final slash if it is a directory.
        size_bytes: the size of a file's content, 0 for other entries.
        mode: permission, set-id and sticky bits; no file type.
        mtime_ns: nanoseconds since 1970; negative before.
        uid: not negative, without an upper limit; gid likewise.
    """

    name: bytes
    kind: EntryType
    size_bytes: int = 0
    mode: int = 0o644
    mtime_ns: int = 0
    uid: int = 0
    gid: int = 0
    link: bytes = b""


class Block(NamedTuple):
    """The fields of one header block, decoded but not yet combined with its extensions."""

    name: bytes
    mode: int
    uid: int
    gid: int
    size_bytes: int
    mtime_s: int
    type: bytes
    link: bytes


# Most entries of an archive have the same header block before their pax records.
@lru_cache(maxsize=64)
def decode_block(block: bytes) -> Block:
    """Decode one header block, not all zeros; raise ``WrongChecksum`` if it is not a header."""
    name, mode, uid, gid, size, mtime, checksum, kind, link, magic, prefix = _LAYOUT.unpack(block)
    # The checksum is computed with its own field filled with spaces.
    expected = _sum(block) - sum(checksum) + 8 * ord(" ")
    match = _OCTAL.fullmatch(checksum)
    if match is None or int(match[1] or b"0", 8) != expected:
        raise WrongChecksum("an entry of the archive has a wrong checksum")
    name = cut(name)
    if magic == _MAGIC_POSIX:
        if prefix := cut(prefix):
            name = prefix + b"/" + name
    elif magic not in (_MAGIC_GNU, _MAGIC_NONE):
        raise RemoteProtocolError("an entry of the archive is of an unknown tar variant")
    if plain := _PLAIN_NUMBERS.fullmatch(block[_NUMBERS]):
        numbers = [int(digits, 8) for digits in plain.groups()]
    else:
        if not size.strip(b" \0"):
            raise RemoteProtocolError("an entry of the archive has no size")
        numbers = [
            decode_number(mode, "mode"),
            decode_number(uid, "owner"),
            decode_number(gid, "group"),
            decode_number(size, "size"),
            decode_number(mtime, "time", signed=True),
        ]
    bits, owner, group, size_bytes, mtime_s = numbers
    if size_bytes > MAX_SIZE_BYTES:
        raise RemoteProtocolError("an entry of the archive is larger than any file can be")
    return Block(name, bits & 0o7777, owner, group, size_bytes, mtime_s, kind, cut(link))


def _sum(block: bytes) -> int:
    """Return the sum of a block's bytes.

    The lower half of Adler-32 is the sum plus one, modulo 65521, which 256 bytes cannot reach.
    """
    first, second = zlib.adler32(block[:256]), zlib.adler32(block[256:])
    return (first & 0xFFFF) + (second & 0xFFFF) - 2


def decode_number(field: bytes, field_name: str, *, signed: bool = False) -> int:
    """Decode a number field: octal digits, or GNU's binary form. A blank field is 0."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    if field[0] == 0xFF and signed:
        return int.from_bytes(field, "big", signed=True)
    match = _OCTAL.fullmatch(field)
    if match is None:
        raise RemoteProtocolError(f"an entry of the archive has an invalid {field_name}")
    return int(match[1] or b"0", 8)


def cut(field: bytes) -> bytes:
    """Return the part of a text field before its first NUL."""
    return field.partition(b"\0")[0]


def decode_records(data: bytes) -> dict[bytes, bytes]:
    """Decode the body of a pax extended header; a repeated keyword is an error."""
    records: dict[bytes, bytes] = {}
    position = 0
    while position < len(data):
        match = _RECORD_LENGTH.match(data, position)
        end = position + int(match[1]) if match else 0
        if match is None or not match.end() < end <= len(data) or data[end - 1] != ord("\n"):
            raise RemoteProtocolError("a pax header of the archive has a record of a wrong length")
        keyword, equals, value = data[match.end() : end - 1].partition(b"=")
        if not equals or not keyword:
            raise RemoteProtocolError("a pax header of the archive has an invalid record")
        if keyword in records:
            raise RemoteProtocolError("a pax header of the archive repeats a record")
        if keyword.startswith(_SPARSE_RECORDS):
            raise RemoteProtocolError(
                "the archive holds a sparse file in an unsupported format",
                hint="make the archive without tar's option --sparse",
            )
        records[keyword] = value
        position = end
    return records


def decode_decimal(value: bytes, field_name: str) -> int:
    """Decode a pax record's value as a number that is not negative."""
    if not _DECIMAL.fullmatch(value):
        raise RemoteProtocolError(f"a pax header of the archive has an invalid {field_name}")
    return int(value)


def decode_time(value: bytes) -> int:
    """Decode a pax record's value as a time: nanoseconds since 1970, rounded down."""
    match = _TIME.fullmatch(value)
    if match is None:
        raise RemoteProtocolError("a pax header of the archive has an invalid time")
    sign, seconds, fraction = match[1], match[2], match[3] or b""
    time_ns = int(seconds) * NS_PER_S + int(fraction[:9].ljust(9, b"0"))
    if not sign:
        return time_ns
    return -time_ns - bool(fraction[9:].strip(b"0"))


@lru_cache(maxsize=64)
def encode_block(
    name: bytes, kind: bytes, size: int, mode: int, uid: int, gid: int, mtime_s: int, link: bytes
) -> bytes:
    """Encode one header block. Texts are cut to fit; numbers that do not fit become binary."""
    block = _LAYOUT.pack(
        name,
        encode_number(mode, 8),
        encode_number(uid, 8),
        encode_number(gid, 8),
        encode_number(size, 12),
        encode_number(mtime_s, 12),
        b" " * 8,
        kind,
        link,
        _MAGIC_POSIX,
        b"",
    )
    return b"%s%06o\0 %s" % (block[:148], _sum(block), block[156:])


def encode_number(value: int, width: int) -> bytes:
    """Encode a number field of ``width`` bytes: octal, or GNU's binary form if it does not fit."""
    if 0 <= value < 8 ** (width - 1):
        return b"%0*o\0" % (width - 1, value)
    if value < 0:
        return value.to_bytes(width, "big", signed=True)
    return b"\x80" + value.to_bytes(width - 1, "big")


def fits_octal(value: int, width: int) -> bool:
    """Return whether a number field of ``width`` bytes can hold ``value`` in POSIX's octal form."""
    return 0 <= value < 1 << 3 * (width - 1)


def encode_record(keyword: bytes, value: bytes) -> bytes:
    """Encode one pax record. Its length includes its own digits."""
    rest = len(keyword) + len(value) + 3
    length = rest + len(str(rest))
    length = rest + len(str(length))
    return b"%d %s=%s\n" % (length, keyword, value)


def encode_time(time_ns: int) -> bytes:
    """Encode a time for a pax record; ``decode_time`` returns the same time."""
    seconds, fraction = divmod(abs(time_ns), NS_PER_S)
    text = f"{'-' if time_ns < 0 else ''}{seconds}.{fraction:09}"
    return text.rstrip("0").rstrip(".").encode("ascii")


# Writing an archive

END_OF_ARCHIVE: Final = bytes(2 * BLOCK_BYTES)

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


def encode_entry(entry: Entry) -> bytes:
    """Encode all headers of one entry."""
    if not entry.name or b"\0" in entry.name or b"\0" in entry.link:
        raise LocalProtocolError("a name is empty or holds a NUL")
    if not 0 <= entry.size_bytes <= MAX_SIZE_BYTES:
        raise LocalProtocolError("the size of an entry is out of range")
    name = entry.name
    if entry.kind is EntryType.DIRECTORY and not name.endswith(b"/"):
        name += b"/"
    size, uid, gid = entry.size_bytes, entry.uid, entry.gid
    mtime_s, fraction = divmod(entry.mtime_ns, NS_PER_S)
    records = b""
    if fraction or not fits_octal(mtime_s, 12):
        records = encode_record(b"mtime", encode_time(entry.mtime_ns))
    if len(name) > _NAME_BYTES or len(entry.link) > _NAME_BYTES:
        records += _text_records(name, entry.link)
    for keyword, value, width in ((b"size", size, 12), (b"uid", uid, 8), (b"gid", gid, 8)):
        if not fits_octal(value, width):
            records += encode_record(keyword, b"%d" % value)
    size = size if fits_octal(size, 12) else 0
    uid = uid if fits_octal(uid, 8) else 0
    gid = gid if fits_octal(gid, 8) else 0
    mtime_s = mtime_s if fits_octal(mtime_s, 12) else 0
    mode, kind = entry.mode & 0o7777, _TYPES[entry.kind]
    header = encode_block(name, kind, size, mode, uid, gid, mtime_s, entry.link)
    if not records:
        return header
    extension = encode_block(_PAX_NAME, b"x", len(records), 0o644, 0, 0, 0, b"")
    return extension + records + padding_after(len(records)) + header


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
    # Without this a reader may convert the names, as pax requires UTF-8 (POSIX, "hdrcharset").
    return records if is_utf8 else encode_record(b"hdrcharset", b"BINARY") + records
