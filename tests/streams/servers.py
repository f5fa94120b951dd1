"""Servers on 127.0.0.1 that misbehave exactly as a test wants, and certificates for them."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from websockets.utils import accept_key

from tests.streams.wire.frames import masked

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Result = TypeVar("Result")


def run(scenario: Coroutine[Any, Any, Result]) -> Result:
    """Run a scenario in its own event loop, with a timeout."""
    return asyncio.run(asyncio.wait_for(scenario, 60))


@asynccontextmanager
async def serve(
    handler: Handler, *, context: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[str]:
    """Serve every connection with ``handler``, then close it; yield ``host:port``."""
    tasks: set[asyncio.Task[None]] = set()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await handler(reader, writer)
            if not writer.is_closing():  # after a second close, Python 3.11.2 cannot abort TLS
                writer.close()
            await writer.wait_closed()  # until everything is sent
        except (OSError, asyncio.IncompleteReadError):
            writer.transport.abort()  # the client disconnected
        except asyncio.CancelledError:
            # The scenario is over; raising would be logged as an error of the server.
            writer.transport.abort()
        finally:
            tasks.discard(task)

    server = await asyncio.start_server(accepted, host, 0, ssl=context)
    try:
        port = server.sockets[0].getsockname()[1]
        yield f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    finally:
        server.close()
        left = list(tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left)


async def write(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Write, and return once the kernel has all data: closing the connection then loses none."""
    writer.transport.set_write_buffer_limits(0)
    writer.write(data)
    await writer.drain()


async def send(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    pieces: Iterable[bytes],
    *,
    pause_s: float,
    stays: bool,
) -> None:
    """Send piece by piece; if the server ``stays``, then wait until the client disconnects."""
    for piece in pieces:
        await write(writer, piece)
        await asyncio.sleep(pause_s)
    if stays:
        await reader.read()


async def read_head(reader: asyncio.StreamReader) -> dict[str, str]:
    """Read a request head; return its fields by lower-case name, its first line under ``""``."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    fields = {"": lines[0]}
    for line in lines[1:-2]:
        name, _, value = line.partition(":")
        fields[name.lower()] = value.strip()
    return fields


def accept_upgrade(fields: dict[str, str], *more: str) -> bytes:
    """Return the response that opens a WebSocket, with additional header lines."""
    accept = accept_key(fields["sec-websocket-key"])
    lines = ["Upgrade: websocket", "Connection: Upgrade", f"Sec-WebSocket-Accept: {accept}", *more]
    return "\r\n".join(["HTTP/1.1 101 Switching Protocols", *lines, "", ""]).encode()


async def read_frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Read a client's short frame; return opcode and payload."""
    first, second = await reader.readexactly(2)
    assert second & 0x80, "a client must mask"
    key = await reader.readexactly(4)
    return first & 0xF, masked(await reader.readexactly(second & 0x7F), key)


@dataclass(frozen=True)
class Certificates:
    """Paths of a throwaway CA, a server certificate for localhost, and a client certificate."""

    folder: Path

    @property
    def ca(self) -> str:
        return str(self.folder / "ca.pem")

    def cert(self, name: str) -> str:
        return str(self.folder / f"{name}.pem")

    def key(self, name: str) -> str:
        return str(self.folder / f"{name}.key")

    def server_context(self, *, wants_client_cert: bool = False) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert("server"), self.key("server"))
        if wants_client_cert:
            context.load_verify_locations(self.ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


NAMES = "DNS:node.test,IP:127.0.0.1"


def make_certificates(
    folder: Path, names: str = NAMES, is_bare: bool = False, /, **clients: str
) -> Certificates:
    """Make a CA, and the certificates that it signs, with the openssl program.

    ``names`` are the server's; ``clients`` are the subjects of the clients' certificates. Bare
    certificates lack extensions that Python requires since 3.13.
    """
    clients = clients or {"client": "/CN=client"}
    issuer = "" if is_bare else "authorityKeyIdentifier=keyid\n"

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl(
        *("req", "-x509", "-days", "2", *new_key, "-subj", "/CN=throwaway CA"),
        "-keyout", "ca.key", "-out", "ca.pem",
        *(() if is_bare else ("-addext", "keyUsage=critical,keyCertSign,cRLSign")),
    )  # fmt: skip
    (folder / "server.ext").write_text(f"{issuer}subjectAltName={names}\n")
    for name, subject in {"server": "/CN=server", **clients}.items():
        if name != "server":
            (folder / f"{name}.ext").write_text(f"{issuer}extendedKeyUsage=clientAuth\n")
        openssl(
            *("req", "-new", *new_key, "-subj", subject),
            "-keyout", f"{name}.key", "-out", f"{name}.csr",
        )  # fmt: skip
        openssl(
            "x509", "-req", "-days", "2", "-in", f"{name}.csr", "-extfile", f"{name}.ext",
            "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-out", f"{name}.pem",
        )  # fmt: skip
    return Certificates(folder)


@contextmanager
def in_thread(handler: Handler, *, context: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serve as ``serve`` does, but in a thread, for tests without an event loop."""
    loop = asyncio.new_event_loop()
    addresses: SimpleQueue[str] = SimpleQueue()
    over = asyncio.Event()

    async def serving() -> None:
        async with serve(handler, context=context) as address:
            addresses.put(address)
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serving(),))
    thread.start()
    try:
        yield addresses.get(timeout=60)
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(60)
        loop.close()
