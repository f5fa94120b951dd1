"""Follows the progress stream behind a URL (KEP-5334) to its end.

The KEP leaves the transport open. Here a WebSocket is requested; a server without one answers 200
and sends newline-delimited JSON as the body of a plain response. Both are accepted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final, Protocol

from pycrictl.pulls.messages import MAX_MESSAGE_BYTES
from pycrictl.pulls.state import PullState
from pycrictl.streaming.bytestream import ByteStream, dial
from pycrictl.streaming.opening import Exchange
from pycrictl.streaming.target import Target, parse_url
from pycrictl.wire.http1 import SWITCHING_PROTOCOLS
from pycrictl.wire.upgrade import ClientHandshake
from pycrictl.wire.websocket import CLIENT, Messages

SILENCE_S: Final = 30.0
_OK: Final = 200


class Reader(Protocol):
    bad_count: int
    first_bad: str | None

    def receive_message(self, message: bytes) -> PullState | None: ...

    def receive_data(self, data: bytes) -> Iterable[PullState]: ...

    def receive_eof(self) -> Iterable[PullState]: ...


async def follow(
    url: str | Target,
    reader: Reader,
    *,
    on_pull: Callable[[PullState], None],
    on_note: Callable[[str], None],
    timeout_s: float,
    silence_s: float | None = SILENCE_S,
    is_plain: bool = False,
) -> None:
    """Pass on the state of a pull after each message, until the server ends the stream cleanly.

    A clean end is a WebSocket closed with status 1000 or none, or the end of a plain response's
    body. Messages that are not reports are skipped, with a note. ``timeout_s`` applies to the
    connection, and again to the head of the response. After that a server may be silent forever;
    a single note reports this after ``silence_s``. With ``is_plain``, no WebSocket is requested, as
    an API server's proxy accepts no plain response to an upgrade request.

    Raises:
        UpgradeRefused: the response was neither 101 nor 200; 404 and 405 mean that the server
            does not offer the stream.
        StreamError: the stream broke off; it may be resumed with a new URL.
    """
    target = parse_url(url) if isinstance(url, str) else url
    connection = await dial(target, timeout_s=timeout_s)
    silence = _Silence(silence_s, lambda text: on_note(f'"{connection.label}" {text}'))
    try:
        handshake = ClientHandshake()
        headers = [("Accept", "application/json")] if is_plain else handshake.headers
        exchange = Exchange(connection, target, "GET", headers)
        response = await exchange.request(timeout_s=timeout_s)
        if response.status == SWITCHING_PROTOCOLS:
            handshake.check(response)
            batches = _messages(connection, reader)
        elif response.status == _OK:
            batches = _lines(exchange, reader)
        else:
            raise await exchange.refused()
        has_noted = False
        silence.begin()
        async for batch in batches:
            silence.begin()
            for pull in batch:
                on_pull(pull)
            if reader.first_bad is not None and not has_noted:
                has_noted = True
                on_note(f"skipped a message that is not a progress report: {reader.first_bad}")
        await connection.close()
    finally:
        silence.end()
        if reader.bad_count > 1:
            on_note(f"skipped {reader.bad_count} messages that are not progress reports")
        connection.abort()


async def _lines(exchange: Exchange, reader: Reader) -> AsyncIterator[Iterable[PullState]]:
    while data := await exchange.read():
        yield reader.receive_data(data)
    yield reader.receive_eof()


async def _messages(connection: ByteStream, reader: Reader) -> AsyncIterator[Iterable[PullState]]:
    peer = f'"{connection.label}"'
    core = Messages(CLIENT, max_bytes=MAX_MESSAGE_BYTES, peer=peer, takes_text=True)
    loop = asyncio.get_running_loop()
    while not core.is_over:
        if data := await connection.read():
            core.receive_data(data, loop.time())
        else:
            core.receive_eof()
        # Send nothing to a peer that does not read: it may itself be waiting for us to read.
        if not connection.is_full:
            connection.send(core.data_to_send())
        if messages := core.messages_received():
            yield filter(None, (reader.receive_message(bytes(message)) for message in messages))
    if core.error is not None:
        raise core.error


class _Silence:
    """Notes the first long silence."""

    def __init__(self, silence_s: float | None, on_note: Callable[[str], None]) -> None:
        self._silence_s = silence_s
        self._on_note = on_note
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        self.end()
        if self._silence_s is not None:
            self._timer = asyncio.get_running_loop().call_later(self._silence_s, self._note)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _note(self) -> None:
        self._on_note(f"has sent no progress for {self._silence_s:g} s")
        self._silence_s = None
