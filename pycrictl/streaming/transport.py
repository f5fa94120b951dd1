"""Opens the connection behind a stream URL, and upgrades it to SPDY or a WebSocket."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pycrictl.errors import RemoteProtocolError
from pycrictl.streaming.connection import Connection
from pycrictl.streaming.dial import dial
from pycrictl.streaming.exchange import Exchange
from pycrictl.streaming.target import Target, TlsFiles, parse_url
from pycrictl.wire.upgrade import ClientHandshake

__all__ = ["Opened", "Transport", "open_transport"]

Transport = Literal["spdy", "websocket"]

_SPDY: Final = "SPDY/3.1"
_PROTOCOL_FIELD: Final = "X-Stream-Protocol-Version"


@dataclass(frozen=True, slots=True)
class Opened:
    """What came of an upgrade: the connection, and the protocol that the server chose."""

    connection: Connection
    protocol: str


async def open_transport(
    transport: Transport,
    url: str,
    protocols: Sequence[str],
    *,
    timeout_s: float,
    tls: TlsFiles | None = None,
) -> Opened:
    """Connect to a stream URL and upgrade. The caller closes or aborts the connection.

    The URL is spent afterwards, also when the server refuses.

    Args:
        protocols: what to offer, best first.
        timeout_s: limit for connecting, and again for the answer.

    Raises:
        UpgradeRefused: the server does not offer the transport, or none of the protocols.
        ConnectError: it cannot be reached or does not answer in time.
        StreamError: the connection broke, or the answer is not one to the request.
        ConfigError: the files of ``tls`` cannot be used.
    """
    target = parse_url(url)
    connection = await dial(target, timeout_s=timeout_s, tls=tls)
    connection.expect_bulk()
    upgrade = _to_spdy if transport == "spdy" else _to_websocket
    try:
        return Opened(connection, await upgrade(connection, target, protocols, timeout_s))
    except BaseException:
        connection.abort()
        raise


async def _to_spdy(
    connection: Connection, target: Target, protocols: Sequence[str], timeout_s: float
) -> str:
    fields = [("Connection", "Upgrade"), ("Upgrade", _SPDY)]
    fields += [(_PROTOCOL_FIELD, protocol) for protocol in protocols]
    exchange = Exchange(connection, target, "POST", fields)
    response = await exchange.request(timeout_s=timeout_s)
    if response.status != 101:
        raise await exchange.refusal()
    protocol = response.headers.get(_PROTOCOL_FIELD) or ""
    if _SPDY.lower() not in response.headers.tokens("Upgrade") or protocol not in protocols:
        raise RemoteProtocolError(f'"{target.label}" chose a protocol that was not offered')
    return protocol


async def _to_websocket(
    connection: Connection, target: Target, protocols: Sequence[str], timeout_s: float
) -> str:
    handshake = ClientHandshake(protocols)
    exchange = Exchange(connection, target, "GET", handshake.headers)
    response = await exchange.request(timeout_s=timeout_s)
    if response.status != 101:
        raise await exchange.refusal()
    return handshake.check(response)
