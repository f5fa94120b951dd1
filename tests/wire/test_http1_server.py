from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.errors import RemoteProtocolError
from pycrictl.wire.http1 import BodyReceived, ResponseParser, ResponseReceived
from pycrictl.wire.http1_server import (
    LAST_CHUNK,
    chunk,
    parse_request,
    serialize_response,
)


def head(*fields: str, line: str = "GET /x HTTP/1.1") -> bytes:
    return "\r\n".join([line, "Host: a:1", *fields, "", ""]).encode("iso-8859-1")


def test_a_request() -> None:
    request = parse_request(head("X-Thing:  two words ", "Accept: */*"))
    assert (request.method, request.target, request.minor_version) == ("GET", "/x", 1)
    assert request.headers.get("x-thing") == "two words"
    assert not request.wants_websocket


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\r\n\r\n",
        b"GET /x\r\nHost: a\r\n\r\n",
        b"GET /x HTTP/2.0\r\nHost: a\r\n\r\n",
        b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /x HTTP/1.1\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost : a\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 100 + b"\r\n",
        b"GET /x HTTP/1.1\r\nHost: a\x00b\r\n\r\n",
    ],
)
def test_what_is_no_request(text: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        parse_request(text)


@given(st.binary(max_size=200))
def test_nothing_else_is_raised(text: bytes) -> None:
    try:
        parse_request(text + b"\r\n\r\n")
    except RemoteProtocolError:
        pass


def test_no_secret_in_its_text() -> None:
    assert "secret" not in repr(parse_request(head(line="GET /secret HTTP/1.1")))


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=5))
def test_our_own_parser_reads_an_answer(parts: list[bytes]) -> None:
    parser = ResponseParser()
    parser.receive_data(serialize_response(200, "OK", [("Transfer-Encoding", "chunked")]))
    for part in parts:
        parser.receive_data(chunk(part))
    parser.receive_data(LAST_CHUNK)
    events = parser.events_received()
    assert parser.is_finished
    assert parser.error is None
    assert isinstance(events[0], ResponseReceived)
    body = b"".join(event.data for event in events if isinstance(event, BodyReceived))
    assert body == b"".join(parts)
