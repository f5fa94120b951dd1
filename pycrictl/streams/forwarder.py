"""Forwards local ports to ports of a pod.

Each local connection has its own connection to the runtime. On a shared one, a client that does not
read would block the others, and containerd stops reading at data for a stream that it has
abandoned. The protocol is SPDY, as WebSocket cannot close one direction alone, with a stream for
data and one for an error text, which have the same ``requestid``. A local connection that cannot
be forwarded does not affect the others.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from pycrictl.base.environ import raise_file_limit
from pycrictl.base.errors import ConnectError, PycrictlError, StreamError, UsageError
from pycrictl.streams.bytestream import ByteStream
from pycrictl.streams.loop import end_tasks, in_thread
from pycrictl.streams.remote_command import open_transport
from pycrictl.streams.target import TlsFiles
from pycrictl.streams.wire.channels import ChannelEnded, ChannelReceived, ChannelsOpened
from pycrictl.streams.wire.spdy import SpdyChannels

PROTOCOL: Final = "portforward.k8s.io"
MAX_ERROR_BYTES: Final = 65536
"""Longest error text of the runtime; a longer one is truncated."""

_DATA, _ERROR = 0, 1
_PAIR: Final = re.compile(r"(?:([0-9]{0,5}):)?([0-9]{1,5})")
_MAX_PORT: Final = 65535
_LOCALHOST: Final = ("127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class PortPair:
    """A local port, 0 for any free one, and a port of the pod."""

    local: int
    remote: int


@dataclass(frozen=True, slots=True)
class Listener:
    socket: socket.socket
    remote: int

    @property
    def port(self) -> int:
        return int(self.socket.getsockname()[1])

    @property
    def label(self) -> str:
        return _label(self.socket.getsockname()[0], self.port)


def parse_pair(text: str) -> PortPair:
    """Parse ``[LOCAL:]REMOTE``; ``:REMOTE`` and ``0:REMOTE`` mean any free local port."""
    match = _PAIR.fullmatch(text)
    if match is None:
        raise UsageError(f'invalid ports "{text}"', hint="write [LOCAL:]REMOTE, such as 8080:80")
    remote = int(match[2])
    local = remote if match[1] is None else int(match[1] or "0")
    if not 0 < remote <= _MAX_PORT or local > _MAX_PORT:
        raise UsageError(f'invalid ports "{text}"', hint="a pod's port is from 1 to 65535")
    return PortPair(local, remote)


def listen(
    addresses: Sequence[str], pairs: Sequence[PortPair], *, note: Callable[[str], None]
) -> list[Listener]:
    """Listen on all addresses for each pair, in order.

    Addresses on which the port is taken are skipped; ``note`` is called for each of them, except
    the addresses of ``localhost``, and for a pair without any address left.
    """
    hosts = _hosts(addresses)
    optional = _LOCALHOST if "localhost" in addresses else ()
    listeners: list[Listener] = []
    for pair in pairs:
        port, failures, added = pair.local, dict[str, str](), list[Listener]()
        for host, family in hosts.items():
            try:
                created = socket.create_server((host, port), family=family, backlog=128)
            except OSError as exc:
                failures[host] = os.strerror(exc.errno or 0).lower()
                continue
            added.append(Listener(created, pair.remote))
            port = added[0].port
        if not added:
            note(f"cannot listen on port {pair.local}: {next(iter(failures.values()))}")
        for host, reason in failures.items():
            if added and host not in optional:
                note(f"cannot listen on {_label(host, port)}: {reason}")
        listeners += added
    if not listeners:
        raise ConnectError("cannot listen on any of the local ports")
    return listeners


def _label(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _hosts(addresses: Sequence[str]) -> dict[str, socket.AddressFamily]:
    hosts: dict[str, socket.AddressFamily] = {}
    for name in addresses:
        for host in _LOCALHOST if name == "localhost" else [name]:
            try:
                address = ipaddress.ip_address(host)
            except ValueError:
                raise UsageError(
                    f'"{host}" is not an IP address', hint="use localhost for 127.0.0.1 and ::1"
                ) from None
            hosts[str(address)] = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    return hosts


LINGER_S: Final = 1.0
"""How long a client's further data is discarded before closing, so that it gets the response."""

_OPENING: Final = 16
"""Most connections opened to the runtime at once: it has only 1,000 URLs for all clients."""


class Forwarder:
    """Forwards the connections of listeners until it is cancelled.

    ``ask_url`` requests a stream URL from the runtime; it is called in threads.
    ``timeout_s`` limits connecting to the runtime, and then the runtime's acceptance of each
    connection. ``handled`` is called with the local port of each connection.
    """

    def __init__(
        self,
        ask_url: Callable[[], str],
        *,
        timeout_s: float,
        tls: TlsFiles | None = None,
        handled: Callable[[int], None],
        note: Callable[[str], None],
    ) -> None:
        self._ask_url = ask_url
        self._timeout_s = timeout_s
        self._tls = tls
        self._handled = handled
        self._note = note
        self._tasks: set[asyncio.Task[None]] = set()
        self._opening = asyncio.Semaphore(_OPENING)

    async def run(self, listeners: Sequence[Listener], *, ready: Callable[[], None]) -> None:
        """Contact the runtime, call ``ready``, and forward; close the listeners at the end."""
        raise_file_limit()
        servers: list[asyncio.Server] = []
        try:
            # A trial: a connection without streams, which the pod does not notice.
            (await self._open()).abort()
            for listener in listeners:
                servers.append(await self._serve(listener))
            ready()
            await asyncio.Event().wait()
        finally:
            for server in servers:
                server.close()
            for listener in listeners:
                listener.socket.close()
            await end_tasks(self._tasks)

    async def _serve(self, listener: Listener) -> asyncio.Server:
        def accepted(local: ByteStream) -> None:
            self._handled(listener.port)
            task = asyncio.create_task(self._forward(local, listener))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        loop = asyncio.get_running_loop()
        label = listener.label
        return await loop.create_server(lambda: ByteStream(label, accepted), sock=listener.socket)

    async def _forward(self, local: ByteStream, listener: Listener) -> None:
        try:
            try:
                error = await self._forward_to(listener.remote, local)
            except PycrictlError as exc:
                error = exc.message
            if error:
                self._note(f"forwarding {listener.port} -> {listener.remote}: {error}")
            # Closing with input unread is a reset, which may overtake data sent to the client.
            local.end()
            with suppress(TimeoutError, StreamError):
                async with asyncio.timeout(LINGER_S):
                    while await local.read():
                        pass
            await local.close(within_s=None)
        finally:
            local.abort()

    async def _forward_to(self, port: int, local: ByteStream) -> str:
        async with self._opening:
            connection = await self._open()
        try:
            return await _Connection(connection, port, local).run(self._timeout_s)
        finally:
            connection.abort()

    async def _open(self) -> ByteStream:
        url = await in_thread(self._ask_url)
        return await open_transport("spdy", url, PROTOCOL, timeout_s=self._timeout_s, tls=self._tls)


class _Connection:
    """Passes data between a local connection and one to the runtime."""

    def __init__(self, connection: ByteStream, port: int, local: ByteStream) -> None:
        headers = (("port", str(port)), ("requestid", "0"))
        names = {_ERROR: "error", _DATA: "data"}
        self._channels = SpdyChannels(
            {channel: (("streamtype", name), *headers) for channel, name in names.items()}
        )
        self._connection = connection
        self._local = local
        self._opened = asyncio.Event()
        self._is_local_lost = False

    async def run(self, timeout_s: float) -> str:
        """Forward until either side has closed; return what went wrong, if anything."""
        receiving = asyncio.create_task(self._receive())
        sending = asyncio.create_task(self._send())
        receiving.add_done_callback(lambda _: self._opened.set())
        try:
            async with asyncio.timeout(timeout_s):
                await self._opened.wait()
            error = await receiving
            return "" if self._is_local_lost else error
        except TimeoutError:
            return f"the runtime did not accept the connection within {timeout_s:g} s"
        finally:
            await end_tasks((receiving, sending))

    async def _receive(self) -> str:
        channels, loop = self._channels, asyncio.get_running_loop()
        text = b""
        still_sending = {_DATA, _ERROR}
        while not channels.is_over and still_sending:
            # Do not flush to a peer that accepts no data: it may itself be waiting for us to read.
            if not self._connection.is_full:
                self._flush()
            try:
                data = await self._connection.read()
            except StreamError:
                data = b""
            channels.receive_data(data, loop.time()) if data else channels.receive_eof()
            for event in channels.events_received():
                match event:
                    case ChannelsOpened():
                        # We never send on the error channel, and the peer may wait for its end.
                        channels.end(_ERROR)
                        self._opened.set()
                    case ChannelReceived() if event.channel == _ERROR:
                        text += event.data[: MAX_ERROR_BYTES - len(text)]
                    case ChannelReceived():
                        self._local.send([event.data])
                    case ChannelEnded(is_reset=True):
                        done = "reset" if self._opened.is_set() else "refused to forward"
                        return _words(text) or f"the runtime {done} the connection"
                    case ChannelEnded():
                        still_sending.discard(event.channel)
                        if event.channel == _DATA:  # ends first, even if an error text follows
                            self._local.end()
            try:
                await self._local.drain()
            except StreamError:
                return ""
        return _words(text) or (channels.error.message if channels.error is not None else "")

    async def _send(self) -> None:
        await self._opened.wait()
        try:
            while data := await self._local.read():
                self._channels.send(_DATA, data)
                self._flush()
                with suppress(StreamError):  # the receiving side reports it
                    await self._connection.drain()
                self._flush()  # data that the receiving side has held back meanwhile
        except StreamError:
            self._is_local_lost = True
            self._connection.abort()
        self._channels.end(_DATA)
        self._flush()

    def _flush(self) -> None:
        self._connection.send(self._channels.data_to_send())


def _words(text: bytes) -> str:
    return text.decode(errors="replace").strip()
