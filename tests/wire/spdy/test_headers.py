from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.errors import RemoteProtocolError
from pycrictl.wire.spdy.headers import (
    DICTIONARY,
    MAX_BLOCK_BYTES,
    MAX_FIELDS,
    HeaderCompressor,
    HeaderDecompressor,
    HeaderFields,
)

names = st.text(st.characters(codec="ascii", exclude_categories=["Lu", "C", "Z"]), min_size=1)
values = st.text(st.characters(codec="iso-8859-1", exclude_characters="\0"), max_size=50)


def packed(*texts: bytes, count: int | None = None) -> bytes:
    """A block before its compression; ``count`` is what it says about itself."""
    number = len(texts) // 2 if count is None else count
    return struct.pack(">I", number) + b"".join(struct.pack(">I", len(t)) + t for t in texts)


def compressed(block: bytes, *, dictionary: bytes = DICTIONARY) -> bytes:
    compressor = zlib.compressobj(zdict=dictionary)
    return compressor.compress(block) + compressor.flush(zlib.Z_SYNC_FLUSH)


def refusal_of(data: bytes) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        HeaderDecompressor().decompress(data)
    return caught.value.message


def test_the_dictionary_is_the_protocols() -> None:
    # Its length, and the checksum that zlib writes at the beginning of every stream.
    assert len(DICTIONARY) == 1423
    assert zlib.adler32(DICTIONARY) == 0xE3C6A7C2
    assert HeaderCompressor().compress(())[2:6] == bytes.fromhex("e3c6a7c2")


def test_blocks_are_a_chain() -> None:
    compressor, decompressor = HeaderCompressor(), HeaderDecompressor()
    fields: HeaderFields = (("streamtype", "data"), ("port", "8080"), ("requestid", "7"))
    first, second = compressor.compress(fields), compressor.compress(fields)
    assert len(second) < len(first)
    assert decompressor.decompress(first) == fields
    assert decompressor.decompress(second) == fields
    assert refusal_of(second) == "a SPDY header block cannot be decompressed"


@given(st.lists(st.dictionaries(names, values, max_size=5), max_size=5))
def test_any_headers(blocks: list[dict[str, str]]) -> None:
    compressor, decompressor = HeaderCompressor(), HeaderDecompressor()
    for block in blocks:
        fields = tuple(block.items())
        assert decompressor.decompress(compressor.compress(fields)) == fields


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (b"", "a SPDY header block is cut off"),
        (b"\0\0\0", "a SPDY header block is cut off"),
        (packed(count=1), "a SPDY header block is cut off"),
        (packed(b"a", b"b")[:-1], "a SPDY header block has a wrong length"),
        (packed(b"a", b"b") + b"x", "a SPDY header block has a wrong length"),
        (packed(b"a") + b"\xff\xff\xff\xff", "a SPDY header block has a wrong length"),
        (packed(b"a", b"1", b"a", b"2"), "invalid header in a SPDY frame"),
        (packed(b"A", b"1"), "invalid header in a SPDY frame"),
        (packed(b"", b"1"), "invalid header in a SPDY frame"),
        (packed(b"a\0", b"1"), "invalid header in a SPDY frame"),
        (packed(count=MAX_FIELDS + 1), "too many headers in a SPDY frame"),
        (packed(count=2**32 - 1), "too many headers in a SPDY frame"),
        (packed(b"a", bytes(MAX_BLOCK_BYTES)), "too long a SPDY header block"),
    ],
)
def test_a_block_that_is_none(block: bytes, reason: str) -> None:
    assert refusal_of(compressed(block)) == reason


def test_a_bomb_is_not_decompressed() -> None:
    bomb = compressed(bytes(50 << 20))
    assert len(bomb) < 65536
    decompressor = HeaderDecompressor()
    with pytest.raises(RemoteProtocolError) as caught:
        decompressor.decompress(bomb)
    assert caught.value.message == "too long a SPDY header block"


@pytest.mark.parametrize(
    "data", [b"nonsense", compressed(packed(), dictionary=b"another"), zlib.compress(b"x")[:1]]
)
def test_what_is_not_compressed_so(data: bytes) -> None:
    assert refusal_of(data).startswith("a SPDY header block")
