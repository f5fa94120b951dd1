"""How one program of the proxy follows another: what the old one does. ``takeover`` is the new one.

1. At SIGHUP the old program starts a new one with the same command line, which connects to the old
   one's admin socket, and serves at a socket that no client dials yet.
2. The old one gives no more slots and says which pulls run. The new one counts those, and renames
   the link that clients dial to its own socket (``serve.listen``).
3. The old one makes the waiting calls anew, as a client of the new one, with their time of
   arrival, which keeps the order. The same happens to other calls that the proxy answers itself.
4. gRPC asks the old one's clients to reconnect as their connections age (``server.AGE_S``). When
   all are too old and nothing is left to finish (``app``), the old one ends.

The queue moves and running pulls stay, since a waiting call can be made again and a running one
belongs to the runtime. So no state has two owners, and a third program can follow while the first
has not ended. A fixed port of the streams is left by the old one and bound by the new one; URLs at
it that nobody has opened by then are lost.

The two talk in JSON objects, one a line::

    new: {"call": "take-over"}
    old: {"pid": 7, "folders": ["cri.sock.k3x_9a2b", …], "streams": "IP:PORT"}
    new: {"socket": "/run/…", "port": true}   it serves there; whether it wants the streams' port
    old: {"running": […], "waiting": 3}    it gives no more slots, and has left the port
    new: {"serving": true}                 clients find it now
    old: {}                                its line is on its way over
    old: {"ended": 7, "error": "…"}        for each of the running pulls; null: given up
    old: closes the connection when it has finished all calls that it holds

Until "serving" the new program may fail at any step, which closes the connection; the old one goes
on as if nothing had been.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pycrictl.foreign import parse
from pycrictl.proxy.calls import Answer, CallRequest, Handler
from pycrictl.proxy.pulls.book import Book, QueuedPull
from pycrictl.proxy.pulls.limiter import CLOSED, PullLimiter
from pycrictl.proxy.replacement import READY_S, is_running, start_program
from pycrictl.proxy.serve.listen import OwnSocket
from pycrictl.proxy.serve.stream_server import StreamServer
from pycrictl.proxy.upstream import Upstream
from pycrictl.servicelog import Log, notify

STEP_S: Final = 10.0

_ASKED: Final = "pycrictl-asked"
"""Metadata of a call that is made to a second program: when it came to the first, in seconds of the
clock that all programs of a node share (CLOCK_MONOTONIC)."""

_LOOK_S: Final = 0.05


class MessageLines:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @property
    def peer_pid(self) -> int:
        sock = self._writer.get_extra_info("socket")
        found: bytes = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 4)
        return int.from_bytes(found, sys.byteorder)

    def send(self, message: Mapping[str, Any]) -> None:
        self._writer.write(json.dumps(message).encode() + b"\n")

    async def receive(self, timeout_s: float | None = None) -> dict[str, Any] | None:
        """Return the next message; None if the peer is gone, silent or broken."""
        try:
            async with asyncio.timeout(timeout_s):
                message = parse(await self._reader.readline())
        except (OSError, ValueError):
            return None
        return message if isinstance(message, dict) else None

    def close(self) -> None:
        self._writer.close()


class HandOver:
    """Hands over to a new program, and sets ``stop`` once that serves.

    ``sockets`` are those of the clients and of the operators; ``successor_pid`` is 0 until then.
    """

    def __init__(
        self,
        limiter: PullLimiter,
        streams: StreamServer[Any],
        *,
        book: Book,
        sockets: Sequence[OwnSocket],
        environ: Mapping[str, str],
        log: Log,
        stop: asyncio.Event,
    ) -> None:
        self._limiter = limiter
        self._streams = streams
        self._book = book
        self._sockets = sockets
        self._environ = environ
        self._log = log
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self._reloading = asyncio.Lock()
        self._lines: MessageLines | None = None
        self._told: set[int] = set()
        self._heir: Upstream | None = None
        self.successor_pid = 0

    # Calls

    async def pull(self, request: CallRequest) -> Answer:
        asked, request = _arrival(request)
        if self._heir is None:
            answer = await self._limiter.handle(request, asked)
            if answer is not CLOSED or self._heir is None:
                return answer
        first = (_ASKED, repr(request.came if asked is None else asked))
        return await self._pass_on(replace(request, metadata=(*request.metadata, first)))

    def handled(self, handle: Handler) -> Handler:
        async def answer(request: CallRequest) -> Answer:
            return await (handle(request) if self._heir is None else self._pass_on(request))

        return answer

    async def _pass_on(self, request: CallRequest) -> Answer:
        assert self._heir is not None
        timeout_s = request.timeout_s
        if timeout_s is not None:
            timeout_s = max(request.came + timeout_s - self._loop.time(), 0.0)
        return await self._heir.unary(
            request.path, request.message, metadata=request.metadata, timeout_s=timeout_s
        )

    # A new program

    async def hang_up(self) -> None:
        try:
            await self.reload({})
        except ValueError as exc:
            self._log.warning("reload_failed", reason=str(exc))

    async def reload(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Start a new program, and wait until it serves; a ValueError if it does not."""
        if self._stop.is_set() or self._reloading.locked():
            raise ValueError("the proxy is stopping or handing over already")
        async with self._reloading:
            pid = await start_program(str(self._sockets[1].path), self._environ)
            deadline = self._loop.time() + READY_S
            while not self.successor_pid:
                if not is_running(pid):
                    raise ValueError("the new program ended before it served; the log says why")
                if self._loop.time() > deadline:
                    os.kill(pid, signal.SIGKILL)
                    raise ValueError(f"the new program did not serve within {READY_S:g} s")
                await asyncio.sleep(_LOOK_S)
        return {"pid": self.successor_pid}

    async def hand_over(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Hand over to a program that has connected; return False if it does not serve."""
        lines = MessageLines(reader, writer)
        if self._stop.is_set() or self._lines is not None:
            lines.send({"error": "it is stopping or handing over already"})
            return False
        self._lines = lines
        reason = await self._failure(lines)
        if reason:
            self._lines, self._told = None, set()
            self._log.warning("not_handed_over", reason=reason)
        return not reason

    async def _failure(self, lines: MessageLines) -> str:
        """Hand over; return why the new program does not serve, empty if it does."""
        pid, folders = lines.peer_pid, [own.folder.name for own in self._sockets]
        streams = self._streams.address.authority
        lines.send({"pid": os.getpid(), "folders": folders, "streams": streams})
        ready = await lines.receive(READY_S)
        if ready is None or "socket" not in ready:
            return "the new program did not start"
        if self._stop.is_set():
            return "the proxy is stopping"
        self._limiter.hold()
        if ready.get("port"):
            self._streams.pause()
        pods = {call.pod for call in self._book.calls.values()}
        running = [_document(pull) for pull in self._book.running.values()]
        self._told = {document["pull"] for document in running}
        waiting = len(self._limiter.in_line())
        lines.send({"running": running, "waiting": waiting})
        answer = await lines.receive(STEP_S)
        if answer is None or not answer.get("serving"):
            lines.send({"error": "it took too long"})
            if ready.get("port"):
                self._streams.resume()
            self._limiter.release()
            for own in self._sockets:
                own.publish()
            return "the new program ended at once"
        self._heir = Upstream(str(ready["socket"]))
        # First: of the new program's "READY=1" systemd takes notice only if it is the main one.
        notify(f"MAINPID={pid}", self._environ)
        lines.send({})
        self.successor_pid = pid
        self._limiter.close(waiting=True)
        self._streams.leave(lambda target: target.pod in pods)
        self._log.info("handed_over", pid=pid, running=len(running), waiting=waiting)
        self._stop.set()
        return ""

    def pull_ended(self, number: int, error: str | None) -> None:
        if self._lines is not None and number in self._told:
            self._lines.send({"ended": number, "error": error})

    async def answered(self) -> None:
        async with self._reloading:
            pass

    async def close(self) -> None:
        if self._lines is not None:
            self._lines.close()
        if self._heir is not None:
            await self._heir.close()


def _arrival(request: CallRequest) -> tuple[float | None, CallRequest]:
    asked, metadata = None, []
    for key, value in request.metadata:
        if key != _ASKED:
            metadata.append((key, value))
            continue
        with contextlib.suppress(ValueError):
            given = float(value)
            asked = given if 0.0 <= given <= request.came else None
    return asked, request if asked is None else replace(request, metadata=tuple(metadata))


def _document(pull: QueuedPull) -> dict[str, Any]:
    leader = pull.leader
    assert leader is not None
    return {
        "pull": pull.number,
        "image": leader.reference,
        "runtimeHandler": pull.key.runtime_handler,
        "takesSlot": pull.takes_slot,
        "started": pull.started,
        "asked": leader.asked,
        "pod": leader.pod,
    }
