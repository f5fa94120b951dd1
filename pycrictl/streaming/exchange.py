"""One HTTP request and its response on an open connection, by asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from pycrictl.errors import StreamError, UpgradeRefused
from pycrictl.streaming.connection import Connection
from pycrictl.streaming.opening import MAX_REFUSAL_BYTES, REFUSAL_S, Opening
from pycrictl.streaming.target import Target
from pycrictl.wire.http1 import ResponseHead

__all__ = ["Exchange"]


class Exchange:
    """Sends a request and reads its response in pieces.

    Args:
        connection: stays the caller's; nothing else was sent or read on it.
        headers: see ``Opening``.
    """

    def __init__(
        self,
        connection: Connection,
        target: Target,
        method: str,
        headers: Iterable[tuple[str, str]],
    ) -> None:
        self._connection = connection
        self._opening = Opening(target, method, headers)

    async def request(self, *, timeout_s: float) -> ResponseHead:
        """Send the request; return the response's head. What came after a 101 is unread again.

        Raises:
            ConnectError: no head within ``timeout_s``.
            StreamError: the connection broke, or the peer does not speak HTTP.
        """
        opening = self._opening
        try:
            async with asyncio.timeout(timeout_s):
                await self._connection.write(opening.request)
                while opening.response is None:
                    await self._advance()
        except TimeoutError as exc:
            raise opening.silence(timeout_s) from exc
        self._connection.unread(opening.leftover)
        return opening.response

    async def read(self) -> bytes:
        """Return the next bytes of the body, empty at its end. May be cancelled and repeated.

        Raises:
            StreamError: the connection broke or the body is not well-formed.
        """
        opening = self._opening
        while not opening.body and await self._advance():
            pass
        data, opening.body = opening.body, b""
        return data

    async def refusal(self) -> UpgradeRefused:
        """Make an error of a response that is not what was asked for, with its body's beginning."""
        try:
            async with asyncio.timeout(REFUSAL_S):
                while len(self._opening.body) < MAX_REFUSAL_BYTES and await self._advance():
                    pass
        except (TimeoutError, StreamError):
            pass  # what is there is enough
        return self._opening.refusal()

    async def _advance(self) -> bool:
        """Read once, and keep what came. Return False if the response was complete before."""
        if self._opening.is_complete():
            return False
        self._opening.receive(await self._connection.read())
        return True
