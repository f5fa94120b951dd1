"""The door of the stream server: where connections wait until the head of their request is there.

Anybody on the node can connect, so one that waits is worth little: a socket, and what it has sent
of its head. Tasks, buffers and a place of its own it gets when its token has been found good. How
the places are shared until then is in ``places``.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from pycrictl.proxy.accept import Acceptor, descriptor_limit
from pycrictl.proxy.serve.owner import Owners
from pycrictl.proxy.serve.places import Places
from pycrictl.servicelog import Log, Seldom
from pycrictl.wire import limits
from pycrictl.wire.http1 import MAX_HEAD_BYTES

_HEAD_END: Final = b"\r\n\r\n"
_SWEEP_S: Final = 0.25
_RESET: Final = struct.pack("ii", 1, 0)  # struct linger: nothing of it stays in the kernel


class Guest:
    """A connection that waits.

    Attributes:
        sock: does not block.
        owner: whose it is.
        data: what it has sent.
        is_answered: it got all that it gets; what it still sends is dropped.
    """

    __slots__ = ("data", "is_answered", "owner", "sock")

    def __init__(self, sock: socket.socket, owner: int) -> None:
        self.sock = sock
        self.owner = owner
        self.data = bytearray()
        self.is_answered = False


class Door:
    """Accepts connections and reads the heads of their requests.

    Args:
        listener: bound.
        on_head: takes a guest, the head and what came after it; it must ``admit`` or ``answer``.
        log: gets lines about what is dropped.
    """

    def __init__(
        self,
        listener: socket.socket,
        on_head: Callable[[Guest, bytes, bytes], None],
        *,
        log: Log,
    ) -> None:
        self._on_head = on_head
        self._loop = asyncio.get_running_loop()
        count = min(limits.STREAM_CONNECTIONS, descriptor_limit() // limits.DESCRIPTOR_SHARE)
        self._places = Places[Guest](count)
        self._owners = Owners()
        self._dropped = Seldom(log.warning, "stream_dropped")
        self._sweep: asyncio.TimerHandle | None = None
        self._log = log
        self._acceptors: list[Acceptor] = []
        self.listen(listener)

    def listen(self, listener: socket.socket) -> None:
        acceptor = Acceptor(listener, self._accepted, log=self._log, name="streams")
        self._acceptors.append(acceptor)

    def pause(self) -> None:
        """Accept no more; those who wait go on."""
        for acceptor in self._acceptors:
            acceptor.close()

    def bring_in(self, sock: socket.socket, data: bytes) -> None:
        sock.setblocking(False)
        guest = self._accepted(sock)
        if guest is not None:
            self._take(guest, data)

    @property
    def dropped_count(self) -> int:
        return self._dropped.count

    def close(self) -> None:
        self.pause()
        if self._sweep is not None:
            self._sweep.cancel()
        for guest in self._places.waiting:
            self._drop(guest)
        self._owners.close()

    def admit(self, guest: Guest) -> socket.socket:
        """Let a guest in: the socket is the caller's, who calls ``left`` when it is closed."""
        self._loop.remove_reader(guest.sock)
        self._places.settle(guest)
        return guest.sock

    def left(self) -> None:
        self._places.settled -= 1

    def answer(self, guest: Guest, data: bytes) -> None:
        """Send a guest something short and nothing more. It has a moment to read it and go."""
        guest.is_answered = True
        guest.data.clear()
        try:
            guest.sock.send(data)
            # If it were closed now, what it still sends would make the kernel drop the answer.
            guest.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self._send_away(guest)

    def _accepted(self, sock: socket.socket) -> Guest | None:
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        guest = Guest(sock, self._owners.owner(sock))
        loser = self._places.enter(guest, guest.owner, self._loop.time())
        if loser is not guest:
            self._loop.add_reader(sock, self._read, guest)
        if loser is not None:
            self._dropped(why="too many connections", uid=loser.owner)
            self._drop(loser)
        if self._sweep is None:
            self._sweep = self._loop.call_later(_SWEEP_S, self._send_away_overdue)
        return None if loser is guest else guest

    def _read(self, guest: Guest) -> None:
        try:
            data = guest.sock.recv(MAX_HEAD_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._send_away(guest)
        elif not guest.is_answered:
            self._take(guest, data)

    def _take(self, guest: Guest, data: bytes) -> None:
        start = max(len(guest.data) - len(_HEAD_END) + 1, 0)
        guest.data += data
        end = guest.data.find(_HEAD_END, start)
        if end >= 0:
            end += len(_HEAD_END)
            self._on_head(guest, bytes(guest.data[:end]), bytes(guest.data[end:]))
        elif len(guest.data) > MAX_HEAD_BYTES:
            self.answer(guest, b"")

    def _send_away_overdue(self) -> None:
        self._sweep = None
        for guest in self._places.overdue(self._loop.time()):
            if not guest.is_answered:
                self._dropped(why="no request", uid=guest.owner)
            self._send_away(guest)
        if self._places.waiting:
            self._sweep = self._loop.call_later(_SWEEP_S, self._send_away_overdue)

    def _send_away(self, guest: Guest) -> None:
        self._places.leave(guest)
        self._drop(guest)

    def _drop(self, guest: Guest) -> None:
        self._loop.remove_reader(guest.sock)
        with suppress(OSError):
            if not guest.is_answered:
                guest.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        guest.sock.close()
