"""The opening handshake of a WebSocket, on both sides."""

from __future__ import annotations

import pytest
from websockets.datastructures import Headers

from pycrictl.base.errors import RemoteProtocolError
from pycrictl.streams.opening import Opening
from pycrictl.streams.target import parse_url
from pycrictl.streams.wire.http1 import Exchange, ResponseHead
from pycrictl.streams.wire.upgrade import ClientHandshake, accepted

# The example of RFC 6455, 1.3.
KEY = "dGhlIHNhbXBsZSBub25jZQ=="
ACCEPT = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="

# A client

GOOD = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Accept": ACCEPT}


def handshake(protocol: str = "") -> ClientHandshake:
    result = ClientHandshake(protocol)
    result._protocol.key = KEY
    return result


def response(**changes: str | None) -> ResponseHead:
    fields = {**GOOD, **{name.replace("_", "-"): value for name, value in changes.items()}}
    headers = Headers([(name, value) for name, value in fields.items() if value is not None])
    return ResponseHead(101, "Switching Protocols", headers)


def test_request_headers() -> None:
    assert dict(handshake().headers) == {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": KEY,
    }
    assert handshake("v4").headers[-1] == ("Sec-WebSocket-Protocol", "v4")


@pytest.mark.parametrize(
    ("answer", "protocol"),
    [
        (response(), ""),
        (response(Sec_WebSocket_Protocol=""), ""),  # sent by the runtimes' server
        (response(Sec_WebSocket_Protocol="v4"), "v4"),
        (response(Upgrade="WebSocket", Connection="keep-alive, upgrade"), ""),
    ],
)
def test_good_answers(answer: ResponseHead, protocol: str) -> None:
    handshake(protocol).check(answer)


@pytest.mark.parametrize(
    "answer",
    [
        response(Upgrade=None),
        response(Connection=None),
        response(Sec_WebSocket_Accept="x3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
        response(Sec_WebSocket_Extensions="\x9b2J"),
        response(Sec_WebSocket_Protocol="v3"),
    ],
)
def test_bad_answers(answer: ResponseHead) -> None:
    with pytest.raises(RemoteProtocolError, match="handshake is wrong: ") as caught:
        handshake("v4").check(answer)
    assert caught.value.message.isprintable()


def test_a_server_without_the_protocol() -> None:
    with pytest.raises(RemoteProtocolError, match="does not speak v4"):
        handshake("v4").check(response())


# A server


@pytest.mark.parametrize("protocol", ["", "v4"])
def test_what_the_server_answers_is_what_the_client_takes(protocol: str) -> None:
    client = ClientHandshake(protocol)
    lines = [f"{name}: {value}" for name, value in [*client.headers, ("User-Agent", "ü")]]
    text = "\r\n".join(["GET /x HTTP/1.1", "Host: a:1", *lines, "", ""])
    asked = Exchange().receive(text.encode())
    assert asked is not None
    assert asked.wants_websocket
    head = accepted(asked.headers.raw_items(), protocol)
    assert head is not None
    opening = Opening(parse_url("http://a:1/x"), "GET", client.headers)
    opening.receive(head + b"more")
    assert opening.response is not None
    client.check(opening.response)
    assert opening.leftover == b"more"


RIGHT = {
    "Connection": "keep-alive, Upgrade",
    "Upgrade": "WebSocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": KEY,
    "Sec-WebSocket-Extensions": "permessage-deflate",
}


@pytest.mark.parametrize(
    "changes",
    [
        {"Connection": ""},
        {"Sec-WebSocket-Key": ""},
        {"Sec-WebSocket-Key": "\udcff"},
        {"Sec-WebSocket-Protocol": "v3"},
        {"Sec-WebSocket-Protocol": ""},
    ],
)
def test_bad_handshakes(changes: dict[str, str]) -> None:
    protocol = "v4" if "Sec-WebSocket-Protocol" in changes else ""
    assert accepted({**RIGHT, **changes}.items(), protocol) is None
