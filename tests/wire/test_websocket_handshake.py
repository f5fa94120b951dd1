"""The opening handshake of a WebSocket, on both sides."""

from __future__ import annotations

import pytest

from pycrictl.errors import RemoteProtocolError
from pycrictl.wire.http1 import Headers, ResponseParser, ResponseReceived
from pycrictl.wire.http1_server import Request, parse_request
from pycrictl.wire.websocket_handshake import ClientHandshake, accept_key, serialize_acceptance

# The example of RFC 6455, 1.3.
KEY = "dGhlIHNhbXBsZSBub25jZQ=="
ACCEPT = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="

# A client

GOOD = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Accept": ACCEPT,
}


def handshake(*protocols: str) -> ClientHandshake:
    result = ClientHandshake(protocols)
    result._key = KEY
    return result


def response(**changes: str | None) -> ResponseReceived:
    fields = {**GOOD, **{name.replace("_", "-"): value for name, value in changes.items()}}
    headers = Headers((name, value) for name, value in fields.items() if value is not None)
    return ResponseReceived(101, "Switching Protocols", headers)


def test_request_headers() -> None:
    assert handshake().headers == [
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", KEY),
    ]
    assert handshake("v5", "v4").headers[-1] == ("Sec-WebSocket-Protocol", "v5, v4")


def test_every_key_is_another() -> None:
    assert len({dict(ClientHandshake().headers)["Sec-WebSocket-Key"] for _ in range(10)}) == 10


@pytest.mark.parametrize(
    ("answer", "protocol"),
    [
        (response(), ""),
        (response(Sec_WebSocket_Protocol=""), ""),  # as the runtimes' server does
        (response(Sec_WebSocket_Protocol="v4"), "v4"),
        (response(Sec_WebSocket_Extensions=""), ""),
        (response(Upgrade="WebSocket", Connection="keep-alive, upgrade"), ""),
    ],
)
def test_good_answers(answer: ResponseReceived, protocol: str) -> None:
    assert handshake("v5", "v4").check(answer) == protocol


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (response(Upgrade=None), "handshake is wrong"),
        (response(Upgrade="SPDY/3.1"), "handshake is wrong"),
        (response(Connection=None), "handshake is wrong"),
        (response(Connection="close"), "handshake is wrong"),
        (response(Sec_WebSocket_Accept=None), "handshake is wrong"),
        (response(Sec_WebSocket_Accept="x3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "handshake is wrong"),
        (response(Sec_WebSocket_Extensions="permessage-deflate"), "extension"),
        (response(Sec_WebSocket_Protocol="v3"), "subprotocol"),
        (response(Sec_WebSocket_Protocol="v5, v4"), "subprotocol"),
    ],
)
def test_bad_answers(answer: ResponseReceived, what: str) -> None:
    with pytest.raises(RemoteProtocolError, match=what):
        handshake("v5", "v4").check(answer)


# A server


def request(*fields: str) -> Request:
    lines = ["GET /x HTTP/1.1", "Host: a:1", *fields, "", ""]
    return parse_request("\r\n".join(lines).encode())


def test_a_websocket_handshake() -> None:
    asked = request(
        "Connection: keep-alive, Upgrade",
        "Upgrade: WebSocket",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Key: {KEY}",
    )
    assert asked.wants_websocket
    assert accept_key(asked) == ACCEPT


@pytest.mark.parametrize("protocol", ["", "v5"])
def test_what_the_server_answers_is_what_the_client_takes(protocol: str) -> None:
    client = ClientHandshake(["v5", "v4"])
    asked = request(*(f"{name}: {value}" for name, value in client.headers))
    accept = accept_key(asked)
    assert accept is not None
    parser = ResponseParser()
    parser.receive_data(serialize_acceptance(accept, protocol) + b"more")
    answer = parser.events_received()[0]
    assert isinstance(answer, ResponseReceived)
    assert client.check(answer) == protocol
    assert parser.leftover == b"more"


@pytest.mark.parametrize(
    "fields",
    [
        (),
        (f"Sec-WebSocket-Key: {KEY}",),
        (f"Sec-WebSocket-Key: {KEY}", "Sec-WebSocket-Version: 8"),
        ("Sec-WebSocket-Key: c2hvcnQ=", "Sec-WebSocket-Version: 13"),
        ("Sec-WebSocket-Key: ????", "Sec-WebSocket-Version: 13"),
    ],
)
def test_bad_handshakes(fields: tuple[str, ...]) -> None:
    assert accept_key(request(*fields)) is None
