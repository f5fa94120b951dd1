"""How a new process of the proxy takes over from a running one.

1. At SIGHUP the old process starts a new one with the same command line. The new process connects
   to the old one's admin socket and listens on a socket that no client connects to yet.
2. The old process stops giving out slots and sends its running pulls. The new process counts those
   and replaces the link that clients connect to with one to its own socket (``serve.listen``).
3. The old process repeats its waiting calls as a client of the new one, with their original times
   of arrival, which keeps their order. It also forwards the other calls that the proxy answers.
4. gRPC asks the old process's clients to reconnect as their connections age (``server.AGE_S``).
   When all connections are too old and no work is left (``app``), the old process exits.

The queue moves and running pulls stay: a waiting call can be repeated, but a running one is already
at the runtime. So no state has two owners, and a third process can take over before the first has
exited. Both may listen on a fixed stream port until the old process stops; stream URLs with that
port that are still unopened are lost.

The two processes exchange JSON objects, one per line::

    new: {"call": "take-over"}
    old: {"pid": 7, "folders": ["cri.sock.k3x_9a2b", …]}
    new: {"socket": "/run/…", "streams": "IP:PORT"}   where it listens
    old: {"running": […], "waiting": 3}    it gives out no more slots
    new: {"serving": true}                 new clients reach the new process
    old: {}                                it forwards its waiting calls
    old: {"ended": 7, "error": "…"}        once per running pull; a null error means cancelled
    old: closes the connection after finishing all its calls

The new process may fail at any step before "serving", which closes the connection; the old one then
continues as before.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pycrictl.base.errors import ConnectError, RemoteProtocolError
from pycrictl.base.foreign import parse
from pycrictl.base.processes import is_running
from pycrictl.base.servicelog import Log, notify
from pycrictl.base.units import quote
from pycrictl.proxy.events import Emit, Event, HandedOver, HandOverFailed, PullEnded, TookOver
from pycrictl.proxy.pulls.pull_calls import CallState, PullCall, QueuedPull
from pycrictl.proxy.pulls.pull_image import PullLimiter
from pycrictl.proxy.pulls.queue import PullQueue
from pycrictl.proxy.runtime_lookup import PodKey
from pycrictl.proxy.serve.listen import OwnSocket
from pycrictl.proxy.serve.stream_server import StreamServer
from pycrictl.proxy.server import CriServer
from pycrictl.proxy.settings import ProxySettings
from pycrictl.proxy.upstream import Upstream
from pycrictl.streams.loop import end_tasks

ENVIRON: Final = "PYCRICTL_TAKE_OVER"
"""Environment variable of the new process: the path of the old one's admin socket."""

READY_S: Final = 60.0
"""Timeout for a new process to start serving."""

STEP_S: Final = 10.0

HOLD_S: Final = 2.0
"""Maximum time to hold the slots for the waiting calls of the old process."""

_LINE_BYTES: Final = 64 * 1024 * 1024
_POLL_S: Final = 0.05


class MessageLines:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.close = writer.close

    @property
    def peer_pid(self) -> int:
        sock = self._writer.get_extra_info("socket")
        credentials: bytes = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 4)
        return int.from_bytes(credentials, sys.byteorder)

    def send(self, message: Mapping[str, Any]) -> None:
        self._writer.write(json.dumps(message).encode() + b"\n")

    async def receive(self, timeout_s: float | None = None) -> dict[str, Any] | None:
        """Return the next message; None on a disconnect, a timeout or an invalid message."""
        try:
            async with asyncio.timeout(timeout_s):
                message = parse(await self._reader.readline())
        except (OSError, ValueError):
            return None
        return message if isinstance(message, dict) else None


@dataclass(eq=False)
class HandOver:
    """Takes over from an old process, if there is one, and later hands over to a new one.

    As a consumer of events, it tells a new process which pulls end here. Once that process serves,
    ``stop`` is set; until then ``successor_pid`` is 0. ``sockets`` are for CRI and admin clients.
    """

    settings: ProxySettings
    environ: Mapping[str, str]
    limiter: PullLimiter
    streams: StreamServer
    server: CriServer
    emit: Emit
    log: Log
    stop: asyncio.Event
    sockets: list[OwnSocket] = field(init=False, default_factory=list)
    predecessor: Predecessor | None = field(init=False, default=None)
    successor_pid: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._book = self.limiter.queue.book
        self._loop = asyncio.get_running_loop()
        self._reloading = asyncio.Lock()
        self._lines: MessageLines | None = None
        self._heir: Upstream | None = None
        self._following: set[asyncio.Task[None]] = set()

    async def prepare(self) -> None:
        """Connect to the old process, if any, and create the sockets without publishing them."""
        settings, before = self.settings, frozenset[str]()
        if admin := self.environ.get(ENVIRON):
            self.predecessor = await Predecessor.reach(admin, self.limiter)
        if self.predecessor is not None:
            before = self.predecessor.folders
        for path in (settings.listen, settings.admin_socket):
            self.sockets.append(OwnSocket(Path(path), before))

    async def begin(self) -> None:
        """Take over from the old process, if there is one, and publish the sockets."""
        old, waiting = self.predecessor, 0
        cri = self.sockets[0]
        self.streams.start(self.settings.stream_address)
        self.streams.listen_in(cri.folder)
        if old is not None:
            waiting = await old.announce(str(cri.path), self.streams.address.authority)
        for own in self.sockets:
            own.publish()
        if old is not None:
            await old.serving()
            self.emit(TookOver(old.pid))
            self._following.add(self._loop.create_task(self._follow(old, waiting)))

    async def _follow(self, old: Predecessor, waiting: int) -> None:
        if waiting:
            await release_when_in_line(self.limiter.queue, waiting)
        await old.follow()
        self.predecessor = None
        self.log.info("predecessor_ended", pid=old.pid)

    def status(self) -> dict[str, Any] | None:
        old = self.predecessor
        return {"pid": old.pid, "pulls": len(old.pulls)} if old else None

    def close_sockets(self) -> None:
        for own in self.sockets:
            own.close()

    async def close(self) -> None:
        self.close_sockets()
        await end_tasks(self._following)
        if self._lines is not None:
            self._lines.close()
        if self._heir is not None:
            await self._heir.close()

    # Handing over to a new process

    async def hang_up(self) -> None:
        try:
            await self.reload({})
        except ValueError as exc:
            self.log.warning("reload_failed", reason=str(exc))

    async def reload(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Start a new process and wait until it serves; raise ValueError if it does not."""
        if self.stop.is_set() or self._reloading.locked():
            raise ValueError("the proxy is stopping or handing over already")
        async with self._reloading:
            environ = {**self.environ, ENVIRON: str(self.sockets[1].path)}
            environ.pop("WATCHDOG_PID", None)
            try:
                pid = await asyncio.to_thread(_start_again, environ)
            except OSError as exc:
                raise ValueError(f"cannot start a new program: {exc.strerror}") from None
            deadline = self._loop.time() + READY_S
            while not self.successor_pid:
                if not is_running(pid):
                    raise ValueError("the new program ended before it served; the log says why")
                if self._loop.time() > deadline:
                    os.kill(pid, signal.SIGKILL)
                    raise ValueError(f"the new program did not serve within {READY_S:g} s")
                await asyncio.sleep(_POLL_S)
        return {"pid": self.successor_pid}

    async def hand_over(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Hand over to a process that has connected; return False if it does not take over."""
        lines = MessageLines(reader, writer)
        if self.stop.is_set() or self._lines is not None:
            lines.send({"error": "the proxy is stopping or handing over already"})
            return False
        self._lines = lines
        if reason := await self._failure(lines):
            self._lines = None
            self.emit(HandOverFailed(reason))
        return not reason

    async def _failure(self, lines: MessageLines) -> str:
        """Hand over; return why the new process does not serve, or an empty string if it does."""
        pid, folders = lines.peer_pid, [own.folder.name for own in self.sockets]
        lines.send({"pid": os.getpid(), "folders": folders})
        ready = await lines.receive(READY_S)
        if ready is None or "socket" not in ready:
            return "the new program did not become ready"
        if self.stop.is_set():
            return "the proxy is stopping"
        queue = self.limiter.queue
        queue.is_held = True
        pods = {call.pod for call in self._book.calls.values()}
        running = [_document(pull) for pull in self._book.running.values()]
        waiting = len(queue.in_line())
        lines.send({"running": running, "waiting": waiting})
        answer = await lines.receive(STEP_S)
        if answer is None or not answer.get("serving"):
            lines.send({"error": "the new program took too long"})
            queue.release(now=self._loop.time())
            for own in self.sockets:
                own.publish()
            return "the new program did not begin to serve"
        if ready.get("streams") == self.streams.address.authority:
            await self.streams.leave_port()
        self._heir = Upstream(str(ready["socket"]))
        # Before the reply: the new process then sends READY=1, which counts only from the main one.
        notify(f"MAINPID={pid}", self.environ)
        lines.send({})
        self.successor_pid = pid
        self.server.move_own_to(self._heir)
        self.limiter.move_to(self._heir)
        self.streams.leave(lambda target: target.pod is None or target.pod in pods)
        self.emit(HandedOver(pid, len(running), waiting))
        self.stop.set()
        return ""

    def __call__(self, event: Event) -> None:
        if not (isinstance(event, PullEnded) and self._lines):
            return
        call = event.call
        if call.started is not None and not call.pull.calls:
            error = None if call.end is CallState.LEFT else call.error
            self._lines.send({"ended": call.pull.number, "error": error})

    async def answered(self) -> None:
        async with self._reloading:
            pass


def _document(pull: QueuedPull) -> dict[str, Any]:
    """Return a running pull as the arguments of ``PullLimiter.count``, and its number."""
    leader = pull.leader
    return {
        "pull": pull.number,
        "reference": leader.reference,
        "runtime_handler": pull.key.runtime_handler,
        "is_present": not pull.takes_slot,
        "started": pull.started,
        "asked": leader.asked,
        "pod": leader.pod,
    }


class Predecessor:
    """The old process; ``pulls`` has the pulls that still run there, by number."""

    def __init__(self, lines: MessageLines, offer: Mapping[str, Any], limiter: PullLimiter) -> None:
        self._lines = lines
        self._limiter = limiter
        self.pulls: dict[int, PullCall] = {}
        self.pid = int(offer["pid"])
        self.folders = frozenset(map(str, offer["folders"]))

    @classmethod
    async def reach(cls, path: str, limiter: PullLimiter) -> Predecessor | None:
        """Connect to the process behind an admin socket; return None if none listens there."""
        where = f"the proxy's admin socket {quote('unix://' + path)}"
        try:
            async with asyncio.timeout(STEP_S):
                streams = await asyncio.open_unix_connection(path, limit=_LINE_BYTES)
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        except OSError as exc:
            reason = (exc.strerror or "timed out").lower()
            raise ConnectError(f"cannot reach {where}: {reason}") from None
        lines = MessageLines(*streams)
        lines.send({"call": "take-over"})
        offer = await lines.receive(STEP_S) or {}
        if "error" in offer:
            raise RemoteProtocolError(f"{where} refuses: {offer['error']}")
        try:
            return cls(lines, offer, limiter)
        except (ValueError, KeyError, TypeError):
            raise RemoteProtocolError(f"{where} has another hand-over protocol") from None

    async def announce(self, own: str, streams: str) -> int:
        """Announce where this process listens, and count the old process's running pulls.

        Return the number of waiting calls.
        """
        self._lines.send({"socket": own, "streams": streams})
        state = await self._next(STEP_S)
        if state is None:
            raise RemoteProtocolError("the proxy ended before it handed over")
        for pull in state["running"]:
            number, pod = pull.pop("pull"), pull.pop("pod")
            self.pulls[number] = self._limiter.count(**pull, pod=PodKey(*pod) if pod else None)
        self._limiter.queue.is_held = bool(state["waiting"])
        return int(state["waiting"])

    async def serving(self) -> None:
        """Announce that this process serves, and wait for the old one to confirm."""
        self._lines.send({"serving": True})
        answer = await self._next(STEP_S)
        if answer is not None and "error" in answer:
            raise RemoteProtocolError(f"the proxy does not hand over: {answer['error']}")

    async def follow(self) -> None:
        """Record the ends of the old process's pulls until it exits; others count as cancelled."""
        while await self._next() is not None:
            pass
        self._lines.close()
        for number in list(self.pulls):
            self._end(number, None)

    async def _next(self, timeout_s: float | None = None) -> dict[str, Any] | None:
        """Record ends of pulls, and return the next message of another kind."""
        while (message := await self._lines.receive(timeout_s)) is not None and "ended" in message:
            self._end(message["ended"], message.get("error"))
        return message

    def _end(self, number: int, error: str | None) -> None:
        if (call := self.pulls.pop(number, None)) is not None:
            self._limiter.uncount(call, error)


async def release_when_in_line(queue: PullQueue, count: int) -> None:
    """Release held slots once ``count`` calls of the old process are in line, or at a timeout."""
    time = asyncio.get_running_loop().time
    began_at = time()
    while time() < began_at + HOLD_S:
        if sum(call.asked < began_at for call in queue.in_line()) >= count:
            break
        await asyncio.sleep(_POLL_S)
    queue.release(now=time())


def _start_again(environ: Mapping[str, str]) -> int:
    """Start this command line again, but not as a child process; return the process ID.

    systemd notices the end of a service's main process only if it is systemd's own child. A program
    with threads cannot fork itself, so a shell does.

    Raises:
        OSError: no process could be started.
    """
    # A standalone program is its own interpreter.
    words = sys.argv[1:] if getattr(sys, "frozen", False) else sys.orig_argv[1:]
    shell = ["sh", "-c", '"$@" >&2 & echo $!', "sh", sys.executable, *words]
    done = subprocess.run(
        shell, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environ, check=False
    )
    if done.returncode:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return int(done.stdout)
