"""Header compression, against the examples of RFC 7541, appendix C."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.errors import RemoteProtocolError
from pycrictl.wire import limits
from pycrictl.wire.hpack import Decoder, ListTooLarge, encode
from pycrictl.wire.http2 import ErrorCode, Http2Error

DATES = [b"Mon, 21 Oct 2013 20:13:21 GMT", b"Mon, 21 Oct 2013 20:13:22 GMT"]
COOKIE = b"foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"

REQUESTS = [
    [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"),
     (b":authority", b"www.example.com")],
    [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"),
     (b":authority", b"www.example.com"), (b"cache-control", b"no-cache")],
    [(b":method", b"GET"), (b":scheme", b"https"), (b":path", b"/index.html"),
     (b":authority", b"www.example.com"), (b"custom-key", b"custom-value")],
]  # fmt: skip
RESPONSES = [
    [(b":status", b"302"), (b"cache-control", b"private"), (b"date", DATES[0]),
     (b"location", b"https://www.example.com")],
    [(b":status", b"307"), (b"cache-control", b"private"), (b"date", DATES[0]),
     (b"location", b"https://www.example.com")],
    [(b":status", b"200"), (b"cache-control", b"private"), (b"date", DATES[1]),
     (b"location", b"https://www.example.com"), (b"content-encoding", b"gzip"),
     (b"set-cookie", COOKIE)],
]  # fmt: skip

# C.3 and C.4: the same requests, plain and Huffman coded.
PLAIN_REQUESTS = [
    "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
    "8286 84be 5808 6e6f 2d63 6163 6865",
    "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
]
CODED_REQUESTS = [
    "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
    "8286 84be 5886 a8eb 1064 9cbf",
    "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
]
# C.6, where a table of 256 bytes forgets entries.
CODED_RESPONSES = [
    "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e"
    "919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
    "4883 640e ffc1 c0bf",
    "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7"
    "821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed"
    "4ee5 b106 3d50 07",
]
TO_256_BYTES = b"\x3f\xe1\x01"


@pytest.mark.parametrize("blocks", [PLAIN_REQUESTS, CODED_REQUESTS])
def test_requests_of_the_standard(blocks: list[str]) -> None:
    decoder = Decoder()
    assert [decoder.decode(bytes.fromhex(block)) for block in blocks] == REQUESTS


def test_responses_of_the_standard() -> None:
    decoder = Decoder()
    assert decoder.decode(TO_256_BYTES) == []
    decoded = [decoder.decode(bytes.fromhex(block)) for block in CODED_RESPONSES]
    assert decoded == RESPONSES


@pytest.mark.parametrize(
    ("block", "header"),
    [
        ("400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572",
         (b"custom-key", b"custom-header")),
        ("040c 2f73 616d 706c 652f 7061 7468", (b":path", b"/sample/path")),
        ("1008 7061 7373 776f 7264 0673 6563 7265 74", (b"password", b"secret")),
        ("82", (b":method", b"GET")),
        ("bd", (b"www-authenticate", b"")),
    ],
)  # fmt: skip
def test_every_form_of_a_header(block: str, header: tuple[bytes, bytes]) -> None:
    assert Decoder().decode(bytes.fromhex(block)) == [header]


def test_entry_larger_than_the_table_empties_it() -> None:
    decoder = Decoder()
    decoder.decode(b"\x40\x01a\x01b")
    assert decoder.decode(b"\xbe") == [(b"a", b"b")]
    decoder.decode(b"\x40\x01c\x7f\xa1\x1f" + bytes(4128))
    with pytest.raises(RemoteProtocolError, match="index"):
        decoder.decode(b"\xbe")


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        (b"\x80", "index"),
        (b"\xbe", "index"),
        (b"\x7e\x01x", "index"),
        (b"\xff", "middle of a number"),
        (b"\xff\xff\xff\xff\xff\xff\xff", "number is too large"),
        (b"\xff\x80\x80\x80\x80\x80\x80\x80", "number is too large"),
        (b"\x40", "string must follow"),
        (b"\x40\x05ab", "middle of a string"),
        (b"\x40\x01a", "string must follow"),
        (b"\x82\x20", "table size"),
        (b"\x3f\xe2\x1f", "table size"),
        (b"\x40\x81\x00\x00", "padded"),  # "0", then zeros
        (b"\x40\x82\x07\xff\x00", "padded"),  # more than seven bits
        (b"\x40\x84\xff\xff\xff\xff\x00", "has its end"),
    ],
)
def test_malformed_blocks(block: bytes, problem: str) -> None:
    with pytest.raises(Http2Error, match=problem) as caught:
        Decoder().decode(block)
    assert caught.value.code is ErrorCode.COMPRESSION_ERROR


def test_size_of_a_block_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few bytes may stand for many: each refers to the same large entry."""
    monkeypatch.setattr(limits, "HEADER_LIST_BYTES", 9000)
    decoder = Decoder()
    decoder.decode(b"\x40\x01a\x7f\xa1\x1e" + bytes(4000))
    assert len(decoder.decode(b"\xbe" * 2)) == 2
    with pytest.raises(ListTooLarge, match="exceed 9000 bytes"):
        decoder.decode(b"\xbe" * 3 + b"\x40\x01b\x01c")
    # What it put into the table is there, and the next block can be read.
    assert decoder.decode(b"\xbe") == [(b"b", b"c")]


def test_block_that_is_far_too_large_is_not_read_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "HEADER_LIST_BYTES", 9000)
    decoder = Decoder()
    decoder.decode(b"\x40\x01a\x7f\xa1\x1e" + bytes(4000))
    with pytest.raises(Http2Error, match="far too large") as caught:
        decoder.decode(b"\xbe" * 5 + b"\xff" * 50)  # what follows is malformed, but nobody looks
    assert caught.value.code is ErrorCode.ENHANCE_YOUR_CALM


HEADERS = st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=300)), max_size=8)


@given(HEADERS)
def test_encoded_headers_decode(headers: list[tuple[bytes, bytes]]) -> None:
    assert Decoder().decode(encode(headers)) == headers


@given(HEADERS)
def test_encoding_does_not_touch_the_table(headers: list[tuple[bytes, bytes]]) -> None:
    decoder = Decoder()
    decoder.decode(b"\x40\x01a\x01b")
    decoder.decode(encode(headers))
    assert decoder.decode(b"\xbe") == [(b"a", b"b")]


def test_encoded_form() -> None:
    """Whole static entries by index; others as never indexed, by the name's index if it has one."""
    assert encode([(b":method", b"POST")]) == b"\x83"
    assert encode([(b":path", b"/x")]) == b"\x14\x02/x"
    assert encode([(b"user-agent", b"u")]) == b"\x1f\x2b\x01u"
    assert encode([(b"x", b"y" * 200)]) == b"\x10\x01x\x7f\x49" + b"y" * 200


@given(st.binary(max_size=64))
def test_any_bytes_are_decoded_or_refused(block: bytes) -> None:
    try:
        headers = Decoder().decode(block)
    except RemoteProtocolError:
        return
    assert Decoder().decode(encode(headers)) == headers
