"""A server of progress streams for tests of commands: each connection gets the next script."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.streaming.servers import accept_upgrade, in_thread, read_head
from tests.wire.frames import TEXT, close_frame, frame

Record = dict[str, Any]


@dataclass
class ProgressServer:
    """Where the streams are, and how many were asked for."""

    url: str = ""
    connections: int = 0


@contextmanager
def progress_streams(
    *scripts: Sequence[Record] | int, cut: Sequence[int] = (), scheme: str = "http"
) -> Iterator[ProgressServer]:
    """Serve newline-delimited JSON in plain HTTP, or messages of a WebSocket (``ws``).

    Args:
        scripts: for each connection its records, or the status to refuse it with.
        cut: indexes of connections that break off after their records.
    """
    server = ProgressServer()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        index = server.connections
        server.connections += 1
        fields = await read_head(reader)
        script = scripts[index] if index < len(scripts) else 503
        if isinstance(script, int):
            writer.write(f"HTTP/1.1 {script} No\r\nContent-Length: 0\r\n\r\n".encode())
            return
        lines = [json.dumps(record).encode() for record in script]
        if scheme == "ws":
            writer.write(accept_upgrade(fields))
            writer.writelines([*(frame(TEXT, line) for line in lines), close_frame(1000)])
            await reader.read()
            return
        body = b"".join(line + b"\n" for line in lines)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        if body:
            writer.write(f"{len(body):x}\r\n".encode() + body + b"\r\n")
        if index not in cut:
            writer.write(b"0\r\n\r\n")

    with in_thread(answer) as address:
        server.url = f"{scheme}://{address}/progress/token"
        yield server
