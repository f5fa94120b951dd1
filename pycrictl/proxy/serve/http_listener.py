"""Accepts connections, which wait here until the head of their request has arrived.

Any user of the node can connect, so a waiting connection is only a socket and the bytes of its
head; tasks and buffers come when its token has been accepted. When there are too many, the user who
has the most waiting loses the oldest, and root loses one only if nobody else has any: nobody is
kept out by others however many they open, and the newest stay, which may be about to send.

A server of asyncio that has no descriptor left writes a traceback for each connection that waits,
and tries again a second later. Here a few are kept for the work that clients ask for: accepting
pauses before they are used up, and clients wait in the kernel's queue meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import struct
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Final, Generic, TypeVar

from pycrictl.proxy.serve.owner import Owners
from pycrictl.servicelog import Log, Seldom
from pycrictl.wire import limits
from pycrictl.wire.http1 import MAX_HEAD_BYTES

ROOT: Final = 0

ConnectionT = TypeVar("ConnectionT", bound=Hashable)

_HEAD_END: Final = b"\r\n\r\n"
_SWEEP_S: Final = 0.25
_RETRY_S: Final = 0.1
_CALM_S: Final = 1.0  # how long accepting goes on before the shortage counts as over
_RESET: Final = struct.pack("ii", 1, 0)  # struct linger: nothing of it stays in the kernel


class Shares(Generic[ConnectionT]):
    """Which connections of a server stay when there are too many. Pure."""

    def __init__(self, count: int) -> None:
        self.settled = 0
        self._count = count
        self._owners: dict[ConnectionT, int] = {}
        self._waiting: dict[int, dict[ConnectionT, float]] = {}  # since when; the oldest first

    @property
    def waiting(self) -> list[ConnectionT]:
        return list(self._owners)

    def enter(self, pending: ConnectionT, owner: int, now: float) -> ConnectionT | None:
        """Add a connection; return the one to drop for it, which may be itself."""
        self._owners[pending] = owner
        self._waiting.setdefault(owner, {})[pending] = now
        if self.settled + len(self._owners) <= self._count:
            return None
        most = max(self._waiting, key=lambda uid: (uid != ROOT, len(self._waiting[uid])))
        oldest = next(iter(self._waiting[most]))
        self.leave(oldest)
        return oldest

    def leave(self, pending: ConnectionT) -> None:
        owner = self._owners.pop(pending)
        share = self._waiting[owner]
        del share[pending]
        if not share:
            del self._waiting[owner]

    def settle(self, pending: ConnectionT) -> None:
        """Count a connection as accepted; ``settled`` is to be lowered when it is closed."""
        self.leave(pending)
        self.settled += 1

    def overdue(self, now: float) -> list[ConnectionT]:
        """Return those that waited too long; less is too long while half of all places are taken.

        For root, only its own count.
        """
        found = []
        taken = self.settled + len(self._owners)
        for owner, share in self._waiting.items():
            is_crowded = 2 * (len(share) if owner == ROOT else taken) >= self._count
            patience_s = limits.CROWDED_HEAD_S if is_crowded else limits.HEAD_S
            for pending, since in share.items():
                if now - since < patience_s:
                    break
                found.append(pending)
        return found


class Pending:
    __slots__ = ("data", "is_answered", "owner", "sock")

    def __init__(self, sock: socket.socket, owner: int) -> None:
        self.sock = sock
        self.owner = owner
        self.data = bytearray()
        self.is_answered = False


class HttpListener:
    """Accepts connections; ``on_head`` gets the head and what follows, and must admit or answer."""

    def __init__(
        self,
        listener: socket.socket,
        on_head: Callable[[Pending, bytes, bytes], None],
        *,
        log: Log,
    ) -> None:
        self._on_head = on_head
        self._loop = asyncio.get_running_loop()
        count = min(limits.STREAM_CONNECTIONS, descriptor_limit() // limits.DESCRIPTOR_SHARE)
        self._shares = Shares[Pending](count)
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
        """Listen no more at the first of its sockets; connections that wait go on."""
        self._acceptors.pop(0).close()

    @property
    def dropped_count(self) -> int:
        return self._dropped.count

    def close(self) -> None:
        for acceptor in self._acceptors:
            acceptor.close()
        if self._sweep is not None:
            self._sweep.cancel()
        for pending in self._shares.waiting:
            self._drop(pending)
        self._owners.close()

    def admit(self, pending: Pending) -> socket.socket:
        """Hand the socket over to the caller, who calls ``left`` when it is closed."""
        self._loop.remove_reader(pending.sock)
        self._shares.settle(pending)
        return pending.sock

    def left(self) -> None:
        self._shares.settled -= 1

    def answer(self, pending: Pending, data: bytes) -> None:
        """Send something short and nothing more, and leave the client a moment to read it."""
        pending.is_answered = True
        pending.data.clear()
        try:
            pending.sock.send(data)
            # If it were closed now, what it still sends would make the kernel drop the answer.
            pending.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self._leave(pending)

    def _accepted(self, sock: socket.socket) -> None:
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pending = Pending(sock, self._owners.owner(sock))
        loser = self._shares.enter(pending, pending.owner, self._loop.time())
        if loser is not pending:
            self._loop.add_reader(sock, self._read, pending)
        if loser is not None:
            self._dropped(why="too many connections", uid=loser.owner)
            self._drop(loser)
        if self._sweep is None:
            self._sweep = self._loop.call_later(_SWEEP_S, self._drop_overdue)

    def _read(self, pending: Pending) -> None:
        try:
            data = pending.sock.recv(MAX_HEAD_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._leave(pending)
        if not data or pending.is_answered:
            return
        start = max(len(pending.data) - len(_HEAD_END) + 1, 0)
        pending.data += data
        end = pending.data.find(_HEAD_END, start)
        if end >= 0:
            end += len(_HEAD_END)
            self._on_head(pending, bytes(pending.data[:end]), bytes(pending.data[end:]))
        elif len(pending.data) > MAX_HEAD_BYTES:
            self.answer(pending, b"")

    def _drop_overdue(self) -> None:
        self._sweep = None
        for pending in self._shares.overdue(self._loop.time()):
            if not pending.is_answered:
                self._dropped(why="no request", uid=pending.owner)
            self._leave(pending)
        if self._shares.waiting:
            self._sweep = self._loop.call_later(_SWEEP_S, self._drop_overdue)

    def _leave(self, pending: Pending) -> None:
        self._shares.leave(pending)
        self._drop(pending)

    def _drop(self, pending: Pending) -> None:
        self._loop.remove_reader(pending.sock)
        with suppress(OSError):
            if not pending.is_answered:
                pending.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        pending.sock.close()


class Acceptor:
    """Accepts until it is closed. ``listener`` is bound; it need not listen yet."""

    def __init__(
        self,
        listener: socket.socket,
        accepted: Callable[[socket.socket], object],
        *,
        log: Log,
        name: str,
    ) -> None:
        self._listener = listener
        self._accepted = accepted
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._short_since: float | None = None
        self._paused = Seldom(log.warning, "accept_paused")
        self._resumed = Seldom(log.info, "accept_resumed")
        listener.setblocking(False)
        listener.listen(limits.BACKLOG)
        self._loop.add_reader(listener, self._accept)

    def close(self) -> None:
        """Accept no more, and close the listener. Has no effect a second time."""
        if self._listener.fileno() < 0:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()

    def _accept(self) -> None:
        for _ in range(limits.ACCEPTED_AT_ONCE):
            try:
                sock, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as exc:
                self._pause(exc.strerror or str(exc))
                return
            is_last = not _leaves_room(sock.fileno())
            sock.setblocking(False)
            self._accepted(sock)
            if is_last:
                self._pause("few file descriptors are left")
                return

    def _pause(self, reason: str) -> None:
        if self._short_since is None:
            self._short_since = self._loop.time()
            self._paused(listener=self._name, reason=reason)
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._listener)
        self._timer = self._loop.call_later(_RETRY_S, self._try_again)

    def _try_again(self) -> None:
        if self._has_room():
            self._loop.add_reader(self._listener, self._accept)
            self._timer = self._loop.call_later(_CALM_S, self._resume)
        else:
            self._timer = self._loop.call_later(_RETRY_S, self._try_again)

    def _has_room(self) -> bool:
        try:
            fd = os.dup(self._listener.fileno())
        except OSError:
            return False
        os.close(fd)
        return _leaves_room(fd)

    def _resume(self) -> None:
        assert self._short_since is not None
        paused_s = round(self._loop.time() - self._short_since, 3)
        self._short_since = self._timer = None
        self._resumed(listener=self._name, paused_s=paused_s)


def descriptor_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _leaves_room(fd: int) -> bool:
    """Whether enough descriptors are left. A new one has the lowest number that is free."""
    limit = descriptor_limit()
    return fd < limit - min(limits.DESCRIPTORS_KEPT, limit // 3)
