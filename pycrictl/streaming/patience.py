"""The connection of a remote command, and the patience with its server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pycrictl.errors import StreamError
from pycrictl.streaming.connection import Connection
from pycrictl.wire.command import RemoteCommand


class ImpatientConnection:
    """The connection of a command, which gives up on a server that is stuck.

    containerd 1.6 sometimes is when a command has ended with input unread: it goes on writing that
    into a pipe which nobody empties, and never sends the outcome. A command that closes its outputs
    and works on looks the same, so what decides is whether the server takes anything at all.

    Args:
        silence_s: how long it may be silent while it is its turn.
        note: called once when the outcome stays away; None for a command without input.
    """

    def __init__(
        self,
        connection: Connection,
        core: RemoteCommand,
        *,
        silence_s: float,
        note: Callable[[str], None] | None,
    ) -> None:
        self._connection = connection
        self._core = core
        self._silence_s = silence_s
        self._note = note
        self._has_input = note is not None
        self._drained = 0
        self.send = connection.send
        """See ``Connection``."""

    @property
    def is_full(self) -> bool:
        """See ``Connection``."""
        return self._connection.is_full

    async def read(self) -> bytes:
        """See ``Connection``.

        Raises:
            StreamError: the server is stuck, or the connection broke.
        """
        is_asked = False
        while not self._core.is_ready or (self._has_input and self._core.awaits_outcome_only):
            drained = self._drained
            try:
                async with asyncio.timeout(self._silence_s):
                    return await self._connection.read()
            except TimeoutError:
                pass
            if not self._core.is_ready:
                raise StreamError("it does not open the streams")
            if drained != self._drained:
                continue
            if is_asked:
                raise StreamError("it neither takes input nor answers")
            is_asked = True
            self._ask()
        return await self._connection.read()

    async def drain(self) -> None:
        """See ``Connection``."""
        await self._connection.drain()
        self._drained += 1

    def _ask(self) -> None:
        if self._note is not None:
            self._note(
                "the command has closed its outputs, but the runtime sends no exit status;"
                " Ctrl-C ends the waiting"
            )
            self._note = None
        self._core.ping()
        self.send(self._core.data_to_send())
