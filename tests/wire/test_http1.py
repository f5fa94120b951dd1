from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.errors import LocalProtocolError, RemoteProtocolError, StreamError
from pycrictl.wire.http1 import (
    MAX_FIELDS,
    MAX_HEAD_BYTES,
    MAX_INTERIM_RESPONSES,
    MAX_LINE_BYTES,
    BodyReceived,
    Event,
    Headers,
    ResponseEnded,
    ResponseParser,
    ResponseReceived,
    serialize_request,
)

HEAD = b"HTTP/1.1 200 OK\r\n"
LENGTH_5 = HEAD + b"Content-Length: 5\r\n\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def receive(*pieces: bytes, eof: bool = False) -> ResponseParser:
    parser = ResponseParser()
    for piece in pieces:
        parser.receive_data(piece)
    if eof:
        parser.receive_eof()
    return parser


def body_of(events: list[Event]) -> bytes:
    return b"".join(event.data for event in events if isinstance(event, BodyReceived))


def head_of(parser: ResponseParser) -> ResponseReceived:
    assert parser.error is None
    event = parser.events_received()[0]
    assert isinstance(event, ResponseReceived)
    return event


def violation_of(*pieces: bytes) -> str:
    """Feed what breaks the protocol; return what was said about it."""
    parser = receive(*pieces)
    assert isinstance(parser.error, RemoteProtocolError)
    assert parser.is_finished
    return parser.error.message


# Requests


def test_request() -> None:
    request = serialize_request("GET", "/exec/token?a=b", [("Host", "node:1"), ("X-A", "1")])
    assert request == b"GET /exec/token?a=b HTTP/1.1\r\nHost: node:1\r\nX-A: 1\r\n\r\n"


def test_request_repeats_fields() -> None:
    fields = [("X-Stream-Protocol-Version", "v4"), ("X-Stream-Protocol-Version", "v3")]
    request = serialize_request("POST", "/", fields)
    assert request.count(b"X-Stream-Protocol-Version: ") == 2


@pytest.mark.parametrize(
    ("method", "target", "field", "what"),
    [
        ("GE T", "/", ("A", "b"), "method"),
        ("", "/", ("A", "b"), "method"),
        ("GET", "", ("A", "b"), "target"),
        ("GET", "/secret path", ("A", "b"), "target"),
        ("GET", "/secret\r\nX: y", ("A", "b"), "target"),
        ("GET", "/secretß", ("A", "b"), "target"),
        ("GET", "/", ("A B", "secret"), "header field"),
        ("GET", "/", ("A", "secret\r\nX: y"), "header field"),
        ("GET", "/", ("A", "secret€"), "header field"),
    ],
)
def test_what_cannot_be_sent(method: str, target: str, field: tuple[str, str], what: str) -> None:
    with pytest.raises(LocalProtocolError, match=f"^invalid {what} in an HTTP request$"):
        serialize_request(method, target, [field])


# Header fields


def test_headers_ignore_case_and_keep_order() -> None:
    headers = Headers([("Via", "1.1 a"), ("VIA", "1.1 b"), ("Server", "x")])
    assert headers.get_all("via") == ["1.1 a", "1.1 b"]
    assert headers.get("Via") == "1.1 a, 1.1 b"
    assert headers.get("server") == "x"
    assert headers.get("Missing") is None
    assert headers.get_all("Missing") == []


def test_header_lists() -> None:
    headers = Headers([("Connection", "keep-alive ,\tUpgrade, "), ("Connection", ",close")])
    assert headers.tokens("connection") == ["keep-alive", "upgrade", "close"]
    assert headers.tokens("Missing") == []


# The head


def test_head() -> None:
    head = head_of(receive(HEAD + b"Server: x\r\nX-Empty:\r\nX-Space: \t a b \t\r\n\r\n"))
    assert (head.status, head.reason) == (200, "OK")
    assert head.headers.get("Server") == "x"
    assert head.headers.get("X-Empty") == ""
    assert head.headers.get("X-Space") == "a b"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"HTTP/1.1 404 Not Found", "Not Found"),
        (b"HTTP/1.1 404 ", ""),
        (b"HTTP/1.1 404", ""),
        (b"HTTP/1.0 404 Gone\xe9", "Gone\xe9"),
    ],
)
def test_status_lines(line: bytes, reason: str) -> None:
    head = head_of(receive(line + b"\r\n\r\n"))
    assert (head.status, head.reason) == (404, reason)


def test_bare_line_feeds() -> None:
    parser = receive(b"HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n3\nabc\n0\n\n")
    assert body_of(parser.events_received()) == b"abc"
    assert parser.error is None
    assert parser.is_finished


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"HTTP/2 200 OK",
        b"HTTP/1.2 200 OK",
        b"http/1.1 200 OK",
        b"HTTP/1.1  200 OK",
        b"HTTP/1.1 20 OK",
        b"HTTP/1.1 099 OK",
        b"HTTP/1.1 2000 OK",
        b"HTTP/1.1 200OK",
        b"HTTP/1.1 200 O\x1bK",
        b"HTTP/1.1 200 OK\r",
        b"\x00\x00\x12\x04\x00\x00\x00",
        b"SSH-2.0-OpenSSH_9.2",
    ],
)
def test_bad_status_lines(line: bytes) -> None:
    assert violation_of(line + b"\r\n") == "the peer does not speak HTTP/1.1"


@pytest.mark.parametrize(
    "line",
    [
        b"no colon",
        b": no name",
        b"Space : before colon",
        b" folded: line",
        b"\tfolded",
        b"N\xe4me: x",
        b"Name: nul\x00",
        b"Name: bare\rreturn",
        b"Name: escape\x1b[2J",
    ],
)
def test_bad_fields(line: bytes) -> None:
    assert violation_of(HEAD + b"Server: x\r\n" + line + b"\r\n\r\n") == (
        "invalid header field in an HTTP response"
    )


@pytest.mark.parametrize("status", [100, 102, 103, 199])
def test_interim_responses_are_left_out(status: int) -> None:
    interim = b"HTTP/1.1 %d Wait\r\nX-Interim: 1\r\n\r\n" % status
    parser = receive(interim * MAX_INTERIM_RESPONSES + LENGTH_5 + b"abcde")
    events = parser.events_received()
    assert [type(event) for event in events] == [ResponseReceived, BodyReceived, ResponseEnded]
    assert isinstance(events[0], ResponseReceived)
    assert events[0].headers.get("X-Interim") is None


def test_too_many_interim_responses() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\n" * (MAX_INTERIM_RESPONSES + 1)
    assert violation_of(interim) == "too many interim HTTP responses"


# Limits


def test_the_longest_line() -> None:
    field = b"X: " + b"x" * (MAX_LINE_BYTES - 4)
    assert head_of(receive(HEAD + field + b"\r\n\r\n")).headers.get("X") == field[3:].decode()


@pytest.mark.parametrize(
    "pieces",
    [
        [HEAD + b"X: " + b"x" * (MAX_LINE_BYTES - 3) + b"\r\n"],
        [HEAD, *[b"x" * 1000] * 9],
        [b"x" * (MAX_LINE_BYTES + 1)],
    ],
)
def test_too_long_a_line(pieces: list[bytes]) -> None:
    assert violation_of(*pieces) == "a line of an HTTP response is too long"


def test_the_most_fields() -> None:
    assert head_of(receive(HEAD + b"X: y\r\n" * MAX_FIELDS + b"\r\n")).headers.get_all("x") == (
        ["y"] * MAX_FIELDS
    )


def test_too_many_fields() -> None:
    assert violation_of(HEAD + b"X: y\r\n" * (MAX_FIELDS + 1)) == (
        "too many header fields in an HTTP response"
    )


def test_too_large_a_head() -> None:
    field = b"X: " + b"x" * 8000 + b"\r\n"
    assert violation_of(HEAD + field * (MAX_HEAD_BYTES // 8000 + 1)) == (
        "too many header fields in an HTTP response"
    )


# Switching protocols


def test_101_leaves_the_rest_to_the_other_protocol() -> None:
    parser = receive(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n\x81\x01a")
    assert [type(event) for event in parser.events_received()] == [ResponseReceived, ResponseEnded]
    assert parser.is_finished
    assert parser.leftover == b"\x81\x01a"


def test_101_ignores_the_framing_of_a_body() -> None:
    parser = receive(b"HTTP/1.1 101 X\r\nContent-Length: 3\r\n\r\nabc")
    assert parser.leftover == b"abc"


def test_there_is_no_leftover_before_the_end() -> None:
    assert receive(b"HTTP/1.1 101").leftover == b""


# Bodies


def test_content_length() -> None:
    parser = receive(LENGTH_5 + b"ab", b"cde", eof=True)
    events = parser.events_received()
    assert events[1:] == [BodyReceived(b"ab"), BodyReceived(b"cde"), ResponseEnded()]
    assert parser.leftover == b""


def test_content_length_leaves_the_rest() -> None:
    parser = receive(LENGTH_5 + b"abcdefg")
    assert body_of(parser.events_received()) == b"abcde"
    assert parser.leftover == b"fg"


@pytest.mark.parametrize(
    "head",
    [
        HEAD + b"Content-Length: 0\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
    ],
)
def test_no_body(head: bytes) -> None:
    parser = receive(head)
    assert [type(event) for event in parser.events_received()] == [ResponseReceived, ResponseEnded]


def test_equal_content_lengths() -> None:
    parser = receive(HEAD + b"Content-Length: 1\r\nContent-Length: 1, 1\r\n\r\na")
    assert body_of(parser.events_received()) == b"a"
    assert parser.error is None


@pytest.mark.parametrize("value", [b"", b"-1", b"+1", b"1x", b"1, 2", b"0x5", b"1" * 19])
def test_bad_content_lengths(value: bytes) -> None:
    parser = receive(HEAD + b"Content-Length: " + value + b"\r\n\r\n")
    assert isinstance(parser.error, RemoteProtocolError)
    assert parser.error.message == "invalid content length in an HTTP response"
    assert parser.events_received() == []


def test_until_the_end_of_the_connection() -> None:
    parser = receive(HEAD + b"\r\nab", b"cd")
    assert not parser.is_finished
    parser.receive_eof()
    assert body_of(parser.events_received()) == b"abcd"
    assert parser.is_finished
    assert parser.error is None


def test_chunks() -> None:
    parser = receive(CHUNKED + b'3\r\nabc\r\n00A;x="y"\r\n0123456789\r\n1 \r\nz\r\n0\r\n\r\nrest')
    events = parser.events_received()
    assert body_of(events) == b"abc0123456789z"
    assert events[-1] == ResponseEnded()
    assert parser.leftover == b"rest"


def test_chunks_of_one_read_are_one_event() -> None:
    parser = receive(CHUNKED + b"1\r\na\r\n" * 1000)
    assert parser.events_received()[1:] == [BodyReceived(b"a" * 1000)]


def test_trailers_are_left_out() -> None:
    parser = receive(CHUNKED + b"1\r\na\r\n0\r\nX-Sum: 1\r\n\r\n")
    assert parser.is_finished
    assert parser.error is None


def test_bad_trailers() -> None:
    assert violation_of(CHUNKED + b"0\r\nbad\r\n\r\n") == "invalid header field in an HTTP response"


@pytest.mark.parametrize("line", [b"", b"x", b"-1", b" 1", b"0x1", b"1 1", b"1;\x00", b"1" * 16])
def test_bad_chunk_sizes(line: bytes) -> None:
    assert violation_of(CHUNKED + line + b"\r\n") == "invalid chunk size in an HTTP response"


def test_a_chunk_longer_than_announced() -> None:
    parser = receive(CHUNKED + b"1\r\nab\r\n")
    assert isinstance(parser.error, RemoteProtocolError)
    assert parser.error.message == "a chunk of an HTTP response is longer than announced"
    assert body_of(parser.events_received()) == b"a"


@pytest.mark.parametrize(
    "head",
    [
        HEAD + b"Transfer-Encoding: gzip\r\n",
        HEAD + b"Transfer-Encoding: gzip, chunked\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        HEAD + b"Transfer-Encoding:\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n",
    ],
)
def test_framing_that_can_be_misunderstood(head: bytes) -> None:
    assert violation_of(head + b"\r\n") == "unsupported transfer coding in an HTTP response"


# The end of the connection


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1.1 200",
        HEAD,
        HEAD + b"X: y",
        LENGTH_5,
        LENGTH_5 + b"abcd",
        CHUNKED,
        CHUNKED + b"5\r\nabc",
        CHUNKED + b"5\r\nabcde",
        CHUNKED + b"5\r\nabcde\r\n",
        CHUNKED + b"0\r\n",
    ],
)
def test_too_early_an_end(data: bytes) -> None:
    parser = receive(data, eof=True)
    assert type(parser.error) is StreamError
    assert parser.error.message == "the connection ended before the HTTP response did"
    assert parser.is_finished
    assert ResponseEnded() not in parser.events_received()


def test_the_end_may_be_told_again() -> None:
    parser = receive(HEAD + b"\r\n", eof=True)
    parser.receive_eof()
    assert [type(event) for event in parser.events_received()] == [ResponseReceived, ResponseEnded]


@pytest.mark.parametrize("data", [LENGTH_5 + b"abcde", b"nonsense\r\n"])
def test_nothing_can_be_fed_after_the_end(data: bytes) -> None:
    parser = receive(data)
    with pytest.raises(LocalProtocolError):
        parser.receive_data(b"x")


def test_nothing_can_be_fed_after_the_end_of_the_connection() -> None:
    parser = receive(LENGTH_5, eof=True)
    with pytest.raises(LocalProtocolError):
        parser.receive_data(b"x")


# Any bytes, any pieces

WHOLE = (
    b"HTTP/1.1 100 Continue\r\n\r\n"
    + CHUNKED
    + b"6;ext\r\nabcdef\r\n1\r\ng\r\n0\r\nX-Sum: 1\r\n\r\nleftover"
)


@given(st.lists(st.integers(0, len(WHOLE) - len(b"leftover") - 1)))
def test_pieces_may_end_anywhere(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(WHOLE)]
    parser = receive(*(WHOLE[start:end] for start, end in pairwise(edges)))
    events = parser.events_received()
    assert isinstance(events[0], ResponseReceived)
    assert events[0].status == 200
    assert body_of(events) == b"abcdefg"
    assert events[-1] == ResponseEnded()
    assert parser.leftover == b"leftover"


pieces_of_http = st.sampled_from(
    [HEAD, LENGTH_5, CHUNKED, b"\r\n", b"\n", b"5\r\n", b"0\r\n\r\n", b"abcde", b"X: y\r\n"]
)


@given(st.lists(st.binary(max_size=20) | pieces_of_http), st.booleans())
def test_nothing_makes_it_raise(pieces: list[bytes], has_head: bool) -> None:
    parser = ResponseParser()
    if has_head:
        parser.receive_data(CHUNKED)
    for piece in pieces:
        if not parser.is_finished:
            parser.receive_data(piece)
    parser.receive_eof()
    assert parser.is_finished
    ended = ResponseEnded() in parser.events_received()
    assert ended == (parser.error is None)


@given(st.binary(max_size=300), st.lists(st.integers(1, 50), min_size=1))
def test_any_body_in_any_chunks(body: bytes, sizes: list[int]) -> None:
    stream = CHUNKED
    start = 0
    for size in sizes:
        if chunk := body[start : start + size]:
            stream += b"%x\r\n%b\r\n" % (len(chunk), chunk)
        start += size
    stream += b"0\r\n\r\n"
    parser = receive(stream)
    assert body_of(parser.events_received()) == body[:start]
    assert parser.error is None
