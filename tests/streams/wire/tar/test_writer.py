"""Writing archives, and the fields of their headers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.base.errors import LocalProtocolError
from pycrictl.streams.wire.tar.header import (
    MAX_SIZE_BYTES,
    Entry,
    EntryType,
    decode_time,
    encode_entry,
    encode_record,
    encode_time,
)
from pycrictl.streams.wire.tar.reader import EntryStarted, read
from tests.streams.wire.archives import NS, content_of, packed

NAMES = st.binary(min_size=1, max_size=4000).filter(lambda name: b"\0" not in name)
ENTRIES = st.builds(
    Entry,
    NAMES.map(lambda name: name.rstrip(b"/") or b"x"),
    st.sampled_from([kind for kind in EntryType if kind is not EntryType.FILE]),
    st.just(0),
    st.integers(0, 0o7777),
    st.integers(-(2**70), 2**70),
    st.integers(0, 2**40),
    st.integers(0, 2**40),
    NAMES,
)


@given(ENTRIES, st.integers(1, 2000))
def test_what_is_written_is_read(entry: Entry, step: int) -> None:
    if entry.kind not in (EntryType.SYMLINK, EntryType.HARDLINK):
        entry = entry._replace(link=b"")
    assert content_of(packed((entry, b"")), step) == [(entry, b"")]


@given(st.binary(max_size=2000))
def test_content_is_read_back(content: bytes) -> None:
    members = [
        (Entry(b"f", EntryType.FILE, len(content)), content),
        (Entry(b"g", EntryType.FILE), b""),
    ]
    assert content_of(packed(*members), 700) == members


def test_a_plain_entry_needs_one_block() -> None:
    assert len(encode_entry(Entry(b"n" * 100, EntryType.FILE, 8**11 - 1, 0o644, 5 * NS))) == 512


def test_the_largest_header_and_file() -> None:
    entry = Entry(b"\xff" * 4095, EntryType.SYMLINK, 0, 0, -1, 2**32, 2**32, b"\xfe" * 4095)
    assert len(encode_entry(entry)) <= 16 * 1024
    entry = Entry(b"f", EntryType.FILE, MAX_SIZE_BYTES)
    assert next(read([encode_entry(entry)])) == EntryStarted(entry)


@pytest.mark.parametrize(
    "entry",
    [
        Entry(b"", EntryType.FILE),
        Entry(b"a\0", EntryType.FILE),
        Entry(b"a", EntryType.SYMLINK, link=b"\0"),
        Entry(b"a", EntryType.FILE, -1),
        Entry(b"a", EntryType.FILE, 2**63),
    ],
)
def test_what_no_archive_can_hold(entry: Entry) -> None:
    with pytest.raises(LocalProtocolError):
        encode_entry(entry)


def test_times_of_others() -> None:
    assert decode_time(b"1") == NS
    assert decode_time(b"1.") == NS
    assert decode_time(b"1.1234567899") == 1_123_456_789
    assert decode_time(b"-1.0000000001") == -NS - 1
    assert encode_time(NS) == b"1"
    assert encode_time(-1) == b"-0.000000001"


@pytest.mark.parametrize("length", [1, 4, 5, 6, 93, 94, 95, 96, 991, 992, 993, 9980, 9990, 99_990])
def test_a_record_counts_its_own_length(length: int) -> None:
    record = encode_record(b"k", b"v" * length)
    assert int(record.partition(b" ")[0]) == len(record)
