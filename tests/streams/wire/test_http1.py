from __future__ import annotations

from http import HTTPStatus

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.datastructures import Headers

from pycrictl.base.errors import RemoteProtocolError
from pycrictl.streams.wire.http1 import Exchange, Request, tokens


def test_header_lists() -> None:
    headers = Headers([("Connection", "keep-alive ,\tUpgrade, "), ("Connection", ",close")])
    assert tokens(headers, "connection") == ["keep-alive", "upgrade", "close"]
    assert tokens(headers, "Missing") == []


def parse(text: bytes) -> Request | None:
    return Exchange().receive(text)


def head(*fields: str, line: str = "GET /x HTTP/1.1") -> bytes:
    return "\r\n".join([line, "Host: a:1", *fields, "", ""]).encode("iso-8859-1")


def test_a_request() -> None:
    exchange, text = Exchange(), head("X-Thing:  two words ", "Accept: */*")
    assert exchange.receive(text[:20]) is None
    request = exchange.receive(text[20:] + b"more")
    assert request is not None
    assert (request.method, request.target, exchange.early) == ("GET", "/x", b"more")
    assert request.headers.get("x-thing") == "two words"
    assert not request.wants_websocket


@pytest.mark.parametrize(
    "text",
    [
        b"\x16\x03\x01" * 10 + b"\r\n\r\n",
        b"GET /" + b"x" * 20_000,
        b"GET /x HTTP/2.0\r\nHost: a\r\n\r\n",
        b"GET /x HTTP/1.1\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_what_is_no_request(text: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        parse(text)


def test_no_secret_in_its_text() -> None:
    assert "secret" not in repr(parse(head(line="GET /secret HTTP/1.1")))


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=5))
def test_a_client_reads_an_answer(parts: list[bytes]) -> None:
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="GET", target="/", headers=[("Host", "a")]))
    client.send(h11.EndOfMessage())
    exchange = Exchange()
    assert exchange.receive(head()) is not None
    answer = exchange.head(HTTPStatus.OK, [("Content-Type", "text/plain")])
    client.receive_data(answer + b"".join(map(exchange.body, parts)) + exchange.end())
    body = b""
    while not isinstance(event := client.next_event(), h11.EndOfMessage):
        body += event.data if isinstance(event, h11.Data) else b""
    assert body == b"".join(parts)
