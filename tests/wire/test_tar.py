from __future__ import annotations

import io
import os
import re
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.errors import LocalProtocolError, RemoteProtocolError, StreamError
from pycrictl.wire.tar import (
    MAX_EXTENSION_BYTES,
    MAX_GLOBAL_HEADERS,
    MAX_TRAILER_BYTES,
    ArchiveFinished,
    DataReceived,
    Entry,
    EntryFinished,
    EntryStarted,
    Event,
    Kind,
    TarReader,
)
from pycrictl.wire.tar_header import (
    BLOCK_BYTES,
    MAX_SIZE_BYTES,
    decode_number,
    decode_time,
    encode_block,
    encode_number,
    encode_record,
    encode_time,
)
from pycrictl.wire.tar_writer import (
    END_OF_ARCHIVE,
    MAX_HEADER_BYTES,
    encode_entry,
    padding_after,
)

DATA = Path(__file__).parent / "data"
NS = 10**9


def block(
    name: bytes = b"name",
    kind: bytes = b"0",
    *,
    size: int = 0,
    mode: int = 0o644,
    uid: int = 0,
    gid: int = 0,
    mtime_s: int = 0,
    link: bytes = b"",
) -> bytes:
    return encode_block(
        name, kind, size=size, mode=mode, uid=uid, gid=gid, mtime_s=mtime_s, link=link
    )


def patched(header: bytes, offset: int, data: bytes, *, checksum: bool = True) -> bytes:
    """``header`` with other bytes in one place and, if wanted, a checksum that is right again."""
    changed = bytearray(header)
    changed[offset : offset + len(data)] = data
    if checksum:
        changed[148:156] = b" " * 8
        changed[148:156] = b"%06o\0 " % sum(changed)
    return bytes(changed)


def signed(header: bytes) -> bytes:
    """``header``, which has one byte above 127, with the checksum of old programs."""
    return patched(header, 148, b"%06o" % (int(header[148:154], 8) - 256), checksum=False)


def body(data: bytes) -> bytes:
    return data + bytes(-len(data) % BLOCK_BYTES)


def extension(kind: bytes, data: bytes) -> bytes:
    return block(b"extension", kind, size=len(data)) + body(data)


def pax(*records: tuple[bytes, bytes], kind: bytes = b"x") -> bytes:
    return extension(kind, b"".join(encode_record(*record) for record in records))


def events_of(*pieces: bytes, eof: bool = True) -> list[Event]:
    reader = TarReader()
    events: list[Event] = []
    for piece in pieces:
        reader.receive_data(piece)
        events += reader.events_received()
    if eof:
        reader.receive_eof()
        events += reader.events_received()
    assert reader.error is None, reader.error.message
    return events


def content_of(archive: bytes, step: int = 0) -> list[tuple[Entry, bytes]]:
    """Entries and their contents, of an archive that is read whole or ``step`` bytes a time."""
    step = step or len(archive)
    pieces = [archive[start : start + step] for start in range(0, len(archive), step)]
    found: list[tuple[Entry, bytes]] = []
    data, is_open = b"", False
    events = events_of(*pieces)
    assert isinstance(events.pop(), ArchiveFinished)
    for event in events:
        if isinstance(event, EntryStarted):
            assert not is_open
            found.append((event.entry, b""))
            data, is_open = b"", True
        elif isinstance(event, DataReceived):
            assert is_open
            data += event.data
        else:
            assert isinstance(event, EntryFinished)
            entry, _ = found.pop()
            assert len(data) == entry.size_bytes
            found.append((entry, data))
            is_open = False
    assert not is_open
    return found


def only(*headers: bytes) -> Entry:
    """The one entry of an archive of these blocks."""
    [(entry, _)] = content_of(b"".join(headers) + END_OF_ARCHIVE)
    return entry


def violation(*pieces: bytes, eof: bool = False) -> str:
    reader = TarReader()
    for piece in pieces:
        reader.receive_data(piece)
    if eof:
        reader.receive_eof()
    assert isinstance(reader.error, StreamError)
    assert reader.is_finished
    before = reader.error
    reader.receive_data(block() + END_OF_ARCHIVE)
    reader.receive_eof()
    assert reader.error is before
    assert not any(isinstance(event, ArchiveFinished) for event in reader.events_received())
    return before.message


def packed(*members: tuple[Entry, bytes], busybox: bool = False) -> bytes:
    return (
        b"".join(
            encode_entry(entry, busybox=busybox) + content + padding_after(len(content))
            for entry, content in members
        )
        + END_OF_ARCHIVE
    )


# Reading


def test_a_file() -> None:
    header = block(b"dir/f", size=5, mode=0o4755, uid=7, gid=8, mtime_s=9)
    archive = header + body(b"hello") + END_OF_ARCHIVE
    events = events_of(archive)
    assert events == [
        EntryStarted(Entry(b"dir/f", Kind.FILE, 5, 0o4755, 9 * NS, 7, 8)),
        DataReceived(memoryview(b"hello")),
        EntryFinished(),
        ArchiveFinished(),
    ]


def test_content_is_not_copied() -> None:
    data = bytearray(block(size=2000) + bytes(2048))
    reader = TarReader()
    reader.receive_data(data)
    [_, received, _] = reader.events_received()
    assert isinstance(received, DataReceived)
    data[BLOCK_BYTES] = 1
    assert received.data[0] == 1
    assert len(received.data) == 2000


@pytest.mark.parametrize("step", [1, 7, 511, 512, 513, 4096])
def test_pieces_of_any_size(step: int) -> None:
    members = [
        (Entry(b"d", Kind.DIRECTORY, 0, 0o755, 1_500_000_001), b""),
        (Entry(b"d/" + b"x" * 200, Kind.FILE, 700, mtime_ns=3), b"7" * 700),
        (Entry(b"d/empty", Kind.FILE), b""),
        (Entry(b"d/block", Kind.FILE, 512), b"5" * 512),
        (Entry(b"d/l", Kind.SYMLINK, link=b"x" * 300), b""),
    ]
    assert content_of(packed(*members), step) == members
    assert content_of(packed(*members, busybox=True), step) == members


def test_empty_pieces_and_an_empty_archive() -> None:
    assert events_of(b"", END_OF_ARCHIVE, b"", bytes(8 * 512)) == [ArchiveFinished()]


@pytest.mark.parametrize(
    ("type_", "kind"),
    [
        (b"0", Kind.FILE),
        (b"\0", Kind.FILE),
        (b"7", Kind.FILE),
        (b"1", Kind.HARDLINK),
        (b"2", Kind.SYMLINK),
        (b"3", Kind.CHARACTER),
        (b"4", Kind.BLOCK),
        (b"5", Kind.DIRECTORY),
        (b"6", Kind.FIFO),
    ],
)
def test_kinds(type_: bytes, kind: Kind) -> None:
    entry = only(block(kind=type_, link=b"target"))
    assert entry.kind is kind
    assert entry.link == (b"target" if kind in (Kind.HARDLINK, Kind.SYMLINK) else b"")


def test_variants_of_the_header() -> None:
    prefixed = patched(block(b"name"), 345, b"some/prefix")
    assert only(prefixed).name == b"some/prefix/name"
    assert only(patched(prefixed, 257, b"ustar  \0")).name == b"name"  # GNU has times there
    assert only(patched(prefixed, 257, bytes(8))).name == b"name"


def test_a_directory_loses_one_slash_and_a_file_none() -> None:
    assert only(block(b"d/", b"5")).name == b"d"
    assert only(block(b"d//", b"5")).name == b"d/"
    assert only(block(b"/", b"5")).name == b"/"
    assert only(block(b"f/")).name == b"f/"
    assert only(extension(b"L", b"n" * 120 + b"/\0"), block(kind=b"\0")).name == b"n" * 120 + b"/"


def test_pax_records_win() -> None:
    records = pax(
        (b"path", b"p\xff/q"),
        (b"linkpath", b"l"),
        (b"mtime", b"-1.25"),
        (b"uid", b"4294967296"),
        (b"gid", b"3"),
        (b"comment", b"nobody reads it"),
        (b"SCHILY.xattr.security.capability", b"\0\1"),
        (b"hdrcharset", b"BINARY"),
    )
    entry = only(records, block(b"short", b"2", link=b"x", uid=1, gid=2, mtime_s=9))
    assert entry == Entry(b"p\xff/q", Kind.SYMLINK, 0, 0o644, -1_250_000_000, 2**32, 3, link=b"l")


def test_pax_size_counts_for_the_file_only() -> None:
    for in_header in (0, 5):
        archive = pax((b"size", b"5")) + block(size=in_header) + body(b"hello") + END_OF_ARCHIVE
        assert content_of(archive)[0][1] == b"hello"
    long = pax((b"size", b"5")) + extension(b"L", b"a" * 150 + b"\0") + block() + body(b"hello")
    [(entry, data)] = content_of(long + END_OF_ARCHIVE)
    assert (entry.name, data) == (b"a" * 150, b"hello")


def test_records_do_not_reach_the_next_entry() -> None:
    archive = pax((b"path", b"first")) + extension(b"K", b"link") + block(kind=b"2")
    first, second = content_of(archive + block(b"second") + END_OF_ARCHIVE)
    assert (first[0].name, first[0].link) == (b"first", b"link")
    assert (second[0].name, second[0].link) == (b"second", b"")


def test_global_headers_and_labels_are_passed_over() -> None:
    archive = [pax((b"comment", b"a hash"), kind=b"g")] * MAX_GLOBAL_HEADERS
    label = block(b"label", b"V")
    assert only(*archive, label, block(b"f")).name == b"f"
    assert only(pax((b"path", b"p")), *archive, block(b"f")).name == b"p"


def test_binary_numbers() -> None:
    assert only(block(uid=8**7, mtime_s=-5)) == Entry(
        b"name", Kind.FILE, mtime_ns=-5 * NS, uid=8**7
    )
    [started] = events_of(block(size=9 * 1024**3), eof=False)
    assert isinstance(started, EntryStarted)
    assert started.entry.size_bytes == 9 * 1024**3


def test_blank_numbers_are_0() -> None:
    assert only(patched(block(uid=5), 108, bytes(16))) == Entry(b"name", Kind.FILE)
    assert only(patched(block(), 100, b"   644 \0")) == Entry(b"name", Kind.FILE)


# What is refused

LONG_SIZE = patched(block(), 124, b"\x80" + (2**63).to_bytes(11, "big"))

REFUSED = {
    "checksum": (block() + patched(block(), 0, b"N", checksum=False), "checksum"),
    "no checksum": (block(b"f") + patched(block(), 148, bytes(8), checksum=False), "checksum"),
    "signed checksum": (block(b"f") + signed(block(b"\xff")), "wrong checksum"),
    "unknown variant": (block(b"f") + patched(block(), 257, b"ustar\x0099"), "variant"),
    "not octal": (block(b"f") + patched(block(), 100, b"0000648\0"), "invalid mode"),
    "after NUL": (block(b"f") + patched(block(), 108, b"000\x00001\0"), "invalid owner"),
    "plus": (block(b"f") + patched(block(), 116, b"+000644\0"), "invalid group"),
    "minus": (block(b"f") + patched(block(), 124, b"-0000000001\0"), "invalid size"),
    "binary minus": (block(b"f") + patched(block(), 124, b"\xff" * 12), "invalid size"),
    "negative owner": (block(b"f") + patched(block(), 108, b"\xff" * 8), "invalid owner"),
    "underscore": (block(b"f") + patched(block(), 124, b"00000000_01\0"), "invalid size"),
    "no size": (block(b"f") + patched(block(), 124, bytes(12)), "no size"),
    "huge": (block(b"f") + LONG_SIZE, "larger than any file"),
    "data on a directory": (block(kind=b"5", size=1), "directory of the archive has content"),
    "data on a link": (block(kind=b"2", size=1, link=b"x"), "symbolic link of the archive has"),
    "data on a hard link": (block(kind=b"1", size=1, link=b"x"), "hard link of the archive has"),
    "data on a device": (block(kind=b"3", size=1), "character device of the archive has"),
    "data on a pipe": (block(kind=b"6", size=1), "named pipe of the archive has content"),
    "data on a label": (block(kind=b"V", size=1), "label"),
    "old sparse": (block(kind=b"S", size=512), "sparse"),
    "pax sparse": (pax((b"GNU.sparse.major", b"1")), "sparse"),
    "star sparse": (pax((b"SCHILY.realsize", b"1")), "sparse"),
    "unknown type": (block(kind=b"M"), "unknown type 'M'"),
    "escape in a type": (block(kind=b"\x1b"), r"unknown type '\\x1b'"),
    "lone zero block": (bytes(512) + block(), "end mark"),
    "data after the end": (END_OF_ARCHIVE + b"x", "follows the end"),
    "second archive": (END_OF_ARCHIVE + block() + END_OF_ARCHIVE, "follows the end"),
    "endless end": (END_OF_ARCHIVE + bytes(MAX_TRAILER_BYTES + 1), "follows the end"),
    "end after a header": (pax((b"path", b"x")) + END_OF_ARCHIVE, "ends after an extended"),
    "empty pax": (block(kind=b"x"), "empty or too long"),
    "huge pax": (block(kind=b"x", size=MAX_EXTENSION_BYTES + 1), "empty or too long"),
    "huge name": (block(kind=b"L", size=2**40), "empty or too long"),
    "two pax": (pax((b"path", b"x")) * 2, "two pax headers"),
    "two long names": (extension(b"L", b"x") * 2, "two long names"),
    "two long links": (extension(b"K", b"x") * 2, "two long link names"),
    "many global": (pax((b"a", b"b"), kind=b"g") * (MAX_GLOBAL_HEADERS + 1), "too many global"),
    "global path": (pax((b"path", b"x"), kind=b"g"), "global header"),
    "global size": (pax((b"size", b"1"), kind=b"g"), "global header"),
    "global mtime": (pax((b"mtime", b"1"), kind=b"g"), "global header"),
    "two names": (pax((b"path", b"x")) + extension(b"L", b"y") + block(), "two names"),
    "two links": (
        pax((b"linkpath", b"x")) + extension(b"K", b"y") + block(kind=b"2"),
        "two names",
    ),
    "link of a file": (pax((b"linkpath", b"x")) + block(), "file of the archive has a link"),
    "long link of a file": (extension(b"K", b"x") + block(), "file of the archive has a link"),
    "NUL in a pax path": (pax((b"path", b"a\0b")) + block(), "NUL"),
    "NUL in a pax link": (pax((b"linkpath", b"a\0b")) + block(kind=b"2"), "NUL"),
    "NUL in a long name": (extension(b"L", b"a\0b\0"), "NUL"),
    "two sizes": (pax((b"size", b"5")) + block(size=6), "two sizes"),
    "pax size huge": (pax((b"size", b"9223372036854775808")) + block(), "two sizes"),
    "pax size negative": (pax((b"size", b"-1")) + block(), "invalid size"),
    "pax size float": (pax((b"size", b"1e3")) + block(), "invalid size"),
    "pax size blank": (pax((b"size", b"")) + block(), "invalid size"),
    "pax size long": (pax((b"size", b"9" * 30)) + block(), "invalid size"),
    "pax uid": (pax((b"uid", b"-1")) + block(), "invalid owner"),
    "pax gid": (pax((b"gid", b"0x1")) + block(), "invalid group"),
    "pax nan": (pax((b"mtime", b"nan")) + block(), "invalid time"),
    "pax inf": (pax((b"mtime", b"inf")) + block(), "invalid time"),
    "pax exponent": (pax((b"mtime", b"1e9")) + block(), "invalid time"),
    "pax size on a directory": (pax((b"size", b"5")) + block(kind=b"5"), "content"),
    "record twice": (pax((b"path", b"x"), (b"path", b"x")), "twice"),
    "record length 0": (extension(b"x", b"0 path=x\n"), "wrong length"),
    "record too long": (extension(b"x", b"99 path=x\n"), "wrong length"),
    "record too short": (extension(b"x", b"5 path=x\n"), "wrong length"),
    "record within its length": (extension(b"x", b"2 path=x\n"), "wrong length"),
    "record without a length": (extension(b"x", b"path=x\n"), "wrong length"),
    "record without a line end": (extension(b"x", b"10 path=xyz"), "wrong length"),
    "record with zeros": (extension(b"x", b"009 path=x\n"), "wrong length"),
    "record without =": (extension(b"x", b"7 path\n"), "invalid record"),
    "record without a keyword": (extension(b"x", b"5 =x\n"), "invalid record"),
    "slow length": (extension(b"x", b"1" * 200_000), "wrong length"),
}


@pytest.mark.parametrize(("archive", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(archive: bytes, message: str) -> None:
    assert re.search(message, violation(archive)), violation(archive)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x1f\x8b\x08", "compressed \\(gzip\\)"),
        (b"BZh91AY&SY", "compressed \\(bzip2\\)"),
        (b"\xfd7zXZ\0", "compressed \\(xz\\)"),
        (b"\x28\xb5\x2f\xfd", "compressed \\(zstd\\)"),
        (b"PK\x03\x04", "compressed \\(zip\\)"),
        (b"tar: not found\n", "not a tar archive"),
    ],
)
def test_no_archive_at_all(data: bytes, message: str) -> None:
    with pytest.raises(StreamError, match=message):
        raise StreamError(violation(data.ljust(512, b"\x55")))


@pytest.mark.parametrize("length", [0, 1, 511, 512, 600, 1024, 1536, 2047])
def test_truncated(length: int) -> None:
    archive = block(size=5) + body(b"hello") + END_OF_ARCHIVE
    assert len(archive) == 2048
    assert "too early" in violation(archive[:length], eof=True)


def test_the_end_of_an_ended_archive_is_told_once() -> None:
    reader = TarReader()
    reader.receive_data(END_OF_ARCHIVE)
    reader.receive_eof()
    reader.receive_eof()
    assert reader.events_received() == [ArchiveFinished()]
    assert reader.is_finished


def test_events_before_an_error_are_delivered() -> None:
    reader = TarReader()
    reader.receive_data(block(b"good") + block(kind=b"S"))
    assert isinstance(reader.error, RemoteProtocolError)
    assert [type(event) for event in reader.events_received()] == [EntryStarted, EntryFinished]


@given(st.binary(max_size=3000), st.booleans())
def test_any_bytes_give_an_error_or_events(data: bytes, is_headed: bool) -> None:
    reader = TarReader()
    reader.receive_data(block(size=100) + data if is_headed else data)
    reader.receive_eof()
    assert reader.is_finished
    reader.events_received()


@given(st.data())
def test_a_changed_archive_gives_an_error_or_events(data: st.DataObject) -> None:
    archive = bytearray(
        pax((b"path", b"p"), (b"mtime", b"1.5"))
        + extension(b"K", b"target")
        + block(kind=b"2")
        + block(size=5)
        + body(b"hello")
        + END_OF_ARCHIVE
    )
    for _ in range(data.draw(st.integers(1, 4))):
        archive[data.draw(st.integers(0, len(archive) - 1))] = data.draw(st.integers(0, 255))
    reader = TarReader()
    reader.receive_data(archive)
    reader.receive_eof()
    assert reader.is_finished
    for event in reader.events_received():
        if isinstance(event, EntryStarted):
            assert 0 <= event.entry.size_bytes <= MAX_SIZE_BYTES
            assert event.entry.uid >= 0


# Writing

NAMES = st.binary(min_size=1, max_size=4000).filter(lambda name: b"\0" not in name)
ENTRIES = st.builds(
    Entry,
    NAMES.map(lambda name: name.rstrip(b"/") or b"x"),
    st.sampled_from([Kind.DIRECTORY, Kind.SYMLINK, Kind.HARDLINK, Kind.FIFO, Kind.CHARACTER]),
    st.just(0),
    st.integers(0, 0o7777),
    st.integers(-(2**70), 2**70),
    st.integers(0, 2**40),
    st.integers(0, 2**40),
    NAMES,
)


@given(ENTRIES, st.integers(1, 2000), st.booleans())
def test_what_is_written_is_read(entry: Entry, step: int, busybox: bool) -> None:
    if entry.kind not in (Kind.SYMLINK, Kind.HARDLINK):
        entry = Entry(entry.name, entry.kind, 0, entry.mode, entry.mtime_ns, entry.uid, entry.gid)
    assert content_of(packed((entry, b""), busybox=busybox), step) == [(entry, b"")]


@given(st.binary(max_size=2000), st.booleans())
def test_content_is_read_back(content: bytes, busybox: bool) -> None:
    members = [(Entry(b"f", Kind.FILE, len(content)), content), (Entry(b"g", Kind.FILE), b"")]
    assert content_of(packed(*members, busybox=busybox), 700) == members


def test_a_plain_entry_needs_one_block() -> None:
    assert len(encode_entry(Entry(b"n" * 100, Kind.FILE, 8**11 - 1, 0o644, 5 * NS))) == 512


@pytest.mark.parametrize("busybox", [False, True])
def test_the_largest_header(busybox: bool) -> None:
    entry = Entry(b"\xff" * 4095, Kind.SYMLINK, 0, 0, -1, 2**32, 2**32, b"\xfe" * 4095)
    assert len(encode_entry(entry, busybox=busybox)) <= MAX_HEADER_BYTES


@pytest.mark.parametrize("busybox", [False, True])
def test_the_largest_file(busybox: bool) -> None:
    entry = Entry(b"f", Kind.FILE, MAX_SIZE_BYTES)
    [started] = events_of(encode_entry(entry, busybox=busybox), eof=False)
    assert started == EntryStarted(entry)


@pytest.mark.parametrize(
    "entry",
    [
        Entry(b"", Kind.FILE),
        Entry(b"a\0", Kind.FILE),
        Entry(b"a", Kind.SYMLINK, link=b"\0"),
        Entry(b"a", Kind.FILE, -1),
        Entry(b"a", Kind.FILE, 2**63),
    ],
)
def test_what_no_archive_can_hold(entry: Entry) -> None:
    with pytest.raises(LocalProtocolError):
        encode_entry(entry)


@given(st.integers(-(2**80), 2**80))
def test_times_are_exact(time_ns: int) -> None:
    text = encode_time(time_ns)
    if len(text.lstrip(b"-").partition(b".")[0]) <= 20:
        assert decode_time(text) == time_ns


def test_times_of_others() -> None:
    assert decode_time(b"1") == NS
    assert decode_time(b"1.") == NS
    assert decode_time(b"1.1234567899") == 1_123_456_789
    assert decode_time(b"-1.0000000001") == -NS - 1
    assert encode_time(NS) == b"1"
    assert encode_time(-1) == b"-0.000000001"


@given(st.integers(-(2**56), 2**63))
def test_numbers_are_exact(value: int) -> None:
    field = encode_number(value, 12)
    assert len(field) == 12
    assert decode_number(field, "number", signed=True) == value


@pytest.mark.parametrize("length", [1, 4, 5, 6, 93, 94, 95, 96, 991, 992, 993, 9980, 9990, 99_990])
def test_a_record_counts_its_own_length(length: int) -> None:
    record = encode_record(b"k", b"v" * length)
    assert int(record.partition(b" ")[0]) == len(record)


# Other programs

MTIME_NS = 1_700_000_000_123_456_789
LONG = b"n" * 255
DEEP = b"/".join([b"p" * 60] * 4)


FILES = {
    b"f": b"hello",
    b"\xff\xfe bytes": b"odd",
    LONG: b"long",
    DEEP + b"/deep": b"deep",
}


def make_tree(top: Path) -> None:
    """Names and kinds that every tar knows, in ``top``/d."""
    folder = top / "d"
    (folder / "sub").mkdir(parents=True)
    (folder / os.fsdecode(DEEP)).mkdir(parents=True)
    for name, content in FILES.items():
        (folder / os.fsdecode(name)).write_bytes(content)
    (folder / "hard").hardlink_to(folder / "f")
    (folder / "link").symlink_to("f")
    for path in (*folder.rglob("*"), folder):
        os.utime(path, ns=(MTIME_NS, MTIME_NS), follow_symlinks=False)


def check_tree(archive: bytes, *, exact_times: bool = True) -> None:
    """What is read is the tree of ``make_tree``."""
    found = {entry.name: (entry, data) for entry, data in content_of(archive, 10_240)}
    directories = {b"d", b"d/sub", *(b"d/" + DEEP[:end] for end in (60, 121, 182, 243))}
    files = {
        b"d/\xff\xfe bytes": b"odd",
        b"d/" + LONG: b"long",
        b"d/" + DEEP + b"/deep": b"deep",
    }
    assert set(found) == {*directories, *files, b"d/f", b"d/hard", b"d/link"}
    for name, content in files.items():
        assert found[name][0].kind is Kind.FILE
        assert found[name][1] == content
    assert all(found[name][0].kind is Kind.DIRECTORY for name in directories)
    assert found[b"d/link"][0].kind is Kind.SYMLINK
    assert found[b"d/link"][0].link == b"f"
    linked = sorted(
        (found[name][0].kind.value, found[name][0].link, found[name][1])
        for name in (b"d/f", b"d/hard")
    )
    assert linked[0] == ("file", b"", b"hello")
    assert linked[1][0] == "hard link"
    assert linked[1][1] in (b"d/f", b"d/hard")
    wanted = MTIME_NS if exact_times else MTIME_NS // NS * NS
    assert {entry.mtime_ns for entry, _ in found.values()} == {wanted}


@pytest.mark.parametrize("tar_format", ["posix", "gnu"])
def test_gnu_tar_is_read(tmp_path: Path, tar_format: str) -> None:
    make_tree(tmp_path)
    archive = subprocess.run(
        ["tar", f"--format={tar_format}", "-C", tmp_path, "-cf", "-", "d"],
        check=True,
        capture_output=True,
    ).stdout
    check_tree(archive, exact_times=tar_format == "posix")


def test_busybox_is_read(tmp_path: Path) -> None:
    make_tree(tmp_path)
    command = ["busybox", "tar", "-C", str(tmp_path), "-cf", "-", "d"]
    archive = subprocess.run(command, check=True, capture_output=True).stdout
    check_tree(archive, exact_times=False)


@pytest.mark.parametrize("tar_format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_python_is_read(tmp_path: Path, tar_format: int) -> None:
    make_tree(tmp_path)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tar_format) as archive:
        archive.add(tmp_path / "d", "d")
    found = {entry.name: entry for entry, _ in content_of(buffer.getvalue())}
    assert found[b"d/\xff\xfe bytes"].size_bytes == 3
    assert found[b"d/" + LONG].kind is Kind.FILE
    assert found[b"d/link"].link == b"f"


@pytest.mark.parametrize("name", ["bsdtar-pax.tar", "bsdtar-gnutar.tar"])
def test_bsdtar_is_read(name: str) -> None:
    check_tree((DATA / name).read_bytes(), exact_times="pax" in name)


@pytest.mark.parametrize("old_format", ["v7", "oldgnu", "ustar"])
def test_old_formats_of_gnu_tar_are_read(tmp_path: Path, old_format: str) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").write_bytes(b"hello")
    archive = subprocess.run(
        ["tar", f"--format={old_format}", "-C", tmp_path, "-cf", "-", "d"],
        check=True,
        capture_output=True,
    ).stdout
    found = {entry.name: (entry.kind, data) for entry, data in content_of(archive)}
    assert found == {b"d": (Kind.DIRECTORY, b""), b"d/f": (Kind.FILE, b"hello")}


def written_tree(*, busybox: bool) -> bytes:
    """The tree of ``make_tree``, as this program writes it."""
    folders = [b"d", b"d/sub", *(b"d/" + DEEP[:end] for end in (60, 121, 182, 243))]
    members = [(Entry(name, Kind.DIRECTORY, 0, 0o755, MTIME_NS), b"") for name in folders]
    for name, content in FILES.items():
        members.append((Entry(b"d/" + name, Kind.FILE, len(content), 0o644, MTIME_NS), content))
    members.append((Entry(b"d/hard", Kind.HARDLINK, 0, 0o644, MTIME_NS, link=b"d/f"), b""))
    members.append((Entry(b"d/link", Kind.SYMLINK, 0, 0o777, MTIME_NS, link=b"f"), b""))
    # What a directory holds follows it at once, but a hard link follows its file.
    members.sort(key=lambda member: member[0].name.replace(b"d/hard", b"d/g"))
    return packed(*members, busybox=busybox)


def listing(top: Path, *, exact_times: bool) -> dict[str, tuple[object, ...]]:
    found: dict[str, tuple[object, ...]] = {}
    for path in top.rglob("*"):
        status = path.lstat()
        content: object = None
        if path.is_symlink():
            content = path.readlink()
        elif path.is_file():
            content = (status.st_nlink, path.read_bytes())
        time = status.st_mtime_ns if exact_times else status.st_mtime_ns // NS
        found[str(path.relative_to(top))] = (status.st_mode, time, content)
    return found


@pytest.mark.parametrize("busybox", [False, True])
def test_gnu_tar_reads_what_is_written(tmp_path: Path, busybox: bool) -> None:
    made, read = tmp_path / "made", tmp_path / "read"
    made.mkdir()
    read.mkdir()
    make_tree(made)
    result = subprocess.run(
        ["tar", "-C", read, "-xpf", "-"],
        input=written_tree(busybox=busybox),
        check=True,
        capture_output=True,
    )
    assert result.stderr == b""
    assert listing(read, exact_times=True) == listing(made, exact_times=True)


def test_busybox_reads_what_is_written_for_it(tmp_path: Path) -> None:
    made, read = tmp_path / "made", tmp_path / "read"
    made.mkdir()
    read.mkdir()
    make_tree(made)
    subprocess.run(
        ["busybox", "tar", "-C", read, "-xpf", "-"], input=written_tree(busybox=True), check=True
    )
    wanted, found = listing(made, exact_times=False), listing(read, exact_times=False)
    assert {name: (kept[0], kept[2]) for name, kept in found.items()} == {
        name: (kept[0], kept[2]) for name, kept in wanted.items()
    }
    # BusyBox keeps the times of files only.
    assert found["d/f"] == wanted["d/f"]


@pytest.mark.parametrize("busybox", [False, True])
def test_python_reads_what_is_written(busybox: bool) -> None:
    with tarfile.open(fileobj=io.BytesIO(written_tree(busybox=busybox))) as archive:
        members = {os.fsencode(member.name): member for member in archive.getmembers()}
    assert members[b"d/\xff\xfe bytes"].size == 3
    assert members[b"d/" + LONG].isreg()
    assert members[b"d/hard"].islnk()
    assert members[b"d/link"].linkname == "f"
    assert {member.mtime for member in members.values()} == {MTIME_NS / NS}


def test_large_numbers_are_read_by_gnu_tar() -> None:
    entry = Entry(b"f", Kind.DIRECTORY, 0, 0o755, -5 * NS, 3_000_000, 4_000_000)
    listed = subprocess.run(
        ["tar", "--numeric-owner", "--utc", "-tvf", "-"],
        input=packed((entry, b"")),
        check=True,
        capture_output=True,
        text=False,
    ).stdout
    assert b"3000000/4000000" in listed
    assert b"1969-12-31 23:59" in listed
