"""The streaming server: an HTTP listener on which a one-time URL becomes a progress stream.

A request that upgrades to a WebSocket gets a text message for each record and, at the end, a normal
close. Any other GET gets the same records as lines of a chunked body, so that ``curl -N`` works.

A web page must not reach this server through somebody's browser: a request that names another
origin, or another host than this one, is refused before its token is looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import AsyncGenerator, Callable
from typing import Final, Generic, NamedTuple, TypeVar
from urllib.parse import urlsplit

from websockets.frames import CloseCode
from websockets.protocol import Protocol, Side
from websockets.protocol import State as WebSocketState

from pycrictl.errors import ConfigError, RemoteProtocolError
from pycrictl.proxy.log import Log
from pycrictl.units import quote
from pycrictl.wire.http1_server import (
    LAST_CHUNK,
    MAX_HEAD_BYTES,
    Request,
    accept_key,
    chunk,
    parse_request,
    serialize_response,
)
from pycrictl.wire.progress import Report, encode_report

PATH: Final = "/progress/"

MAX_CONNECTIONS: Final = 512
HEAD_TIMEOUT_S: Final = 10.0
STUCK_S: Final = 60.0
"""How long a client may take nothing of what it is sent."""

_BUFFER_BYTES: Final = 64 * 1024
_MAX_MESSAGE_BYTES: Final = 4096  # nothing that a client sends matters
_GOODBYE_S: Final = 1.0

PayloadT = TypeVar("PayloadT")


class _Refused(Exception):
    def __init__(self, status: int, reason: str, *headers: tuple[str, str]) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = headers


class Address(NamedTuple):
    """Where to listen."""

    host: str
    port: int

    @property
    def authority(self) -> str:
        """As URLs write it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Reads ``HOST:PORT`` with an IP address, ``[…]`` around one of version 6.

    Raises:
        ValueError: it is no such address, or it stands for all of the machine's.
    """
    host, colon, port = text.rpartition(":")
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        raise ValueError(f"{quote(text)} is not IP:PORT, such as 127.0.0.1:0") from None
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{quote(text)} is not IP:PORT, such as 127.0.0.1:0")
    if address.is_unspecified:
        raise ValueError(f"{quote(text)} stands for all addresses, but a URL needs one")
    return Address(str(address), int(port))


class StreamServer(Generic[PayloadT]):
    """Serves streams.

    Args:
        redeem: uses up a token; None if it is not good.
        follow: the records of the stream that a token is for.
        log: gets a line for each stream.
    """

    def __init__(
        self,
        *,
        redeem: Callable[[str], PayloadT | None],
        follow: Callable[[PayloadT], AsyncGenerator[list[Report], None]],
        log: Log,
    ) -> None:
        self._redeem = redeem
        self._follow = follow
        self._log = log
        self._address = Address("", 0)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, address: Address) -> None:
        """Begins to listen.

        Raises:
            ConfigError: that is not possible there.
        """
        try:
            self._server = await asyncio.start_server(
                self._accept, address.host, address.port, limit=MAX_HEAD_BYTES
            )
        except OSError as exc:
            raise ConfigError(
                f"cannot listen on {quote(address.authority)}: {(exc.strerror or str(exc)).lower()}"
            ) from None
        port: int = self._server.sockets[0].getsockname()[1]
        self._address = Address(address.host, port)

    @property
    def address(self) -> Address:
        """Where it listens; the port is a real one."""
        return self._address

    def url(self, token: str) -> str:
        """The URL that a token opens."""
        return f"http://{self._address.authority}{PATH}{token}"

    async def stop(self) -> None:
        """Ends all streams."""
        if self._server is not None:
            self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= MAX_CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        # The kernel's buffer is the larger one; this only bounds what is written at once.
        writer.transport.set_write_buffer_limits(high=_BUFFER_BYTES)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client is gone, or sends something else than HTTP
        finally:
            self._tasks.discard(task)
            await _close(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(HEAD_TIMEOUT_S):
            head = await reader.readuntil(b"\r\n\r\n")
        try:
            request = parse_request(head)
            self._check(request)
            accept = accept_key(request) if request.wants_websocket else ""
            if accept is None:
                raise _Refused(400, "Bad Request")
            token = request.target.removeprefix(PATH)
            payload = self._redeem(token) if request.target.startswith(PATH) else None
            if payload is None:
                raise _Refused(404, "Not Found")
        except RemoteProtocolError:
            await self._refuse(writer, _Refused(400, "Bad Request"))
            return
        except _Refused as refused:
            await self._refuse(writer, refused)
            return
        stream = _WebSocket(accept) if accept else _Lines(request.minor_version)
        await self._run(stream, payload, reader, writer)

    def _check(self, request: Request) -> None:
        """Refuses what a page of another site could make a browser send (and DNS rebinding)."""
        names = {self._address.authority, f"localhost:{self._address.port}"}
        if (request.headers.get("Host") or "").lower() not in names:
            raise _Refused(403, "Forbidden")
        for origin in request.headers.get_all("Origin"):
            try:
                netloc = urlsplit(origin).netloc.lower()
            except ValueError:
                netloc = ""
            if netloc not in names:
                raise _Refused(403, "Forbidden")
        if request.method != "GET":
            raise _Refused(405, "Method Not Allowed", ("Allow", "GET"))

    async def _refuse(self, writer: asyncio.StreamWriter, refused: _Refused) -> None:
        body = f"{refused.reason.lower()}\n".encode()
        headers = [
            *refused.headers,
            ("Content-Type", "text/plain"),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
        ]
        writer.write(serialize_response(refused.status, refused.reason, headers, body))
        async with asyncio.timeout(HEAD_TIMEOUT_S):
            await writer.drain()

    async def _run(
        self,
        stream: _WebSocket | _Lines,
        payload: PayloadT,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        loop = asyncio.get_running_loop()
        began_at, end, records = loop.time(), "done", 0
        writer.write(stream.head())
        sender = asyncio.current_task()
        assert sender is not None
        listener = asyncio.create_task(_listen(stream, reader, writer))

        def leave(_: asyncio.Task[None]) -> None:
            sender.cancel()

        listener.add_done_callback(leave)
        try:
            async with contextlib.aclosing(self._follow(payload)) as batches:
                async for batch in batches:
                    records += len(batch)
                    # In pieces, as a batch may hold thousands of records.
                    for report in batch:
                        writer.write(stream.record(encode_report(report)))
                        if writer.transport.get_write_buffer_size() > _BUFFER_BYTES:
                            await _drain(writer)
                    await _drain(writer)
            writer.write(stream.end(CloseCode.NORMAL_CLOSURE))
            await _drain(writer)
            listener.remove_done_callback(leave)
            if stream.is_answered:
                await asyncio.wait({listener}, timeout=_GOODBYE_S)
        except asyncio.CancelledError:
            end = "gone" if listener.done() else "stopped"
            writer.write(stream.end(CloseCode.GOING_AWAY))
            if end == "stopped":
                raise
            sender.uncancel()
        except (OSError, TimeoutError) as exc:
            end = "stuck" if isinstance(exc, TimeoutError) else "gone"
            writer.transport.abort()
        finally:
            listener.cancel()
            self._log.info(
                "stream",
                target=str(payload),
                kind=stream.kind,
                end=end,
                records=records,
                duration_s=round(loop.time() - began_at, 3),
            )


class _Lines:
    """Records as lines of a body: chunked, or up to the end of the connection for HTTP/1.0."""

    kind = "http"
    is_over = False
    is_answered = False

    def __init__(self, minor_version: int) -> None:
        self._is_chunked = minor_version > 0

    def head(self) -> bytes:
        headers = [
            ("Content-Type", "application/x-ndjson"),
            ("Cache-Control", "no-store"),
            ("Connection", "close"),
        ]
        if self._is_chunked:
            headers.append(("Transfer-Encoding", "chunked"))
        return serialize_response(200, "OK", headers)

    def record(self, text: str) -> bytes:
        line = text.encode() + b"\n"
        return chunk(line) if self._is_chunked else line

    def end(self, code: CloseCode) -> bytes:
        # A body that is cut short has no last chunk.
        is_whole = self._is_chunked and code is CloseCode.NORMAL_CLOSURE
        return LAST_CHUNK if is_whole else b""

    def receive(self, data: bytes) -> bytes:
        return b""


class _WebSocket:
    """Records as text messages."""

    kind = "websocket"
    is_answered = True  # a close is, by a close

    def __init__(self, accept: str) -> None:
        self._accept = accept
        self._protocol = Protocol(
            Side.SERVER, state=WebSocketState.OPEN, max_size=_MAX_MESSAGE_BYTES
        )

    def head(self) -> bytes:
        headers = [
            ("Upgrade", "websocket"),
            ("Connection", "Upgrade"),
            ("Sec-WebSocket-Accept", self._accept),
        ]
        return serialize_response(101, "Switching Protocols", headers)

    def record(self, text: str) -> bytes:
        if self._protocol.state is WebSocketState.OPEN:
            self._protocol.send_text(text.encode())
        return self._output()

    def end(self, code: CloseCode) -> bytes:
        if self._protocol.state is WebSocketState.OPEN:
            self._protocol.send_close(code)
        return self._output()

    def receive(self, data: bytes) -> bytes:
        """Takes what the client sends; returns what to answer: pongs, and a close."""
        self._protocol.receive_data(data)
        self._protocol.events_received()
        return self._output()

    @property
    def is_over(self) -> bool:
        """Whether the client closed the stream or broke the protocol."""
        return self._protocol.close_rcvd is not None or self._protocol.parser_exc is not None

    def _output(self) -> bytes:
        return b"".join(self._protocol.data_to_send())


async def _listen(
    stream: _WebSocket | _Lines,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Reads what the client sends, until it goes; then the stream need not go on."""
    with contextlib.suppress(OSError):
        while data := await reader.read(_MAX_MESSAGE_BYTES):
            if answer := stream.receive(data):
                writer.write(answer)
                if writer.transport.get_write_buffer_size() > 2 * _BUFFER_BYTES:
                    break  # it asks for pongs and takes none
            if stream.is_over:
                break


async def _drain(writer: asyncio.StreamWriter) -> None:
    async with asyncio.timeout(STUCK_S):
        await writer.drain()


async def _close(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_GOODBYE_S):
            writer.close()
            await writer.wait_closed()
    writer.transport.abort()
