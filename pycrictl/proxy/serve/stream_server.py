"""The streaming server: an HTTP listener on which a one-time URL becomes a stream.

It listens on the port in its URLs and, for clients in another network namespace, on a Unix socket.

For a progress stream, a request that upgrades to a WebSocket gets a text message for each record
and, at the end, a normal close. Any other GET gets the same records as lines of a chunked body,
which works with ``curl -N``. A copy stream is always a WebSocket, served by its token's payload.

A token alone gives permission to open its URL, so it is random (192 bits), works once and soon
expires. Only its hash is kept: neither a dump of this object nor the duration of a lookup reveals
anything about a valid token. The number of unused tokens is limited.

A web page must not reach this server through a browser: a request with a foreign ``Origin`` or
``Host`` is refused before its token is looked up.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import socket
from collections.abc import AsyncGenerator, Callable, Coroutine
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, TypeAlias

from websockets.datastructures import Headers
from websockets.frames import CloseCode
from websockets.http11 import Request, Response
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from pycrictl.base import limits
from pycrictl.base.address import Address
from pycrictl.base.errors import Exhausted
from pycrictl.base.servicelog import Log
from pycrictl.base.units import format_duration
from pycrictl.copy.transfer.messages import STREAM_PROTOCOL
from pycrictl.proxy.events import Emit, StreamEnded
from pycrictl.proxy.serve.http_server import (
    LAST,
    MAX_MESSAGE_BYTES,
    Connection,
    HttpServer,
    RequestRefused,
    Work,
    listening,
    places,
)
from pycrictl.streams.loop import end_tasks

PROGRESS_PATH: Final = "/progress/"
COPY_PATH: Final = "/copy/"

TOKEN_BYTES: Final = 24
LIFETIME_S: Final = 60.0
MAX_OUTSTANDING: Final = 1_000

ServeCopy: TypeAlias = Callable[[socket.socket, bytes], Coroutine[Any, Any, None]]
"""Sends the bytes, which end the handshake, on the socket, and then serves a copy there."""


class StreamServer(HttpServer):
    """Serves the URLs of ``tokens``; a payload is a ``ServeCopy``, or an argument for ``follow``.

    ``follow`` yields the records of a progress stream in batches. ``stuck_s`` limits a write.
    """

    def __init__(
        self,
        tokens: Tokens,
        follow: Callable[[Any], AsyncGenerator[list[str], None]],
        emit: Emit,
        log: Log,
        *,
        connections: int = limits.STREAM_CONNECTIONS,
        head_s: float = limits.HEAD_S,
        stuck_s: float = 60.0,
    ) -> None:
        super().__init__(places(connections, limits.STREAM_SHARE), log, head_s=head_s)
        self._stuck_s = stuck_s
        self._tokens = tokens
        self._follow = follow
        self._emit = emit
        self.address = Address("", 0)
        self._progress: dict[asyncio.Task[str], Any] = {}
        self._is_elsewhere: Callable[[Any], bool] = lambda target: False

    def start(self, address: Address) -> None:
        listener = listening(address)
        self.listen(listener)
        self.address = Address(address.host, listener.getsockname()[1])
        self._tokens.authority = self.address.authority

    def listen_in(self, folder: Path) -> None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(folder / str(self.address.port)))
        self.listen(listener)

    def leave(self, is_elsewhere: Callable[[Any], bool]) -> None:
        """End progress streams that another process continues, both open and future ones."""
        self._is_elsewhere = is_elsewhere
        for task, target in self._progress.items():
            if is_elsewhere(target):
                task.cancel()

    def _route(self, request: Request, connection: Connection) -> Work:
        """Redeem the token of a valid request, and return the coroutine that serves it."""
        self._check(request)
        target, now = request.path, self._loop.time()
        if not self._tokens.is_valid(target, now=now):
            raise RequestRefused(HTTPStatus.NOT_FOUND)
        sock, protocol, early = connection
        is_copy = target.startswith(COPY_PATH)
        form: _Lines | _Messages = _Lines()
        if is_copy or request.headers.get_all("Upgrade"):
            form = _Messages(protocol)
            accepted = protocol.accept(request)
            if accepted.status_code != HTTPStatus.SWITCHING_PROTOCOLS or (
                is_copy and (early or protocol.subprotocol != STREAM_PROTOCOL)
            ):
                raise RequestRefused(HTTPStatus.BAD_REQUEST)
            protocol.send_response(accepted)
        payload = self._tokens.redeem(target, now=now)
        if is_copy:
            serve: ServeCopy = payload
            return serve(sock, b"".join(protocol.data_to_send()))
        return self._serve(sock, form, payload, early)

    def _check(self, request: Request) -> None:
        """Refuse requests that another site's page could cause, directly or by DNS rebinding."""
        names = {self.address.authority, f"localhost:{self.address.port}"}
        origins = {origin.lower() for origin in request.headers.get_all("Origin")}
        if request.headers["Host"].lower() not in names or origins - {f"http://{n}" for n in names}:
            raise RequestRefused(HTTPStatus.FORBIDDEN)

    async def _serve(
        self, sock: socket.socket, form: _Lines | _Messages, target: Any, early: bytes
    ) -> None:
        loop = asyncio.get_running_loop()
        began_at, end, records = loop.time(), "stopped", 0
        is_free = asyncio.Lock()

        async def send(data: bytes) -> None:
            async with asyncio.timeout(self._stuck_s), is_free:
                await loop.sock_sendall(sock, data)

        async def send_records() -> str:
            nonlocal records
            try:
                await send(form.head())
                async with contextlib.aclosing(self._follow(target)) as batches:
                    async for batch in batches:
                        records += len(batch)
                        await send(b"".join(form.record(message) for message in batch))
                await send(form.end(is_whole=True))
            except TimeoutError:
                return "stuck"
            except OSError:
                return "gone"
            return "done"

        async def listen() -> None:
            """Read from the client until it disconnects, which ends the stream."""
            data = early
            with contextlib.suppress(OSError):
                while True:
                    if answer := form.receive(data):
                        await send(answer)
                    if form.is_over or not (data := await loop.sock_recv(sock, MAX_MESSAGE_BYTES)):
                        break

        sender, listener = loop.create_task(send_records()), loop.create_task(listen())
        self._progress[sender] = target
        if self._is_elsewhere(target):
            sender.cancel()
        try:
            await asyncio.wait({sender, listener}, return_when=asyncio.FIRST_COMPLETED)
            if not sender.cancelled():
                end = sender.result() if sender.done() else "gone"
            if end == "done" and form.is_answered:
                await asyncio.wait({listener}, timeout=limits.GOODBYE_S)
        finally:
            if end == "stopped":
                with contextlib.suppress(OSError):
                    sock.send(form.end(is_whole=False))
            del self._progress[sender]
            self._emit(StreamEnded(str(target), form.kind, end, records, loop.time() - began_at))
            try:
                await end_tasks({sender, listener})
            finally:
                sock.close()


# One-time tokens; pure


class Tokens:
    """The valid tokens. Not thread-safe; ``now`` must never decrease.

    ``authority`` is the address in URLs, ``IP:PORT``, once the streaming server listens.
    """

    def __init__(
        self,
        *,
        lifetime_s: float = LIFETIME_S,
        max_outstanding: int = MAX_OUTSTANDING,
    ) -> None:
        self._lifetime_s = lifetime_s
        self._max_outstanding = max_outstanding
        self._grants: dict[bytes, tuple[Any, float]] = {}  # payloads and ends; the oldest first
        self.refused = 0
        self.authority = ""

    def outstanding(self, now: float) -> int:
        """Forget expired tokens, which are the oldest; return how many are left."""
        for digest, (_, expires_at) in list(self._grants.items()):
            if expires_at > now:
                break
            del self._grants[digest]
        return len(self._grants)

    def issue(self, path: str, payload: object, *, now: float) -> str:
        """Return a URL below ``path``, for which ``redeem`` returns ``payload``.

        Raises:
            Exhausted: too many tokens are unused.
        """
        if self.outstanding(now) >= self._max_outstanding:
            self.refused += 1
            message = (
                f"{self._max_outstanding} stream URLs are waiting to be opened; try again later"
            )
            raise Exhausted(
                message,
                code="ResourceExhausted",
                details=message,
                hint=f"a URL that nobody opens expires after {format_duration(self._lifetime_s)}",
            )
        target = path + secrets.token_urlsafe(TOKEN_BYTES)
        self._grants[_digest(target)] = payload, now + self._lifetime_s
        return f"http://{self.authority}{target}"

    def is_valid(self, target: str, *, now: float) -> bool:
        """Return whether ``redeem`` would take the token in a URL's path."""
        self.outstanding(now)
        return _digest(target) in self._grants

    def redeem(self, target: str, *, now: float) -> Any:
        """Use up the token in a URL's path, and return its payload; None if it is not valid."""
        self.outstanding(now)
        payload, _ = self._grants.pop(_digest(target), (None, now))
        return payload


def _digest(target: str) -> bytes:
    # A target from a request may contain lone surrogates.
    return hashlib.sha256(target.encode("utf-8", "surrogatepass")).digest()


# The two forms of a progress stream


class _Lines:
    """Records as lines of a chunked body."""

    kind = "http"
    is_over = is_answered = False

    def head(self) -> bytes:
        fields = {"Content-Type": "application/x-ndjson", "Transfer-Encoding": "chunked", **LAST}
        return Response(HTTPStatus.OK, "OK", Headers(fields)).serialize()

    def record(self, text: str) -> bytes:
        line = text.encode() + b"\n"
        return b"%x\r\n%b\r\n" % (len(line), line)

    def end(self, *, is_whole: bool) -> bytes:
        """Return the end of the body, or nothing if the body is cut short."""
        return b"0\r\n\r\n" if is_whole else b""

    def receive(self, data: bytes) -> bytes:
        return b""


class _Messages:
    """Records as WebSocket messages, until either side has closed."""

    kind = "websocket"
    is_answered = True  # the client answers a close frame

    def __init__(self, protocol: ServerProtocol) -> None:
        self._protocol = protocol

    def head(self) -> bytes:
        return self._output()

    def record(self, text: str) -> bytes:
        if self._protocol.state is OPEN:
            self._protocol.send_text(text.encode())
        return self._output()

    def end(self, *, is_whole: bool) -> bytes:
        if self._protocol.state is OPEN:
            code = CloseCode.NORMAL_CLOSURE if is_whole else CloseCode.GOING_AWAY
            self._protocol.send_close(code)
        return self._output()

    def receive(self, data: bytes) -> bytes:
        """Process data from the client; return the reply to send: pongs or a close frame."""
        if data:
            self._protocol.receive_data(data)
        self._protocol.events_received()
        return self._output()

    @property
    def is_over(self) -> bool:
        return self._protocol.close_rcvd is not None or self._protocol.parser_exc is not None

    def _output(self) -> bytes:
        return b"".join(self._protocol.data_to_send())
