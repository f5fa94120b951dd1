"""How a running proxy gives way to a new program, and goes on if that fails."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pycrictl.proxy.admin import AdminServer
from pycrictl.proxy.handover import Successor, refuse
from pycrictl.proxy.program import replace
from pycrictl.proxy.pulls.book import Book
from pycrictl.proxy.pulls.limiter import PullLimiter
from pycrictl.proxy.relay.server import RelayServer
from pycrictl.proxy.relay.upstream import Upstream
from pycrictl.proxy.serve.listen import UnixListener
from pycrictl.proxy.serve.stream_server import StreamServer
from pycrictl.proxy.serve.systemd import notify
from pycrictl.servicelog import Log


class Succession:
    """Hands over.

    Args:
        relay: serves the clients.
        admin: serves operators, and the new program.
        limiter: the pulls.
        streams: the streams; what they are for has a ``pod``.
        book: of the pulls.
        environ: of this program.
        log: gets lines about it.
        accept: begins to accept clients and operators again.
        stop: is set when this program is to end, by a signal or because another one serves.

    Attributes:
        listeners: for clients, and for operators.
        successor: the new program, once it serves.
    """

    def __init__(
        self,
        relay: RelayServer,
        admin: AdminServer,
        limiter: PullLimiter,
        streams: StreamServer[Any],
        *,
        book: Book,
        environ: Mapping[str, str],
        log: Log,
        accept: Callable[[], Awaitable[None]],
        stop: asyncio.Event,
    ) -> None:
        self._relay = relay
        self._admin = admin
        self._limiter = limiter
        self._streams = streams
        self._book = book
        self._environ = environ
        self._log = log
        self._accept = accept
        self._stop = stop
        self._reloading = asyncio.Lock()
        self._is_handing_over = False
        self.listeners: list[UnixListener] = []
        self.successor: Successor | None = None

    async def hang_up(self) -> None:
        """Start a new program at SIGHUP."""
        try:
            await self.reload({})
        except ValueError as exc:
            self._log.warning("reload_failed", reason=str(exc))

    async def reload(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer an operator's call: start a new program, and wait until it serves.

        Raises:
            ValueError: it does not.
        """
        if self._stop.is_set() or self._reloading.locked():
            raise ValueError("the proxy is stopping or handing over already")
        async with self._reloading:
            admin = str(self.listeners[1].path)
            await replace(admin, self._environ, lambda: self.successor is not None)
        assert self.successor is not None
        return {"pid": self.successor.pid}

    async def answered(self) -> None:
        """Return when who asked for the new program has the answer."""
        async with self._reloading:
            pass

    async def hand_over(self, sock: socket.socket) -> None:
        """Hand over to a program that has connected; if it fails, go on."""
        if self._stop.is_set() or self._is_handing_over:
            refuse(sock, "it is stopping or handing over already")
            return
        self._is_handing_over = True
        try:
            reason = await self._try(sock)
        finally:
            self._is_handing_over = False
        if reason:
            self._log.warning("not_handed_over", reason=reason)

    async def _try(self, sock: socket.socket) -> str:
        """Return why the new program does not serve; empty if it does."""
        streams = (self._streams.address.authority, self._streams.listener)
        successor = await Successor.offered(sock, self.listeners, streams, self._limiter.salt)
        if successor is None:
            return "the new program did not start"
        if self._stop.is_set():
            successor.close()
            return "the proxy is stopping"
        self._relay.pause()
        self._admin.pause()
        pods = {call.pod for call in self._book.calls.values()}
        state = self._limiter.hand_over(Upstream(successor.listen), successor.ended)
        if not await successor.serves(state):
            successor.close()
            self._limiter.take_back()
            await self._accept()
            return "the new program ended at once"
        self._relay.retire()
        self._streams.leave(lambda target: target.pod in pods)
        if self._streams.address.authority in successor.taken:
            self._streams.pause()
            successor.take_back_streams(self._streams.bring_in)
        for listener in self.listeners:
            if str(listener.path) in successor.taken:
                listener.release()
            else:
                listener.close()
        notify(f"MAINPID={successor.pid}", self._environ)
        successor.confirm()
        running, waiting = len(state["running"]), state["waiting"]
        self._log.info("handed_over", pid=successor.pid, running=running, waiting=waiting)
        self.successor = successor
        self._stop.set()
        return ""
