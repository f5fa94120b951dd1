"""Reading archives block by block, and refusing bad ones."""

from __future__ import annotations

import re

import pytest

from pycrictl.base.errors import RemoteProtocolError, StreamError
from pycrictl.streams.wire.tar.header import BLOCK_BYTES, END_OF_ARCHIVE, Entry, EntryType
from pycrictl.streams.wire.tar.reader import (
    MAX_EXTENSION_BYTES,
    MAX_GLOBAL_HEADERS,
    MAX_TRAILER_BYTES,
    DataReceived,
    EntryFinished,
    EntryStarted,
    TarReader,
    read,
)
from tests.streams.wire.archives import NS, content_of, member, patch, pax


def violation(archive: bytes, *, eof: bool = False) -> str:
    reader = TarReader()
    reader.receive_data(archive)
    if eof:
        reader.receive_eof()
    assert isinstance(reader.error, StreamError)
    before = reader.error
    reader.receive_data(member() + END_OF_ARCHIVE)
    reader.receive_eof()
    assert reader.error is before
    return before.message


# Reading


def test_a_file() -> None:
    archive = member(b"dir/f", data=b"hello", mode=0o4755, uid=7, gid=8, mtime_s=9)
    assert list(read([archive + END_OF_ARCHIVE])) == [
        EntryStarted(Entry(b"dir/f", EntryType.FILE, 5, 0o4755, 9 * NS, 7, 8)),
        DataReceived(memoryview(b"hello")),
        EntryFinished(),
    ]


def test_content_is_not_copied() -> None:
    data = bytearray(member(size=2000) + bytes(2048))
    reader = TarReader()
    reader.receive_data(data)
    [_, received, _] = reader.events_received()
    assert isinstance(received, DataReceived)
    data[BLOCK_BYTES] = 1
    assert received.data[0] == 1
    assert len(received.data) == 2000


def test_empty_pieces_and_an_empty_archive() -> None:
    assert list(read([b"", END_OF_ARCHIVE, b"", bytes(8 * 512)])) == []


def test_kinds() -> None:
    """Only links have a target, whatever that field of other headers contains."""
    archive = b"".join(member(kind=b"%c" % type_, link=b"target") for type_ in b"\x0001234567")
    entries = [entry for entry, _ in content_of(archive + END_OF_ARCHIVE)]
    kinds = "FILE FILE HARDLINK SYMLINK CHARACTER BLOCK DIRECTORY FIFO FILE"
    assert " ".join(entry.kind.name for entry in entries) == kinds
    assert [entry.link for entry in entries] == [b"", b"", b"target", b"target", *[b""] * 5]


D, F, L = EntryType.DIRECTORY, EntryType.FILE, EntryType.SYMLINK
PREFIXED = patch(member(), 345, b"some/prefix")
LONG = b"n" * 120 + b"/"
GLOBAL = pax((b"comment", b"a hash"), kind=b"g") * MAX_GLOBAL_HEADERS
RECORDS = pax(
    (b"path", b"p\xff/q"),
    (b"linkpath", b"l"),
    (b"mtime", b"-1.25"),
    (b"uid", b"4294967296"),
    (b"gid", b"3"),
    (b"comment", b"nobody reads it"),
    (b"SCHILY.xattr.security.capability", b"\0\1"),
    (b"hdrcharset", b"BINARY"),
)
READ = {
    "prefix": (PREFIXED, Entry(b"some/prefix/name", F)),
    "GNU has times there": (patch(PREFIXED, 257, b"ustar  \0"), Entry(b"name", F)),
    "seventh edition": (patch(PREFIXED, 257, bytes(8)), Entry(b"name", F)),
    "a directory loses one slash": (member(b"d/", b"5"), Entry(b"d", D)),
    "and no more": (member(b"d//", b"5"), Entry(b"d/", D)),
    "the root none": (member(b"/", b"5"), Entry(b"/", D)),
    "nor a file": (member(b"f/"), Entry(b"f/", F)),
    "long name": (member(b"x", b"L", LONG + b"\0") + member(kind=b"\0"), Entry(LONG, F)),
    "global headers": (GLOBAL + member(b"f"), Entry(b"f", F)),
    "global headers between": (pax((b"path", b"p")) + GLOBAL + member(b"f"), Entry(b"p", F)),
    "label": (member(b"label", b"V") + member(b"f"), Entry(b"f", F)),
    "binary numbers": (member(uid=8**7, mtime_s=-5), Entry(b"name", F, 0, 0o644, -5 * NS, 8**7)),
    "blank numbers": (patch(member(uid=5), 108, bytes(16)), Entry(b"name", F)),
    "number with spaces": (patch(member(), 100, b"   644 \0"), Entry(b"name", F)),
    "pax records win": (
        RECORDS + member(b"short", b"2", link=b"x", uid=1, gid=2, mtime_s=9),
        Entry(b"p\xff/q", L, 0, 0o644, -1_250_000_000, 2**32, 3, b"l"),
    ),
}


@pytest.mark.parametrize(("blocks", "entry"), READ.values(), ids=READ.keys())
def test_one_entry(blocks: bytes, entry: Entry) -> None:
    assert content_of(blocks + END_OF_ARCHIVE) == [(entry, b"")]


def test_pax_size_counts_for_the_file_only() -> None:
    for in_header, between, name in (
        (0, b"", b"name"),
        (5, b"", b"name"),
        (0, member(b"x", b"L", b"a" * 150 + b"\0"), b"a" * 150),
    ):
        archive = pax((b"size", b"5")) + between + member(data=b"hello", size=in_header)
        [(entry, data)] = content_of(archive + END_OF_ARCHIVE)
        assert (entry.name, data) == (name, b"hello")


def test_records_do_not_reach_the_next_entry() -> None:
    archive = pax((b"path", b"first")) + member(b"x", b"K", b"link") + member(kind=b"2")
    first, second = content_of(archive + member(b"second") + END_OF_ARCHIVE)
    assert (first[0].name, first[0].link) == (b"first", b"link")
    assert (second[0].name, second[0].link) == (b"second", b"")


def test_a_large_size_is_binary() -> None:
    entry = Entry(b"name", F, 9 * 1024**3)
    assert next(read([member(size=entry.size_bytes)])) == EntryStarted(entry)


# Refused archives

LONG_SIZE = patch(member(), 124, b"\x80" + (2**63).to_bytes(11, "big"))
LINKPATH = (b"linkpath", b"x")
OTHERS = {
    "gzip": b"\x1f\x8b\x08",
    "bzip2": b"BZh91AY&SY",
    "xz": b"\xfd7zXZ\0",
    "zstd": b"\x28\xb5\x2f\xfd",
    "zip": b"PK\x03\x04",
    "7z": b"7z\xbc\xaf\x27\x1c",
    "cpio": b"070701",
}
REFUSED = {
    "text": (b"tar: not found\n".ljust(512, b"U"), "not a tar archive"),
    **{name: (magic.ljust(512, b"U"), f"archive but {name}$") for name, magic in OTHERS.items()},
    "checksum": (member() + patch(member(), 0, b"N", checksum=False), "checksum"),
    "no checksum": (member(b"f") + patch(member(), 148, bytes(8), checksum=False), "checksum"),
    "unknown variant": (member(b"f") + patch(member(), 257, b"ustar\x0099"), "variant"),
    "not octal": (member(b"f") + patch(member(), 100, b"0000648\0"), "invalid mode"),
    "binary minus": (member(b"f") + patch(member(), 124, b"\xff" * 12), "invalid size"),
    "negative owner": (member(b"f") + patch(member(), 108, b"\xff" * 8), "invalid owner"),
    "no size": (member(b"f") + patch(member(), 124, bytes(12)), "no size"),
    "huge": (member(b"f") + LONG_SIZE, "larger than any file"),
    "data on a directory": (member(kind=b"5", size=1), "directory of the archive has content"),
    "data on a label": (member(kind=b"V", size=1), "label"),
    "old sparse": (member(kind=b"S", size=512), "sparse"),
    "pax sparse": (pax((b"GNU.sparse.major", b"1")), "sparse"),
    "unknown type": (member(kind=b"M"), 'unknown type "M"'),
    "escape in a type": (member(kind=b"\x1b"), r'unknown type "\\x1b"'),
    "lone zero block": (bytes(512) + member(), "end mark"),
    "data after the end": (END_OF_ARCHIVE + b"x", "data after the end"),
    "second archive": (END_OF_ARCHIVE + member() + END_OF_ARCHIVE, "data after the end"),
    "endless end": (END_OF_ARCHIVE + bytes(MAX_TRAILER_BYTES + 1), "data after the end"),
    "end after a header": (pax((b"path", b"x")) + END_OF_ARCHIVE, "ends after an extended"),
    "empty pax": (member(kind=b"x"), "empty or too long"),
    "huge pax": (member(kind=b"x", size=MAX_EXTENSION_BYTES + 1), "empty or too long"),
    "huge name": (member(kind=b"L", size=2**40), "empty or too long"),
    "two pax": (pax((b"path", b"x")) * 2, "two pax headers"),
    "two long names": (member(b"x", b"L", b"x") * 2, "two long names"),
    "many global": (pax((b"a", b"b"), kind=b"g") * (MAX_GLOBAL_HEADERS + 1), "too many global"),
    "global path": (pax((b"path", b"x"), kind=b"g"), "global header"),
    "two names": (pax((b"path", b"x")) + member(b"x", b"L", b"y") + member(), "two names"),
    "two links": (pax(LINKPATH) + member(b"x", b"K", b"y") + member(kind=b"2"), "two names"),
    "link of a file": (pax(LINKPATH) + member(), "file of the archive has a link"),
    "NUL in a pax path": (pax((b"path", b"a\0b")) + member(), "NUL"),
    "NUL in a long name": (member(b"x", b"L", b"a\0b\0"), "NUL"),
    "two sizes": (pax((b"size", b"5")) + member(size=6), "two sizes"),
    "pax size huge": (pax((b"size", b"9223372036854775808")) + member(), "two sizes"),
    "pax size negative": (pax((b"size", b"-1")) + member(), "invalid size"),
    "pax uid": (pax((b"uid", b"-1")) + member(), "invalid owner"),
    "pax nan": (pax((b"mtime", b"nan")) + member(), "invalid time"),
    "pax size on a directory": (pax((b"size", b"5")) + member(kind=b"5"), "content"),
    "record twice": (pax((b"path", b"x"), (b"path", b"x")), "repeats a record"),
    "record length 0": (member(b"x", b"x", b"0 path=x\n"), "wrong length"),
    "record too long": (member(b"x", b"x", b"99 path=x\n"), "wrong length"),
    "record within its length": (member(b"x", b"x", b"2 path=x\n"), "wrong length"),
    "record without a length": (member(b"x", b"x", b"path=x\n"), "wrong length"),
    "record without =": (member(b"x", b"x", b"7 path\n"), "invalid record"),
    "record without a keyword": (member(b"x", b"x", b"5 =x\n"), "invalid record"),
    "slow length": (member(b"x", b"x", b"1" * 200_000), "wrong length"),
}


@pytest.mark.parametrize(("archive", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(archive: bytes, message: str) -> None:
    assert re.search(message, violation(archive)), violation(archive)


@pytest.mark.parametrize("length", [0, 1, 511, 512, 600, 1024, 1536, 2047])
def test_truncated(length: int) -> None:
    archive = member(data=b"hello") + END_OF_ARCHIVE
    assert len(archive) == 2048
    assert "too early" in violation(archive[:length], eof=True)


@pytest.mark.parametrize(("name", "magic"), OTHERS.items())
def test_other_formats(name: str, magic: bytes) -> None:
    """They are named even if shorter than a header; an entry's name is no sign of a format."""
    assert violation(magic, eof=True) == f"this is not a tar archive but {name}"
    first, *_ = read([member(magic) + END_OF_ARCHIVE])
    assert isinstance(first, EntryStarted)
    assert first.entry.name == magic.partition(b"\0")[0]


def test_events_before_an_error_are_delivered() -> None:
    reader = TarReader()
    reader.receive_data(member(b"good") + member(kind=b"S"))
    assert isinstance(reader.error, RemoteProtocolError)
    assert [type(event) for event in reader.events_received()] == [EntryStarted, EntryFinished]
