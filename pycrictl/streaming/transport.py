"""Turns the connection behind a stream URL into SPDY or a WebSocket, and moves pieces over it.

A piece is what the cores in ``wire`` take and give: any bytes of a SPDY connection, or one message
of a WebSocket.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from pycrictl.errors import RemoteProtocolError
from pycrictl.streaming.connection import Connection
from pycrictl.streaming.dial import dial
from pycrictl.streaming.exchange import Exchange
from pycrictl.streaming.target import Target, TlsFiles, parse_url
from pycrictl.streaming.upgrade import Upgrade
from pycrictl.streaming.websocket import MessageReader

__all__ = ["Opened", "Transport", "Wire", "open_transport"]

Transport = Literal["spdy", "websocket"]

MAX_MESSAGE_BYTES: Final = 32 << 20
"""Longest WebSocket message that is taken: what the runtimes' server takes as well."""

_SPDY: Final = "SPDY/3.1"
_PROTOCOL_FIELD: Final = "X-Stream-Protocol-Version"


class Wire(Protocol):
    """An upgraded connection."""

    async def read(self) -> list[bytes | memoryview]:
        """Return the next pieces, none at the end. May be cancelled without losing any.

        Raises:
            StreamError: the connection broke or was not ended in good order.
        """

    def send(self, pieces: Iterable[bytes]) -> None:
        """Send pieces as the peer takes them, without waiting."""

    async def drain(self) -> None:
        """Wait while much of what was sent is not taken by the peer.

        Raises:
            StreamError: the connection broke.
        """

    async def close(self) -> None:
        """Close in good order, within a second."""

    def abort(self) -> None:
        """Close at once. Has no effect on a closed connection."""


@dataclass(frozen=True, slots=True)
class Opened:
    """What came of an upgrade: the wire, and the protocol that the server chose."""

    wire: Wire
    protocol: str


class _SpdyWire:
    def __init__(self, connection: Connection, leftover: bytes) -> None:
        self._connection = connection
        self._leftover = leftover
        self.drain = connection.drain
        self.close = connection.close
        self.abort = connection.abort

    async def read(self) -> list[bytes | memoryview]:
        data, self._leftover = self._leftover, b""
        data = data or await self._connection.read()
        return [data] if data else []

    def send(self, pieces: Iterable[bytes]) -> None:
        for piece in pieces:
            self._connection.send(piece)


class _WebSocketWire:
    def __init__(self, connection: Connection, leftover: bytes) -> None:
        self._connection = connection
        reader = MessageReader(connection, leftover, max_message_bytes=MAX_MESSAGE_BYTES)
        self._core = reader.core
        self.read = reader.read_views
        self.drain = connection.drain
        self.abort = connection.abort

    def send(self, pieces: Iterable[bytes]) -> None:
        for piece in pieces:
            self._core.send_message(piece)
        self._flush()

    async def close(self) -> None:
        self._core.close()
        self._flush()
        await self._connection.close()

    def _flush(self) -> None:
        for piece in self._core.data_to_send():
            self._connection.send(piece)


async def open_transport(
    transport: Transport,
    url: str,
    protocols: Sequence[str],
    *,
    timeout_s: float,
    tls: TlsFiles | None = None,
) -> Opened:
    """Connect to a stream URL and upgrade the connection. The caller closes or aborts the wire.

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
    try:
        if transport == "spdy":
            return await _upgrade_to_spdy(connection, target, protocols, timeout_s)
        return await _upgrade_to_websocket(connection, target, protocols, timeout_s)
    except BaseException:
        connection.abort()
        raise


async def _upgrade_to_spdy(
    connection: Connection, target: Target, protocols: Sequence[str], timeout_s: float
) -> Opened:
    fields = [("Connection", "Upgrade"), ("Upgrade", _SPDY)]
    fields += [(_PROTOCOL_FIELD, protocol) for protocol in protocols]
    exchange = Exchange(connection, target)
    response = await exchange.request("POST", fields, timeout_s=timeout_s)
    if response.status != 101:
        raise await exchange.refusal(response)
    protocol = response.headers.get(_PROTOCOL_FIELD) or ""
    if _SPDY.lower() not in response.headers.tokens("Upgrade") or protocol not in protocols:
        raise RemoteProtocolError(f'"{target.label}" chose a protocol that was not offered')
    return Opened(_SpdyWire(connection, exchange.leftover), protocol)


async def _upgrade_to_websocket(
    connection: Connection, target: Target, protocols: Sequence[str], timeout_s: float
) -> Opened:
    upgrade = Upgrade(protocols)
    exchange = Exchange(connection, target)
    response = await exchange.request("GET", upgrade.headers, timeout_s=timeout_s)
    if response.status != 101:
        raise await exchange.refusal(response)
    protocol = upgrade.check(response)
    return Opened(_WebSocketWire(connection, exchange.leftover), protocol)
