"""Accepts the connections of a listening socket, as many as there are file descriptors for.

A server of asyncio that has no descriptor left writes a traceback for each connection that waits,
and tries again a second later. Here a few descriptors are kept for the work that clients ask for,
accepting pauses before they are used up, and clients wait in the kernel's queue meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import Callable
from typing import Final

from pycrictl.servicelog import Log, Seldom
from pycrictl.wire import limits

_RETRY_S: Final = 0.1
_CALM_S: Final = 1.0  # how long accepting goes on before the shortage counts as over


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
