from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.errors import LocalProtocolError, RemoteProtocolError, StreamError
from pycrictl.streaming.opening import MAX_HEAD_BYTES, Opening
from pycrictl.streaming.target import parse_url

HEAD = b"HTTP/1.1 200 OK\r\n"
LENGTH_5 = HEAD + b"Content-Length: 5\r\n\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
UPGRADE = (("Connection", "Upgrade"), ("Upgrade", "x"))


def opening(path: str = "/exec/token?a=b", *fields: tuple[str, str]) -> Opening:
    return Opening(parse_url(f"http://node:1{path}"), "GET", [*UPGRADE, *fields])


def receive(*pieces: bytes, eof: bool = False) -> Opening:
    made = opening()
    for piece in [*pieces, *([b""] if eof else [])]:
        assert not made.is_complete()
        made.receive(piece)
    return made


def violation_of(*pieces: bytes) -> str:
    """Feed what breaks the protocol; return what was said about it."""
    made = receive(*pieces)
    with pytest.raises(RemoteProtocolError) as caught:
        made.is_complete()
    return caught.value.message


def test_request() -> None:
    versions = [("X-Stream-Protocol-Version", "v4"), ("X-Stream-Protocol-Version", "v3")]
    assert opening("/exec/token?a=b", *versions).request == (
        b"GET /exec/token?a=b HTTP/1.1\r\nHost: node:1\r\nUser-Agent: pycrictl\r\n"
        b"Connection: Upgrade\r\nUpgrade: x\r\n"
        b"X-Stream-Protocol-Version: v4\r\nX-Stream-Protocol-Version: v3\r\n\r\n"
    )


@pytest.mark.parametrize("field", [("A B", "secret"), ("A", "secret\r\nX: y"), ("A", "secret€")])
def test_what_cannot_be_sent_is_not_repeated(field: tuple[str, str]) -> None:
    with pytest.raises(LocalProtocolError, match=r"^an HTTP request with invalid characters$"):
        opening("/", field)


@pytest.mark.parametrize("line", [b"HTTP/2 200 OK", b"HTTP/1.1 099 OK", b"SSH-2.0-x", b""])
def test_another_protocol(line: bytes) -> None:
    said = violation_of(line + b"\r\n\r\n")
    assert said == 'the peer does not speak HTTP/1.1 (from "http://node:1")'


def test_interim_responses_are_left_out() -> None:
    interim = b"HTTP/1.1 103 Wait\r\nX-Interim: 1\r\n\r\n"
    made = receive(interim * 3 + LENGTH_5 + b"abcde")
    assert made.response is not None
    assert made.response.headers.get("X-Interim") is None
    assert made.is_complete()


def test_an_endless_head() -> None:
    assert "does not speak" in violation_of(HEAD + b"X: " + b"x" * MAX_HEAD_BYTES)


def test_101_leaves_the_rest_to_the_other_protocol() -> None:
    made = receive(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n\x81\x01a")
    assert made.is_complete()
    assert made.leftover == b"\x81\x01a"
    assert receive(b"HTTP/1.1 101").leftover == b""


@pytest.mark.parametrize(
    ("pieces", "eof", "body"),
    [
        ([LENGTH_5 + b"ab", b"cde"], False, b"abcde"),
        ([b"HTTP/1.1 204 No Content\r\n\r\n"], False, b""),
        ([HEAD + b"\r\nab", b"cd"], True, b"abcd"),
        ([CHUNKED + b'3\r\nabc\r\n00A;x="y"\r\n0123456789\r\n0\r\n\r\n'], False, b"abc0123456789"),
    ],
)
def test_bodies(pieces: list[bytes], eof: bool, body: bytes) -> None:
    made = receive(*pieces, eof=eof)
    assert made.is_complete()
    assert made.body == body


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200",
        LENGTH_5 + b"abcd",
        CHUNKED + b"5\r\nabc",
    ],
)
def test_too_early_an_end(data: bytes) -> None:
    made = receive(data, eof=True)
    with pytest.raises(StreamError, match="the connection ended before the HTTP response did"):
        made.is_complete()


WHOLE = b"HTTP/1.1 100 Continue\r\n\r\n" + CHUNKED + b"6;ext\r\nabcdef\r\n1\r\ng\r\n0\r\n\r\n"


@given(st.lists(st.integers(1, len(WHOLE) - 1), unique=True))
def test_pieces_may_end_anywhere(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(WHOLE)]
    made = receive(*(WHOLE[start:end] for start, end in pairwise(edges)))
    assert made.is_complete()
    assert made.body == b"abcdefg"
