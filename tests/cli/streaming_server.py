"""The streaming server of a fake runtime: commands with prepared outcomes, and progress streams."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pycrictl._proto import cri_pb2
from tests.fakecri import FakeServer
from tests.streams.servers import accept_upgrade, in_thread, read_head
from tests.streams.spdy_server import SUCCESS, UPGRADE, SpdyPeer, failure
from tests.streams.wire.frames import BINARY, TEXT, close_frame, frame


@dataclass(frozen=True)
class Played:
    """What a command does: its outputs, and how it ends.

    Attributes:
        failure: why it did not start.
        is_cat: whether it copies its input to its output, before ``stdout``.
        peers: its connections over SPDY, with the input that has come.
    """

    stdout: bytes = b""
    stderr: bytes = b""
    code: int = 0
    failure: str = ""
    is_cat: bool = False
    peers: list[SpdyPeer] = field(default_factory=list)

    @property
    def status(self) -> bytes:
        if self.failure:
            status = {"status": "Failure", "message": self.failure, "reason": "InternalError"}
            return json.dumps(status).encode()
        return failure(self.code) if self.code else SUCCESS


@contextmanager
def playing(
    fake: FakeServer, command: Played, *, context: ssl.SSLContext | None = None
) -> Iterator[list[str]]:
    """Make ``fake`` return URLs where every command is ``command``; yield the upgrades.

    Args:
        context: for TLS; None serves plain HTTP.
    """
    upgrades: list[str] = []
    requests: list[Any] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fields = await read_head(reader)
        upgrades.append(fields["upgrade"])
        request = requests[-1]
        if fields["upgrade"] == "websocket":
            if "v4.channel.k8s.io" not in fields["sec-websocket-protocol"]:
                writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
                return
            writer.write(accept_upgrade(fields, "Sec-WebSocket-Protocol: v4.channel.k8s.io"))
            outputs = (b"\x01", b"\x01" + command.stdout, b"\x02" + command.stderr)
            for message in (*outputs, b"\x03" + command.status):
                writer.write(frame(BINARY, message))
            writer.write(close_frame(1000))
        else:
            writer.write(UPGRADE.format("v4.channel.k8s.io").encode())
            peer = SpdyPeer(reader, writer)
            command.peers.append(peer)
            await peer.accept(2 + request.stdin + request.stderr + request.tty)
            if command.is_cat:
                await peer.read_stdin()
                peer.say("stdout", peer.stdin)
            peer.say("stdout", command.stdout)
            if request.stderr:
                peer.say("stderr", command.stderr)
                peer.end("stderr")
            peer.end("stdout")
            peer.say("error", command.status, is_last=True)
        await reader.read()

    with in_thread(handle, context=context) as address:
        scheme = "http" if context is None else "https"

        def answer(request: Any, _: Any) -> Any:
            requests.append(request)
            name = type(request).__name__.removesuffix("Request")
            return getattr(cri_pb2, f"{name}Response")(url=f"{scheme}://{address}/token/secret")

        for method in ("Exec", "Attach"):
            fake.offer(method, answer)
        yield upgrades


# Progress: each connection gets the next script

Record = dict[str, Any]


@dataclass
class ProgressServer:
    """The URL of the streams, and how many connections were made."""

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
