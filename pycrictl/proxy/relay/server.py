"""Passes calls between clients and the runtime: the asyncio shell around ``connection``.

Each client gets its own connection to the runtime, so that the runtime notices when a client goes
away, as it would without the proxy. Calls to the methods in ``own`` are answered by their handlers.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from time import monotonic
from typing import Final, TypeAlias

from pycrictl.errors import RemoteProtocolError
from pycrictl.proxy.accept import Acceptor, Connector
from pycrictl.proxy.relay.budget import Budget
from pycrictl.proxy.relay.calls import (
    Answer,
    CallRecord,
    CallRequest,
    Peer,
    Requested,
    RuntimeBroke,
)
from pycrictl.proxy.relay.connection import Relay
from pycrictl.proxy.relay.upstream import HANDSHAKE_TIMEOUT_S, connect, runtime_name
from pycrictl.servicelog import Log, Seldom
from pycrictl.streaming.loop import end_tasks
from pycrictl.wire import codes, limits

# How long a client may take to leave a connection that it was asked to leave and does not use.
LINGER_S: Final = 1.0
_PEERCRED: Final = struct.Struct("3i")  # struct ucred: pid, uid, gid


Handler: TypeAlias = Callable[[CallRequest, Peer], Awaitable[Answer]]
"""Answers one own call; cancelled when the client gives up. What it raises becomes INTERNAL."""


class RelayServer:
    """Serves clients on a listening socket until it is stopped.

    Args:
        upstream: path of the runtime's socket.
        own: the methods (full paths) that are answered here, and by what.
        on_call: called in the event loop when a call is over.

    Attributes:
        on_spent: called for the same with the seconds that the proxy worked on its client's
            connection since the last one; None to measure nothing.
    """

    def __init__(
        self,
        upstream: str,
        *,
        own: Mapping[str, Handler] | None = None,
        on_call: Callable[[CallRecord, Peer], None] | None = None,
    ) -> None:
        self.upstream = upstream
        self.own = dict(own or {})
        self.budget = Budget()
        self._on_call = on_call
        self.on_spent: Callable[[CallRecord, float], object] | None = None
        self._connections: set[_ClientSide] = set()
        self._acceptor: Acceptor | None = None
        self._is_retired = False
        self._changed = asyncio.Event()
        self._log = Log(__name__)
        self._faults = {
            kind: Seldom(self._log.warning, kind) for kind in ("client_error", "runtime_error")
        }

    async def start(self, listener: socket.socket) -> None:
        """Begin to accept clients. The listener is closed when no more are accepted."""
        connect = Connector(lambda: _ClientSide(self))
        self._acceptor = Acceptor(listener, connect, log=self._log, name="cri")

    def pause(self) -> None:
        """Accept no more clients; ``start`` goes on."""
        if self._acceptor is not None:
            self._acceptor.close()

    def retire(self) -> None:
        """Accept no more clients; those that are there take their next calls elsewhere.

        Calls under way go on, and so does a call that a client makes before it knows.
        """
        self._is_retired = True
        self.pause()
        for connection in self._connections:
            connection.go_away()

    async def stop(
        self, *, drain_s: float = 0.0, is_awaited: Callable[[str], bool] = lambda path: True
    ) -> None:
        """Retire, let calls finish and clients leave, and end the others.

        A client that is idle may be making a call right now, before it knows.

        Args:
            drain_s: how long that may take.
            is_awaited: says by its path whether a call is worth waiting for; endless streams
                are not.
        """
        self.retire()
        try:
            async with asyncio.timeout(drain_s):
                while any(
                    not (paths := connection.relay.open_paths) or any(map(is_awaited, paths))
                    for connection in self._connections
                ):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass
        await asyncio.gather(*(connection.end() for connection in list(self._connections)))

    def open_paths(self) -> list[str]:
        """Return the methods of all calls under way."""
        return [path for connection in self._connections for path in connection.relay.open_paths]

    def faults(self) -> dict[str, int]:
        """Return how often a client and the runtime broke the protocol or a limit of it."""
        return {kind.removesuffix("_error"): found.count for kind, found in self._faults.items()}

    def peers(self) -> set[Peer]:
        """Return the processes that are connected."""
        return {connection._peer for connection in self._connections}

    def connected(self, connection: _ClientSide) -> None:
        """Keep a client's connection."""
        self._connections.add(connection)
        if self._is_retired:  # it was accepted in the last moment
            connection.go_away()

    def disconnected(self, connection: _ClientSide) -> None:
        """Drop a client's connection."""
        self._connections.discard(connection)
        self._changed.set()

    def ended(self, record: CallRecord, peer: Peer) -> None:
        """Pass on the record of a call that is over."""
        self._changed.set()
        if self._on_call is not None:
            self._on_call(record, peer)

    def fault(self, kind: str, peer: Peer, problem: str) -> None:
        """Log what a peer did wrong."""
        self._faults[kind](pid=peer.pid, error=problem)

    def failed(self, path: str, exc: Exception) -> None:
        """Log that a handler did not do its work."""
        self._log.failure("handler_failed", exc, path=path)


class _ClientSide(asyncio.Protocol):
    """A client's connection, and the owner of the one to the runtime."""

    def __init__(self, forwarder: RelayServer) -> None:
        self._forwarder = forwarder
        self._loop = asyncio.get_running_loop()
        self.relay = Relay(
            forwarder.own,
            upstream_name=runtime_name(forwarder.upstream),
            budget=forwarder.budget,
            on_output=lambda: self._loop.call_soon(self._pump),
        )
        self._transport: asyncio.Transport | None = None
        self._upstream: asyncio.Transport | None = None
        self._peer = Peer(-1, -1)
        self._connecting: asyncio.Task[None] | None = None
        self._answering: dict[int, asyncio.Task[None]] = {}
        self._handshake: asyncio.TimerHandle | None = None
        self._lingering: asyncio.TimerHandle | None = None
        self._is_full = False
        self._is_upstream_full = False
        self._is_refused = False
        self._is_catching_up = False
        self._is_lost = self._loop.create_future()
        self._step_at = 0.0
        self._spent_s = 0.0

    # The client's transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=limits.WRITE_BUFFER_BYTES)
        transport.pause_reading()  # until the runtime's end is there
        self._transport = transport
        self._peer = _peer_of(transport)
        self._forwarder.connected(self)
        self._connecting = self._loop.create_task(self._connect())

    def data_received(self, data: bytes) -> None:
        self._carry_out(lambda: self.relay.receive_client(data, now=self._loop.time()))

    def pause_writing(self) -> None:
        self._is_full = True
        self._pause_reading()

    def resume_writing(self) -> None:
        self._is_full = False
        self._pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        for timer in (self._handshake, self._lingering):
            if timer is not None:
                timer.cancel()
        if self._connecting is not None:
            self._connecting.cancel()
        if self._upstream is not None:
            self._upstream.close()
        self.relay.lose_client(now=self._loop.time())
        self._pump()
        self._forwarder.disconnected(self)
        self._is_lost.set_result(None)

    # The runtime's transport, called by its protocol

    def upstream_connected(self, transport: asyncio.Transport) -> None:
        if self._transport is None:
            transport.abort()
            return
        self._upstream = transport
        transport.set_write_buffer_limits(high=limits.WRITE_BUFFER_BYTES)
        self._handshake = self._loop.call_later(HANDSHAKE_TIMEOUT_S, self._check_handshake)
        self._carry_out(lambda: self.relay.upstream_connected(now=self._loop.time()))

    def upstream_received(self, data: bytes) -> None:
        self._carry_out(lambda: self.relay.receive_upstream(data, now=self._loop.time()))

    def upstream_full(self, is_full: bool) -> None:
        self._is_upstream_full = is_full
        self._pause_reading()

    def upstream_lost(self, why: str) -> None:
        self._upstream = None
        if self._transport is None:
            return
        self.upstream_full(False)
        self._carry_out(lambda: self.relay.lose_upstream(why, now=self._loop.time()))

    # Ends

    def go_away(self) -> None:
        self.relay.go_away()
        self._pump()

    async def end(self) -> None:
        """End all calls with a status, and the connection."""
        await end_tasks(self._answering.values())
        if self._upstream is not None:
            self._upstream.abort()
            self.upstream_lost("is no longer served: the proxy is stopping")
        # The client closes the connection once it has all statuses. If the proxy did, a client that
        # is just writing would take the broken connection for the end of its calls.
        try:
            async with asyncio.timeout(LINGER_S):
                await asyncio.shield(self._is_lost)
        except TimeoutError:
            if self._transport is not None:
                self._transport.abort()
            await self._is_lost

    def _carry_out(self, step: Callable[[], None]) -> None:
        """Let the relay do a step, and do what it wants done then."""
        is_timed = self._forwarder.on_spent is not None
        if is_timed:
            self._step_at = monotonic()
        try:
            step()
        except RemoteProtocolError as exc:
            self._refuse_client(exc)
        else:
            self._pump()
        if is_timed:
            self._spent_s += monotonic() - self._step_at
            self._step_at = 0.0

    def _refuse_client(self, exc: RemoteProtocolError) -> None:
        self._forwarder.fault("client_error", self._peer, exc.message)
        self._is_refused = True
        self._pump()
        if self._transport is not None:
            self._transport.close()
            # A client that does not read would keep the connection.
            self._loop.call_later(LINGER_S, self._transport.abort)

    def _check_handshake(self) -> None:
        if self._upstream is not None and not self.relay.is_ready:
            self._upstream.abort()
            self.upstream_lost("does not answer")

    def _leave(self) -> None:
        self._lingering = None
        if self.relay.is_idle and self._transport is not None:
            self._transport.close()

    # Work

    async def _connect(self) -> None:
        try:
            sock = await connect(self._forwarder.upstream)
            await self._loop.create_unix_connection(lambda: _UpstreamSide(self), sock=sock)
        except OSError as exc:
            self.upstream_lost(f"cannot be reached: {os.strerror(exc.errno or 0)}")

    def _pump(self) -> None:
        """Carry out what the relay wants done."""
        relay = self.relay
        data = relay.upstream_data()
        if self._upstream is not None:
            if relay.is_down:
                self._upstream.abort()
            elif data:
                self._upstream.write(data)
        data = relay.client_data()
        if data and self._transport is not None:
            self._transport.write(data)
        requested: dict[int, CallRequest] = {}
        for event in relay.events():
            if isinstance(event, CallRecord):
                self._forwarder.ended(event, self._peer)
                if self._forwarder.on_spent is not None:
                    if self._step_at:  # else it is not a step but an own call's answer
                        now = monotonic()
                        self._spent_s += now - self._step_at
                        self._step_at = now
                    self._forwarder.on_spent(event, self._spent_s)
                    self._spent_s = 0.0
            elif isinstance(event, Requested):
                requested[event.stream_id] = event.request
            elif isinstance(event, RuntimeBroke):
                self._forwarder.fault("runtime_error", self._peer, event.problem)
            elif event.stream_id in self._answering:
                self._answering[event.stream_id].cancel()
            else:
                requested.pop(event.stream_id, None)
        for stream_id, request in requested.items():
            task = self._loop.create_task(self._answer(stream_id, request))
            self._answering[stream_id] = task
            task.add_done_callback(partial(self._answered, stream_id))
        self._pause_reading()
        if relay.is_going_away and relay.is_idle and self._lingering is None:
            self._lingering = self._loop.call_later(LINGER_S, self._leave)
        if relay.has_more and not self._is_catching_up:
            self._is_catching_up = True
            self._loop.call_soon(self._catch_up)

    def _catch_up(self) -> None:
        self._is_catching_up = False
        if self._transport is not None and not self._is_refused:
            self._carry_out(lambda: self.relay.catch_up(now=self._loop.time()))

    def _answered(self, stream_id: int, task: asyncio.Task[None]) -> None:
        del self._answering[stream_id]  # also of a task that was cancelled before it began

    def _pause_reading(self) -> None:
        """Read from an end only what the other one takes, and what it takes answers to."""
        client, upstream = self._transport, self._upstream
        if client is not None:
            must_wait = self._is_refused or self.relay.is_connecting or self.relay.is_client_behind
            _pause(client, must_wait or self._is_upstream_full or _is_glutted(client))
        if upstream is not None:
            must_wait = self.relay.is_held or self.relay.is_upstream_behind
            _pause(upstream, must_wait or self._is_full or _is_glutted(upstream))

    async def _answer(self, stream_id: int, request: CallRequest) -> None:
        try:
            answer = await self._forwarder.own[request.path](request, self._peer)
        except asyncio.CancelledError:
            answer = Answer(codes.UNAVAILABLE, "pycrictl proxy: the proxy is stopping")
        except Exception as exc:
            self._forwarder.failed(request.path, exc)
            answer = Answer(codes.INTERNAL, "pycrictl proxy: internal error")
        self.relay.answer(stream_id, answer, now=self._loop.time())
        self._pump()


class _UpstreamSide(asyncio.Protocol):
    """The runtime's end of a client's connection."""

    def __init__(self, client: _ClientSide) -> None:
        self._client: _ClientSide | None = client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if self._client is not None:
            self._client.upstream_connected(transport)

    def data_received(self, data: bytes) -> None:
        if self._client is not None:
            self._client.upstream_received(data)

    def pause_writing(self) -> None:
        if self._client is not None:
            self._client.upstream_full(True)

    def resume_writing(self) -> None:
        if self._client is not None:
            self._client.upstream_full(False)

    def connection_lost(self, exc: Exception | None) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.upstream_lost("closed the connection")


def _is_glutted(transport: asyncio.Transport) -> bool:
    return transport.get_write_buffer_size() > limits.REPLY_BUFFER_BYTES


def _pause(transport: asyncio.Transport, must_pause: bool) -> None:
    if must_pause:
        transport.pause_reading()
    else:
        transport.resume_reading()


def _peer_of(transport: asyncio.Transport) -> Peer:
    sock = transport.get_extra_info("socket")
    try:
        data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size)
        pid, uid, _ = _PEERCRED.unpack(data)
    except (OSError, AttributeError):
        return Peer(-1, -1)
    return Peer(pid, uid)
