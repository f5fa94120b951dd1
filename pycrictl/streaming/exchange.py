"""One HTTP request and its response on an open connection: the way into every stream."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from pycrictl.errors import ConnectError, StreamError, UpgradeRefused
from pycrictl.streaming.connection import Connection
from pycrictl.streaming.target import Target
from pycrictl.wire.http1 import DataReceived, ResponseParser, ResponseReceived, serialize_request

__all__ = ["Exchange"]

_ERROR_BYTES: Final = 1024
_ERROR_CHARACTERS: Final = 200
_ERROR_BODY_S: Final = 1.0


class Exchange:
    """Sends a request and reads the response of it, in pieces.

    Args:
        connection: stays the caller's; nothing else was sent or read on it.
    """

    def __init__(self, connection: Connection, target: Target) -> None:
        self._connection = connection
        self._target = target
        self._parser = ResponseParser()
        self._head: ResponseReceived | None = None
        self._body = b""

    @property
    def leftover(self) -> bytes:
        """What came after a 101, to be read before anything else from the connection."""
        return self._parser.leftover

    async def request(
        self, method: str, headers: Iterable[tuple[str, str]], *, timeout_s: float
    ) -> ResponseReceived:
        """Send the request, with ``Host`` and ``User-Agent`` added; return the response's head.

        Raises:
            ConnectError: no head within ``timeout_s``.
            StreamError: the connection broke, or the peer does not speak HTTP.
        """
        fields = [("Host", self._target.authority), ("User-Agent", "pycrictl"), *headers]
        try:
            async with asyncio.timeout(timeout_s):
                await self._connection.write(serialize_request(method, self._target.path, fields))
                while self._head is None:
                    await self._advance()
                return self._head
        except TimeoutError as exc:
            raise ConnectError(
                f'"{self._target.label}" accepts connections but does not answer'
                f" within {timeout_s:g} s"
            ) from exc

    async def read(self) -> bytes:
        """Return the next bytes of the body, empty at its end. May be cancelled and repeated.

        Raises:
            StreamError: the connection broke or the body is not well-formed.
        """
        while not self._body and await self._advance():
            pass
        data, self._body = self._body, b""
        return data

    async def refusal(self, response: ResponseReceived) -> UpgradeRefused:
        """Make an error of a response that is not what was asked for, with its body's beginning."""
        body = b""
        try:
            async with asyncio.timeout(_ERROR_BODY_S):
                while len(body) < _ERROR_BYTES and (piece := await self.read()):
                    body += piece
        except (TimeoutError, StreamError):
            pass  # what is there is enough
        # repr() escapes whatever could steer a terminal.
        text = body.decode(errors="replace").strip()[:_ERROR_CHARACTERS] or response.reason
        said = f"{response.status}: {text!r}" if text else f"{response.status}"
        return UpgradeRefused(
            f'"{self._target.label}" answered with status {said}', status=response.status
        )

    async def _advance(self) -> bool:
        """Read once, and keep what came. Return False if the response was complete before."""
        error = self._parser.error
        if error is not None:
            raise type(error)(f'{error.message} (from "{self._target.label}")')
        if self._parser.is_finished:
            return False
        data = await self._connection.read()
        if data:
            self._parser.receive_data(data)
        else:
            self._parser.receive_eof()
        for event in self._parser.events_received():
            if isinstance(event, ResponseReceived):
                self._head = event
            elif isinstance(event, DataReceived):
                self._body += event.data
        return True
