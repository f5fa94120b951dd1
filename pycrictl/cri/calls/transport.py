"""How a call is made: over a connection of its own in plain sockets, or by gRPC's library.

A connection to a socket of the same machine costs the client less than 0.1 ms and the server some
0.4 ms; gRPC's library shares one among calls, but its import alone takes longer than the calls of
most commands. So a call that is waited for has its own connection, also in threads beside others
(``many``), and the library makes those that last and containerd's. Both are chosen here.
"""

from __future__ import annotations

import _socket  # as in obstacle
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, Self, TypeAlias

from pycrictl.cri.calls import obstacle
from pycrictl.cri.calls.errmap import Status
from pycrictl.cri.calls.obstacle import Obstacle, try_connect
from pycrictl.errors import RemoteProtocolError
from pycrictl.wire import codes, limits
from pycrictl.wire.client_call import ClientCall
from pycrictl.wire.grpc_http2 import Metadata

if TYPE_CHECKING:
    from pycrictl.cri.calls.channel import Channel, ChannelCall

Connect: TypeAlias = Callable[[float], _socket.socket | Obstacle]
"""Connects within so many seconds."""

_LONGEST_HANDSHAKE_S: Final = 20.0
_PROBE_S: Final = 1.0
_READ_BYTES: Final = 256 * 1024
_LONGEST_WAIT_S: Final = 3600.0
"""The system cannot count up to what a deadline may be."""


def unix(path: str) -> Connect:
    """Return what connects to a unix socket."""
    return partial(try_connect, path)


class Connection:
    """One call to a gRPC server, from the connection to the status.

    Use it as a context manager: leaving it cancels the call if it has not ended.

    Args:
        connect: opens the connection.
        method: full path of the method.
        message: the serialised request.
        metadata: what goes with it.
        timeout_s: limit of the call, None for none.
        handshake_s: how long the server may take to begin to speak; a server that hangs must not
            do so for as long as a call without a limit may take.
        is_stream: the server answers with any number of messages instead of one.

    Attributes:
        status: how the call ended, whether the server said so or not; None until then.
    """

    def __init__(
        self,
        connect: Connect,
        method: str,
        message: bytes,
        *,
        metadata: Metadata = (),
        timeout_s: float | None,
        handshake_s: float = _LONGEST_HANDSHAKE_S,
        is_stream: bool = False,
    ) -> None:
        now = time.monotonic()
        self.status: Status | None = None
        self._end_at = math.inf if timeout_s is None else now + timeout_s
        self._ready_at = min(self._end_at, now + min(max(handshake_s, 0.1), _LONGEST_HANDSHAKE_S))
        self._is_cancelled = False
        self._thread_id = threading.get_ident()
        self._call = ClientCall(
            method,
            message,
            metadata=metadata,
            timeout_s=timeout_s,
            user_agent="pycrictl",
            limit_bytes=limits.MESSAGE_BYTES,
            is_stream=is_stream,
        )
        self._connect = connect
        self._socket: _socket.socket | None = None
        connected = connect(self._ready_at - now)
        if isinstance(connected, Obstacle):
            self.status = Status(codes.UNAVAILABLE, connected.reason, connected)
            return
        self._socket = connected
        try:
            self.receive(until=0)  # which sends the request
        except BaseException:
            self.cancel()
            raise

    def messages(self) -> Generator[bytes, None, None]:
        """Yield what the server answers, until the call has ended."""
        with self:
            while self.status is None or self._call.messages:
                while self._call.messages:
                    yield self._call.messages.popleft()
                if self.status is None:
                    self.receive()
            if self._call.answer is not None and self._call.answer.response is not None:
                yield self._call.answer.response

    def receive(self, until: float = math.inf) -> None:
        """Send what there is to send, and take in what the server sends next.

        Args:
            until: when to return if nothing comes, on the monotonic clock.
        """
        assert self._socket is not None
        call = self._call
        limit_at = self._end_at if call.is_ready else self._ready_at
        data = b""
        try:
            if to_send := call.data_to_send():
                self._allow(limit_at)
                with suppress(BrokenPipeError):  # what it said before may explain it
                    self._socket.sendall(to_send)
            self._allow(min(limit_at, until))
            data = self._socket.recv(_READ_BYTES)
            call.receive_data(data, time.monotonic())
        except TimeoutError:
            if time.monotonic() >= limit_at:
                self._end(self._late())
        except OSError as exc:
            reason = os.strerror(exc.errno or 0).lower()
            self._end(self._broken(f"the connection broke: {reason}"))
        except RemoteProtocolError as exc:
            foreign = None if call.is_ready else obstacle.foreign(data)
            self._end(Status(codes.UNAVAILABLE, exc.message, foreign))
        else:
            if call.answer is not None:
                web = obstacle.web_server(call.http_status) if call.http_status else None
                answer = call.answer
                self._end(Status(answer.code, answer.message, web, call.oversize_bytes))
            elif not data:
                self._end(self._broken("it closed the connection"))

    def cancel(self) -> None:
        """Cancel the call, from any thread; nothing happens when it has ended."""
        if self.status is not None or self._socket is None:
            return
        self._is_cancelled = True
        self._call.cancel()
        with suppress(OSError):
            self._socket.settimeout(0)  # a server that does not read must not keep us
            self._socket.sendall(self._call.data_to_send())
        with suppress(OSError):
            self._socket.shutdown(_socket.SHUT_RDWR)
        if threading.get_ident() == self._thread_id:  # another one may be about to read
            self._end(Status(codes.CANCELLED))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def _end(self, status: Status) -> None:
        assert self._socket is not None
        self.status = status
        self._socket.close()

    def _late(self) -> Status:
        if self._call.is_ready:
            return Status(codes.DEADLINE_EXCEEDED, "Deadline Exceeded")
        return Status(codes.UNAVAILABLE, obstacle.SILENT.reason, obstacle.SILENT)

    def _broken(self, reason: str) -> Status:
        """Return what to make of a connection that ended before the call."""
        if self._is_cancelled:
            return Status(codes.CANCELLED)
        again = self._connect(_PROBE_S)
        if isinstance(again, Obstacle):  # it went away
            return Status(codes.UNAVAILABLE, reason, again)
        again.close()
        closes = None if self._call.is_ready else obstacle.CLOSES
        return Status(codes.UNAVAILABLE, reason, closes)

    def _allow(self, limit_at: float) -> None:
        assert self._socket is not None
        left_s = limit_at - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._socket.settimeout(min(left_s, _LONGEST_WAIT_S))


def begin(
    path: str,
    method: str,
    message: bytes,
    *,
    metadata: Metadata = (),
    timeout_s: float | None,
    handshake_s: float,
    is_stream: bool,
    lasts: bool,
) -> Connection | ChannelCall:
    """Begin a call at a unix socket.

    Args:
        path: of the socket, absolute.
        method: full path of the method.
        message: the serialised request.
        metadata: what goes with it.
        timeout_s: limit of the call, None for none.
        handshake_s: how long the server may take to begin to speak.
        is_stream: the server answers with any number of messages instead of one.
        lasts: whether it goes on for long, as a pull and the events of containers do.
    """
    if not lasts:
        return Connection(
            unix(path),
            method,
            message,
            metadata=metadata,
            timeout_s=timeout_s,
            handshake_s=handshake_s,
            is_stream=is_stream,
        )
    from pycrictl.cri.calls.channel import ChannelCall

    return ChannelCall(
        open_channel(path, handshake_s=handshake_s),
        method,
        message,
        metadata=metadata,
        timeout_s=timeout_s,
        is_stream=is_stream,
        owns_channel=True,
    )


def open_channel(path: str, *, handshake_s: float = _LONGEST_HANDSHAKE_S) -> Channel:
    """Open a connection at a unix socket that calls share, by gRPC's library."""
    from pycrictl.cri.calls.channel import Channel

    handshake_s = min(max(handshake_s, 0.1), _LONGEST_HANDSHAKE_S)
    return Channel(
        path, look=partial(look, unix(path), timeout_s=_PROBE_S), handshake_s=handshake_s
    )


def look(connect: Connect, *, timeout_s: float) -> Obstacle | None:
    """Return what keeps a gRPC server from answering, None if it does, even if by an error.

    It is asked for its health, whether it knows that call or not.
    """
    connection = Connection(connect, "/grpc.health.v1.Health/Check", b"", timeout_s=timeout_s)
    deque(connection.messages(), maxlen=0)
    return connection.status.obstacle if connection.status is not None else None
