"""A command against a server that behaves exactly as badly as wanted, and what came of it."""

from __future__ import annotations

import asyncio
import io
import tempfile
from collections.abc import Awaitable, Callable
from typing import Any

from pycrictl.streaming.pump import Ends, Input, Output
from pycrictl.streaming.remote_command import Choice, run_command
from pycrictl.wire.command import ExitReported, Streams
from tests.streaming.servers import accept_upgrade, read_head, run, serve
from tests.streaming.spdy_server import UPGRADE, SpdyPeer

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
SpdyTalk = Callable[[SpdyPeer], Awaitable[None]]


class Scene:
    """The server chooses a protocol and goes on with ``talk``, after it refused some requests."""

    def __init__(
        self, talk: Talk, *, protocol: str = "v4.channel.k8s.io", refuses: int = 0
    ) -> None:
        self.heads: list[dict[str, str]] = []
        self.notes: list[str] = []
        self.is_noted = asyncio.Event()
        self.stdout: Any = io.StringIO()
        self.stderr = io.StringIO()
        self._talk = talk
        self._protocol = protocol
        self._refuses = refuses

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await read_head(reader)
        self.heads.append(head)
        if len(self.heads) <= self._refuses:
            writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
        elif head["upgrade"] == "websocket":
            writer.write(accept_upgrade(head, f"Sec-WebSocket-Protocol: {self._protocol}"))
            await self._talk(reader, writer)
        else:
            writer.write(UPGRADE.format(self._protocol).encode())
            await self._talk(reader, writer)

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self.is_noted.set()

    def run(
        self,
        streams: Streams,
        *,
        choice: Choice,
        is_attach: bool = False,
        stdin: bytes = b"",
        silence_s: float = 10,
    ) -> ExitReported | None:
        async def scenario() -> ExitReported | None:
            with tempfile.TemporaryFile("w+b") as file:
                file.write(stdin)
                file.seek(0)
                ends = Ends(
                    Output(self.stdout),
                    Output(self.stderr),
                    Input(io.TextIOWrapper(file)) if streams.stdin else None,
                    note=self._note,
                )
                async with serve(self._handle) as address:
                    return await run_command(
                        lambda: f"http://{address}/exec/secret",
                        streams,
                        ends,
                        choice=choice,
                        is_attach=is_attach,
                        timeout_s=30,
                        silence_s=silence_s,
                    )

        return run(scenario())


def spdy(talk: SpdyTalk) -> Talk:
    async def talk_to_peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await talk(SpdyPeer(reader, writer))

    return talk_to_peer
