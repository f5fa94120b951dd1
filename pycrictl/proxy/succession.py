"""How one program of the proxy follows another, and what each has to do for it.

1. At SIGHUP ``proxy.replacement`` starts a new program with the same command line. It connects to
   the admin socket of the old one (``proxy.handover`` has the conversation, and each step at which
   the new one may fail without harm) and serves at a socket that no client dials yet.
2. The old one gives no more slots and says which pulls run. The new one counts those, and renames
   the link that clients dial to its own socket (``serve.listen``).
3. The old one makes the waiting calls anew, as a client of the new one, with their time of
   arrival, which keeps the order. The same happens to other calls that the proxy answers itself.
4. gRPC asks the old one's clients to reconnect as their connections age (``server.AGE_S``). When
   all are too old and nothing is left to finish (``proxy.ending``), the old one ends.

The queue moves and running pulls stay, since a waiting call can be made again and a running one
belongs to the runtime. So no state has two owners, and a third program can follow while the first
has not ended. A fixed port of the streams is left by the old one and bound by the new one; URLs at
it that nobody has opened by then are lost.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any, Final

from pycrictl.proxy.calls import Answer, CallRequest, Handler
from pycrictl.proxy.handover import MessageLines, Predecessor, Successor
from pycrictl.proxy.pulls.book import Book, QueuedPull
from pycrictl.proxy.pulls.limiter import CLOSED, PullLimiter
from pycrictl.proxy.replacement import replace as replace_program
from pycrictl.proxy.runtime_lookup import PodKey
from pycrictl.proxy.serve.listen import OwnSocket
from pycrictl.proxy.serve.stream_server import StreamServer
from pycrictl.proxy.settings import ProxySettings
from pycrictl.proxy.upstream import Upstream
from pycrictl.servicelog import Log, notify
from pycrictl.streaming.loop import end_tasks

ASKED: Final = "pycrictl-asked"
"""Metadata of a call that is made to a second program: when it came to the first, in seconds of the
clock that all programs of a node share (CLOCK_MONOTONIC)."""

HOLD_S: Final = 2.0
"""How long slots are held for the calls that the program before had in line."""

_LOOK_S: Final = 0.01


class Succession:
    """Takes over at the start, and hands over in the end.

    ``stop`` is set when this program is to end, by a signal or because another one serves.
    ``sockets`` are those of the clients and of the operators; ``predecessor`` is the program before
    this one until it has ended, ``successor`` the new program once it serves.
    """

    def __init__(
        self,
        settings: ProxySettings,
        limiter: PullLimiter,
        streams: StreamServer[Any],
        *,
        book: Book,
        environ: Mapping[str, str],
        log: Log,
        stop: asyncio.Event,
    ) -> None:
        self._settings = settings
        self._limiter = limiter
        self._streams = streams
        self._book = book
        self._environ = environ
        self._log = log
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self._reloading = asyncio.Lock()
        self._is_handing_over = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._adopted: dict[int, asyncio.Future[str | None]] = {}
        self._heir: Upstream | None = None
        self._taking: Successor | None = None
        self._told: set[int] = set()
        self.sockets: list[OwnSocket] = []
        self.predecessor: Predecessor | None = None
        self.successor: Successor | None = None
        self.handed_over_at = 0.0

    async def pull(self, request: CallRequest) -> Answer:
        asked, request = _arrival(request)
        if self._heir is None:
            answer = await self._limiter.handle(request, asked)
            if answer is not CLOSED or self._heir is None:
                return answer
        first = (ASKED, repr(request.came if asked is None else asked))
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

    def document(self) -> dict[str, Any] | None:
        if self.predecessor is None:
            return None
        return {"pid": self.predecessor.pid, "pulls": len(self._adopted)}

    @property
    def adopted_count(self) -> int:
        return len(self._adopted)

    # The new program

    def reach(self, admin: str) -> frozenset[str]:
        self.predecessor = Predecessor.reach(admin)
        return frozenset() if self.predecessor is None else self.predecessor.folders

    @property
    def has_old_port(self) -> bool:
        """Whether streams are served at the predecessor's port, which is a fixed one."""
        old = self.predecessor
        return old is not None and old.streams == self._settings.stream_address.authority

    async def take_over(self, old: Predecessor) -> None:
        """Serve from now on, with all that the other program leaves."""
        state = await old.take(str(self.sockets[0].path), port=self.has_old_port)
        if self.has_old_port:
            self._streams.start(self._settings.stream_address)
            self._streams.listen_in(self.sockets[0].folder)
        for document in state["running"]:
            self._adopt(document)
        if state["waiting"]:
            self._limiter.hold()
        self.publish()
        await old.serving(self._end_adopted)
        self._log.info("took_over", pid=old.pid)
        self._spawn(self._follow(old))
        if state["waiting"]:
            self._spawn(self._let_in(state["waiting"]))

    def publish(self) -> None:
        for own in self.sockets:
            own.publish()

    def _adopt(self, document: Mapping[str, Any]) -> None:
        number, pod = document["pull"], document["pod"]
        end = self._adopted[number] = self._loop.create_future()
        self._limiter.count(
            document["image"],
            end,
            began_s=self._loop.time() - document["started"],
            asked=document["asked"],
            pod=PodKey(*map(str, pod)) if pod else None,
            runtime_handler=document["runtimeHandler"],
            takes_slot=document["takesSlot"],
        )

    def _end_adopted(self, number: int, error: str | None) -> None:
        end = self._adopted.pop(number, None)
        if end is not None and not end.done():
            end.set_result(error)

    async def _follow(self, old: Predecessor) -> None:
        await old.follow(self._end_adopted)
        for number in list(self._adopted):
            self._end_adopted(number, None)
        self.predecessor = None
        self._log.info("predecessor_ended", pid=old.pid)

    async def _let_in(self, count: int) -> None:
        """Hold the slots until so many calls are in line that came to the program before."""
        began_at = self._loop.time()
        while self._loop.time() < began_at + HOLD_S:
            if sum(call.asked < began_at for call in self._limiter.in_line()) >= count:
                break
            await asyncio.sleep(_LOOK_S)
        self._limiter.release()

    # The old program

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
            admin = str(self.sockets[1].path)
            await replace_program(admin, self._environ, lambda: self.successor is not None)
        assert self.successor is not None
        return {"pid": self.successor.pid}

    async def hand_over(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Hand over to a program that has connected; if it fails, go on."""
        lines = MessageLines(reader, writer)
        if self._stop.is_set() or self._is_handing_over:
            lines.send({"error": "it is stopping or handing over already"})
            return False
        self._is_handing_over = True
        try:
            reason = await self._try(lines)
        finally:
            self._is_handing_over = False
        if reason:
            self._log.warning("not_handed_over", reason=reason)
        return not reason

    async def _try(self, lines: MessageLines) -> str:
        """Return why the new program does not serve; empty if it does."""
        folders = [own.folder.name for own in self.sockets]
        streams = self._streams.address
        successor = await Successor.offered(lines, folders, streams.authority)
        if successor is None:
            return "the new program did not start"
        if self._stop.is_set():
            return "the proxy is stopping"
        self._limiter.hold()
        if successor.wants_port:
            self._streams.pause()
        pods = {call.pod for call in self._book.calls.values()}
        running = [_document(pull) for pull in self._book.running.values()]
        self._taking, self._told = successor, {document["pull"] for document in running}
        waiting = len(self._limiter.in_line())
        if not await successor.serves({"running": running, "waiting": waiting}):
            self._told = set()
            successor.refuse("it took too long")
            if successor.wants_port:
                self._streams.resume()
            self._limiter.release()
            self.publish()
            return "the new program ended at once"
        self._heir = Upstream(successor.socket)
        # First: of the new program's "READY=1" systemd takes notice only if it is the main one.
        notify(f"MAINPID={successor.pid}", self._environ)
        successor.confirm()
        self.successor = successor
        self._limiter.close(waiting=True)
        self._streams.leave(lambda target: target.pod in pods)
        self.handed_over_at = self._loop.time()
        self._log.info("handed_over", pid=successor.pid, running=len(running), waiting=waiting)
        self._stop.set()
        return ""

    def pull_ended(self, number: int, error: str | None) -> None:
        if self._taking is not None and number in self._told:
            self._taking.ended(number, error)

    async def answered(self) -> None:
        async with self._reloading:
            pass

    # Both

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        await end_tasks(self._tasks)
        if self.successor is not None:
            self.successor.close()
        if self._heir is not None:
            await self._heir.close()

    def close(self) -> None:
        for own in self.sockets:
            own.close()


def _arrival(request: CallRequest) -> tuple[float | None, CallRequest]:
    asked, metadata = None, []
    for key, value in request.metadata:
        if key != ASKED:
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
