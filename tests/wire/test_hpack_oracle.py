"""Header compression against another implementation of RFC 7541, the library ``hpack``."""

from __future__ import annotations

import hpack as oracle
import pytest
from hpack.exceptions import HPACKError, OversizedHeaderListError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pycrictl.wire import hpack, limits
from pycrictl.wire.hpack import Header
from pycrictl.wire.http2 import Http2Error

# Some names and values come again and again, and some of them stand in the static table.
NAMES = st.sampled_from([b":path", b":status", b"content-type", b"x", b"x-longer-name"])
VALUES = st.sampled_from([b"200", b"/", b"application/grpc", b"y", b"\xff\0" * 20])
ANY_NAMES = st.binary(min_size=1, max_size=40)
ANY_VALUES = st.binary(max_size=200) | st.text(max_size=100).map(str.encode)
HEADERS = st.tuples(NAMES | ANY_NAMES, VALUES | ANY_VALUES)
SENSITIVE = st.tuples(NAMES | ANY_NAMES, VALUES | ANY_VALUES, st.booleans())
TABLE_BYTES = st.sampled_from([0, 32, 64, 100, 4096, 65536])


def plain(headers: object) -> list[Header]:
    assert isinstance(headers, list)
    return [(bytes(name), bytes(value)) for name, value in headers]


@given(
    st.lists(
        st.tuples(st.lists(SENSITIVE, max_size=8), st.booleans(), st.none() | TABLE_BYTES),
        max_size=8,
    )
)
def test_what_it_encodes_we_decode(
    blocks: list[tuple[list[tuple[bytes, bytes, bool]], bool, int | None]],
) -> None:
    """With a table that both keep over many blocks, changes of its size, and both codings."""
    encoder, decoder = oracle.Encoder(), hpack.Decoder()
    decoder.max_table_bytes = 65536
    for headers, is_huffman, table_bytes in blocks:
        if table_bytes is not None:
            encoder.header_table_size = table_bytes
        block = encoder.encode(headers, huffman=is_huffman)
        assert decoder.decode(block) == [(name, value) for name, value, _ in headers]


@given(st.lists(st.lists(HEADERS, max_size=8), max_size=4))
def test_what_we_encode_it_decodes(blocks: list[list[Header]]) -> None:
    decoder = oracle.Decoder()
    for headers in blocks:
        assert plain(decoder.decode(hpack.encode(headers), raw=True)) == headers


@st.composite
def damaged(draw: st.DrawFn) -> list[bytes]:
    """Blocks as an encoder makes them, then with some octets changed, taken or put in."""
    encoder = oracle.Encoder()
    blocks = []
    for headers in draw(st.lists(st.lists(HEADERS, max_size=4), min_size=1, max_size=4)):
        block = bytearray(encoder.encode(headers, huffman=draw(st.booleans())))
        for _ in range(draw(st.integers(0, 3))):
            pos = draw(st.integers(0, len(block)))
            taken = draw(st.integers(0, 2))
            block[pos : pos + taken] = draw(st.binary(max_size=3))
        blocks.append(bytes(block))
    return blocks


@given(st.lists(st.binary(max_size=64), min_size=1, max_size=4) | damaged())
@example([b"\x40\x01a\x01b", b"\xbe", b"\x20\xbe"])
@example([b"\x3f\xe1\x1f\x82", b"\x82\x20", b"\x20\x3f\xe1\x1f\x82"])
def test_any_blocks_are_understood_alike(blocks: list[bytes]) -> None:
    """Both find the same headers, or both refuse the block, which ends the connection."""
    ours, theirs = hpack.Decoder(), oracle.Decoder(max_header_list_size=limits.HEADER_LIST_BYTES)
    for block in blocks:
        expected = verdict_of(theirs, block)
        try:
            found = ours.decode(block)
        except Http2Error:
            assert expected is None
            return
        assert found == expected


def verdict_of(decoder: oracle.Decoder, block: bytes) -> list[Header] | None:
    """The headers, or None if the block is malformed."""
    try:
        return plain(decoder.decode(block, raw=True))
    except HPACKError:
        return None


@given(st.lists(st.integers(0, 255), max_size=60).map(bytes))
@settings(max_examples=300)
def test_huffman_code(text: bytes) -> None:
    coded = oracle.Encoder().huffman_coder.encode(text)
    assert hpack._huffman_decode(coded) == text


@given(st.integers(1, 40), st.integers(0, 4000), st.booleans())
def test_size_of_a_list_is_measured_alike(count: int, size: int, is_known: bool) -> None:
    """What one refuses the other does, to the byte."""
    field = (b"x" * 10, b"v" * size)
    block = hpack.encode([field]) * count
    theirs = oracle.Decoder(max_header_list_size=(limit := 50_000))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "HEADER_LIST_BYTES", limit)
        try:
            found = hpack.Decoder().decode(block)
        except (hpack.ListTooLarge, Http2Error):
            with pytest.raises(OversizedHeaderListError):
                theirs.decode(block)
            return
    assert found == plain(theirs.decode(block, raw=True)) == [field] * count
