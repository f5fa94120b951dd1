"""Forwards local ports to ports of a pod.

Over SPDY all local connections share one connection to the runtime, over WebSocket each has its
own. A local connection that cannot be forwarded does not concern the others.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from pycrictl.errors import ConnectError, StreamError, UsageError
from pycrictl.streaming.target import TlsFiles
from pycrictl.streaming.transport import Transport, Wire, open_transport
from pycrictl.wire.portforward import (
    SPDY_PROTOCOL,
    WEBSOCKET_PROTOCOL,
    ForwardClosed,
    ForwardEnded,
    ForwardOpened,
    ForwardReceived,
    PortForward,
    SpdyForward,
    WebSocketForward,
)

__all__ = ["Forwarder", "Listener", "PortPair", "listen", "parse_pair"]

READ_BYTES: Final = 65536
HELD_BYTES: Final = 4 << 20
"""Most data that waits for a local client before no more is read from the runtime."""

_PAIR: Final = re.compile(r"(?:([0-9]{0,5}):)?([0-9]{1,5})")
_MAX_PORT: Final = 65535
_LOCALHOST: Final = ("127.0.0.1", "::1")
_TRIES: Final = 20


@dataclass(frozen=True, slots=True)
class PortPair:
    """A local port, 0 for any that is free, and the port of the pod."""

    local: int
    remote: int


@dataclass(frozen=True, slots=True)
class Listener:
    """A local socket that listens, and the port of the pod that it stands for."""

    socket: socket.socket
    remote: int

    @property
    def port(self) -> int:
        """The local port."""
        return int(self.socket.getsockname()[1])

    @property
    def label(self) -> str:
        """Address and port, as they are written in URLs."""
        host = self.socket.getsockname()[0]
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


def parse_pair(text: str) -> PortPair:
    """Read ``[LOCAL:]REMOTE``; ``:REMOTE`` and ``0:REMOTE`` are for any local port.

    Raises:
        UsageError: it is nothing of that.
    """
    match = _PAIR.fullmatch(text)
    if match is None:
        raise UsageError(f'invalid ports "{text}"', hint="write [LOCAL:]REMOTE, such as 8080:80")
    remote = int(match[2])
    local = remote if match[1] is None else int(match[1] or "0")
    if not 0 < remote <= _MAX_PORT or local > _MAX_PORT:
        raise UsageError(f'invalid ports "{text}"', hint="a port of a pod is 1 to 65535")
    return PortPair(local, remote)


def listen(
    addresses: Sequence[str], pairs: Sequence[PortPair], *, note: Callable[[str], None]
) -> list[Listener]:
    """Listen on all addresses for each pair, in its order.

    An address where the port is taken is left out; ``note`` is told of a pair without any left.

    Args:
        addresses: IP addresses, or ``localhost`` for both loopback addresses.

    Raises:
        UsageError: an address is none.
        ConnectError: nothing is left at all.
    """
    hosts = [host for name in addresses for host in (_LOCALHOST if name == "localhost" else [name])]
    families = [_family(host) for host in hosts]
    listeners: list[Listener] = []
    for pair in pairs:
        sockets, reason = _listen(list(zip(hosts, families, strict=True)), pair.local)
        if not sockets:
            note(f"cannot listen on port {pair.local}: {reason}")
        listeners += [Listener(each, pair.remote) for each in sockets]
    if not listeners:
        raise ConnectError("none of the local ports can be listened on")
    return listeners


def _family(host: str) -> socket.AddressFamily:
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError):
            socket.inet_pton(family, host)
            return family
    raise UsageError(f'"{host}" is no IP address', hint="or localhost, for 127.0.0.1 and ::1")


def _listen(
    hosts: Sequence[tuple[str, socket.AddressFamily]], port: int
) -> tuple[list[socket.socket], str]:
    """Listen on one port everywhere; return the sockets, and why there is one less."""
    for _ in range(_TRIES):
        sockets: list[socket.socket] = []
        chosen, reason, is_taken = port, "", False
        for host, family in hosts:
            try:
                created = socket.create_server((host, chosen), family=family, backlog=128)
            except OSError as exc:
                reason = os.strerror(exc.errno or 0).lower()
                is_taken = is_taken or exc.errno == errno.EADDRINUSE
                continue
            sockets.append(created)
            chosen = chosen or created.getsockname()[1]
        # A number that was free at the first address only: ask for another one.
        if port or not sockets or not is_taken:
            break
        for each in sockets:
            each.close()
    return sockets, reason


class Forwarder:
    """Forwards the connections of listeners until it is cancelled.

    Args:
        ask_url: asks the runtime for a stream URL to these ports. Called in threads.
        handled: is told the local port of each connection.
        note: is told in a line what goes wrong with one.
    """

    def __init__(
        self,
        ask_url: Callable[[Sequence[int]], str],
        *,
        transport: Transport,
        timeout_s: float,
        tls: TlsFiles | None = None,
        handled: Callable[[int], None],
        note: Callable[[str], None],
    ) -> None:
        self._ask_url = ask_url
        self._transport: Transport = transport
        self._timeout_s = timeout_s
        self._tls = tls
        self._handled = handled
        self._note = note
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[None] | None = None
        self._shared: _Tunnel | None = None

    async def run(self, listeners: Sequence[Listener], *, ready: Callable[[], None]) -> None:
        """Connect to the runtime, call ``ready``, and forward. The listeners are closed in the end.

        Raises:
            StreamError: the stream was refused, or the connection that all share was lost.
            ConnectError: the server of the stream cannot be reached.
        """
        self._failed = asyncio.get_running_loop().create_future()
        servers: list[asyncio.Server] = []
        try:
            if self._transport == "spdy":
                self._shared = await self._open_spdy()
                self._watch(self._shared)
            for listener in listeners:
                servers.append(await self._serve(listener))
            ready()
            await self._failed
        finally:
            for server in servers:
                server.close()
            for listener in listeners:
                listener.socket.close()
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, listener: Listener) -> asyncio.Server:
        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                await self._forward(reader, writer, listener)
            except asyncio.CancelledError:
                pass  # the end of everything; raising would be logged as an error of the server
            finally:
                writer.transport.abort()
                self._tasks.discard(task)

        return await asyncio.start_server(accepted, sock=listener.socket, limit=READ_BYTES)

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, listener: Listener
    ) -> None:
        self._handled(listener.port)
        writer.transport.set_write_buffer_limits(HELD_BYTES)
        try:
            if self._shared is not None:
                error = await self._shared.forward(reader, writer, listener.remote)
            else:
                error = await self._forward_alone(reader, writer, listener.remote)
        except (StreamError, ConnectError) as exc:
            error = exc.message
        except OSError:
            error = ""  # the local client went away
        if error:
            self._note(f"forwarding {listener.port} -> {listener.remote}: {error}")

    async def _forward_alone(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int
    ) -> str:
        url = await asyncio.to_thread(self._ask_url, [port])
        opened = await open_transport(
            "websocket", url, [WEBSOCKET_PROTOCOL], timeout_s=self._timeout_s, tls=self._tls
        )
        tunnel = _Tunnel(opened.wire, WebSocketForward([port]))
        moving = asyncio.create_task(tunnel.run())
        try:
            return await tunnel.forward(reader, writer, port)
        finally:
            moving.cancel()
            await asyncio.gather(moving, return_exceptions=True)
            opened.wire.abort()

    async def _open_spdy(self) -> _Tunnel:
        url = await asyncio.to_thread(self._ask_url, [])
        opened = await open_transport(
            "spdy", url, [SPDY_PROTOCOL], timeout_s=self._timeout_s, tls=self._tls
        )
        return _Tunnel(opened.wire, SpdyForward())

    def _watch(self, tunnel: _Tunnel) -> None:
        async def watch() -> None:
            assert self._failed is not None
            try:
                await tunnel.run()
                raise StreamError("the connection to the pod was lost")
            except StreamError as exc:
                if not self._failed.done():
                    self._failed.set_exception(exc)
            finally:
                tunnel.abort()

        self._tasks.add(asyncio.create_task(watch()))


class _Local:
    """A local connection that is forwarded."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.opened = asyncio.Event()
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()


class _Tunnel:
    """A connection to the runtime, with the local connections that go through it."""

    def __init__(self, wire: Wire, core: PortForward) -> None:
        self._wire = wire
        self._core = core
        self._locals: dict[int, _Local] = {}
        self.abort = wire.abort

    async def run(self) -> None:
        """Move what comes from the pod until there is an end.

        Raises:
            StreamError: the connection broke, or ended with something to forward.
        """
        core, broken = self._core, None
        while not core.is_over:
            self._flush()
            try:
                pieces = await self._wire.read()
            except StreamError as exc:
                broken, pieces = exc, []
            for piece in pieces:
                core.receive_data(bytes(piece))
            if not pieces:
                core.receive_eof()
            await self._handle_events()
        self._flush()
        if core.error is not None:
            raise broken or core.error

    async def forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int
    ) -> str:
        """Forward a local connection to its end; return what went wrong, or nothing."""
        local = _Local(reader, writer)
        number = self._core.open(port) if isinstance(self._core, SpdyForward) else 0
        self._locals[number] = local
        self._flush()
        sending = asyncio.create_task(self._send(number, local))
        try:
            error = await local.closed
            with suppress(OSError):
                writer.close()
                await writer.wait_closed()
            return error
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            del self._locals[number]
            self._core.abort(number)
            self._flush()

    async def _send(self, number: int, local: _Local) -> None:
        await local.opened.wait()
        try:
            while data := await local.reader.read(READ_BYTES):
                self._core.send(number, data)
                self._flush()
                await self._wire.drain()
        except StreamError:
            return  # the reading side tells of it
        except OSError:  # the local client broke it off
            self._close(local)
            return
        if self._core.can_end:
            self._core.end(number)
            self._flush()

    async def _handle_events(self) -> None:
        for event in self._core.events_received():
            local = self._locals.get(event.number)
            if local is None or local.closed.done():
                continue
            match event:
                case ForwardOpened():
                    local.opened.set()
                case ForwardReceived():
                    local.writer.write(event.data)
                    try:
                        await local.writer.drain()
                    except OSError:
                        self._close(local)
                case ForwardEnded():
                    with suppress(OSError):
                        local.writer.write_eof()
                case ForwardClosed():
                    self._close(local, event.error)

    def _close(self, local: _Local, error: str = "") -> None:
        if not local.closed.done():
            local.closed.set_result(error)

    def _flush(self) -> None:
        self._wire.send(self._core.data_to_send())
