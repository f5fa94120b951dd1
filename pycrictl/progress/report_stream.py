"""Follows the progress stream behind a URL (KEP-5334) to its end.

The KEP leaves the transport open. Here a WebSocket is asked for; a server that offers none answers
200 and sends newline-delimited JSON as the body of a plain response. Either is taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final, Protocol, TypeVar

from pycrictl.streaming.bytestream import ByteStream, dial
from pycrictl.streaming.opening import Exchange
from pycrictl.streaming.target import Target, parse_url
from pycrictl.wire.http1 import SWITCHING_PROTOCOLS
from pycrictl.wire.progress import MAX_MESSAGE_BYTES, ProgressDecoder, Report
from pycrictl.wire.upgrade import ClientHandshake
from pycrictl.wire.websocket import CLIENT, Messages

__all__ = ["Decoder", "follow"]

SILENCE_S: Final = 30.0
_OK: Final = 200

_Input = TypeVar("_Input")


class Decoder(Protocol):
    bad_count: int
    first_bad: str | None

    def receive_message(self, message: bytes) -> Report | None: ...

    def receive_data(self, data: bytes) -> list[Report]: ...

    def receive_eof(self) -> list[Report]: ...


async def follow(
    url: str | Target,
    *,
    on_report: Callable[[Report], None],
    on_note: Callable[[str], None],
    timeout_s: float,
    silence_s: float | None = SILENCE_S,
    decoder: Decoder | None = None,
    is_plain: bool = False,
) -> None:
    """Pass on every report until the server ends the stream in good order.

    That is a WebSocket closed with status 1000 or none, or the end of a plain response's body.
    A message that is not a report is skipped, with a note. ``timeout_s`` is for the connection, and
    again for the head of the response. After that a server may be silent for as long as it likes,
    which one note says after ``silence_s``. With ``is_plain``, no WebSocket is asked for: an API
    server's proxy takes no other answer to that.

    Raises:
        UpgradeRefused: an answer that is neither 101 nor 200; 404 and 405 mean that the server
            does not know the stream.
        StreamError: the stream broke off; it may be taken up again by a new URL.
    """
    target = parse_url(url) if isinstance(url, str) else url
    connection = await dial(target, timeout_s=timeout_s)
    try:
        handshake = ClientHandshake()
        headers = [("Accept", "application/json")] if is_plain else handshake.headers
        exchange = Exchange(connection, target, "GET", headers)
        response = await exchange.request(timeout_s=timeout_s)
        decoder = decoder or ProgressDecoder()
        feed = _Feed(connection.label, on_report, on_note, silence_s, decoder)
        if response.status == SWITCHING_PROTOCOLS:
            handshake.check(response)
            await feed.take(_MessageReader(connection).read, partial(map, decoder.receive_message))
        elif response.status == _OK:
            await feed.take(exchange.read, decoder.receive_data)
        else:
            raise await exchange.refusal()
        await connection.close()
    finally:
        connection.abort()


class _MessageReader:
    def __init__(self, connection: ByteStream) -> None:
        self._connection = connection
        peer = f'"{connection.label}"'
        self._core = Messages(CLIENT, max_bytes=MAX_MESSAGE_BYTES, peer=peer, takes_text=True)

    async def read(self) -> list[bytes]:
        """Return the next messages; none at the normal end. May be cancelled without losing any."""
        core, loop = self._core, asyncio.get_running_loop()
        while not (messages := core.messages_received()) and not core.is_over:
            if data := await self._connection.read():
                core.receive_data(data, loop.time())
            else:
                core.receive_eof()
            # A peer that takes nothing gets no answers: it may itself wait until it is read from.
            if not self._connection.is_full:
                self._connection.send(core.data_to_send())
        if not messages and core.error is not None:
            raise core.error
        return [bytes(message) for message in messages]


class _Feed:
    def __init__(
        self,
        label: str,
        on_report: Callable[[Report], None],
        on_note: Callable[[str], None],
        silence_s: float | None,
        decoder: Decoder,
    ) -> None:
        self._label = label
        self._on_report = on_report
        self._on_note = on_note
        self._silence_s = silence_s
        self._decoder = decoder
        self._has_told_bad = False

    async def take(
        self,
        read: Callable[[], Awaitable[_Input]],
        decode: Callable[[_Input], Iterable[Report | None]],
    ) -> None:
        decoder = self._decoder
        try:
            while data := await self._wait_for(read):
                self._pass_on(decode(data))
            self._pass_on(decoder.receive_eof())
        finally:
            if decoder.bad_count > 1:
                many = f"{decoder.bad_count} messages that are not progress reports"
                self._on_note(f"skipped {many}")

    async def _wait_for(self, read: Callable[[], Awaitable[_Input]]) -> _Input:
        """Read once; say it if the first long silence begins."""
        try:
            async with asyncio.timeout(self._silence_s):
                return await read()
        except TimeoutError:
            self._on_note(f'"{self._label}" has sent no progress for {self._silence_s:g} s')
            self._silence_s = None
        return await read()

    def _pass_on(self, reports: Iterable[Report | None]) -> None:
        for report in reports:
            if report is not None:
                self._on_report(report)
        if (bad := self._decoder.first_bad) is not None and not self._has_told_bad:
            self._has_told_bad = True
            self._on_note(f"skipped a message that is not a progress report: {bad}")
