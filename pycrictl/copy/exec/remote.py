"""Programs in a container: short ones at once, and one whose streams carry an archive.

Commands are lists of words, and none of them is a shell. What the programs write is outside data.
"""

from __future__ import annotations

import asyncio  # noqa: TID253 (this module is loaded when a copy goes this way)
import errno
import json
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pycrictl._proto import cri_pb2
from pycrictl.copy.tree.content import CHUNK_BYTES
from pycrictl.copy.tree.resolve import KERNEL_FILE_SYSTEMS
from pycrictl.copy.tree.rootfs import to_error
from pycrictl.copy.tree.survivor import Survivor
from pycrictl.cri import sessions
from pycrictl.errors import (
    CopyError,
    FailedPrecondition,
    NotFound,
    RuntimeFault,
    StreamError,
    Unimplemented,
)
from pycrictl.streaming.loop import end_tasks
from pycrictl.streaming.pump import Ends, Input, Output
from pycrictl.streaming.session import Choice, run_command
from pycrictl.units import quote
from pycrictl.wire.command import ExitReported, Streams

if TYPE_CHECKING:
    from pycrictl.cri.calls.client import CriClient
    from pycrictl.streaming.target import TlsFiles

SHORT_S: Final = 60
"""How long a program may take that only looks, or makes one thing."""

LONG_S: Final = 3600
"""How long a program may take that moves or removes many."""

MAX_STDERR_BYTES: Final = 64 * 1024

_MAX_STDOUT_BYTES: Final = 1024 * 1024
"""How much is kept of what a program says that is being fed."""

_ERRNOS: Final = {
    os.strerror(number).lower(): number
    for number in (
        *(errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EBUSY),
        *(errno.ENOENT, errno.ENOTDIR),
    )
}
_ERRNOS["resource busy"] = errno.EBUSY  # as musl says it

STALL_S: Final = 3.0
"""How long a session may stand still before it is asked why."""

_QUEUE_PIECES: Final = 4
_END_S: Final = 5.0
_MISSING: Final = ("executable file not found", "no such file or directory")
_MISSING_STATUS: Final = (126, 127)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program in a container ended.

    Attributes:
        status: its exit status.
        stdout: what it wrote, up to a limit; empty where that went elsewhere.
        stderr: the beginning of its complaints.
    """

    status: int
    stdout: bytes
    stderr: bytes

    @property
    def reason(self) -> str:
        """What it complained about first, or its exit status."""
        lines = self.stderr.decode(errors="replace").splitlines()
        return next(filter(None, map(str.strip, lines)), f"it ended with status {self.status}")

    def failure(self, action: str, path: bytes) -> CopyError:
        """An error that quotes it: ``cannot <action> "<path>": <reason>``."""
        reason = self.reason.rpartition(": ")[2]
        number = _ERRNOS.get(reason.lower())
        if number is not None:
            return to_error(OSError(number, reason), action, path)
        said = quote(self.reason, limit=200)
        return CopyError(f"cannot {action} {quote(os.fsdecode(path))}: {said}")


class ProgramMissing(Unimplemented):
    """A program is not in the container."""

    reference = "program-missing"

    def __init__(self, program: str) -> None:
        super().__init__(
            f"there is no {program} in the container",
            code="Unimplemented",
            hint="--method node needs no program in the container",
        )


class Remote:
    """One container, to run programs in.

    Args:
        client: of the runtime service.
        container_id: the full ID.
        choice: the transport of streams; tls: its files.
    """

    def __init__(
        self,
        client: CriClient,
        container_id: str,
        *,
        choice: Choice = "auto",
        tls: TlsFiles | None = None,
    ) -> None:
        self._client = client
        self._container_id = container_id
        self._choice: Choice = choice
        self._tls = tls

    def survivor(self, stage: str) -> Survivor:
        """What removes a stage in the container when this program is killed."""
        tls = [] if self._tls is None else [json.dumps(self._tls._asdict())]
        arguments = [self._client.path, self._container_id, stage, self._choice, *tls]
        return Survivor("remote-stage", arguments)

    def run(self, *command: str, limit_s: int = SHORT_S) -> Ended:
        """Run a program to its end.

        Raises:
            ProgramMissing: it is not there.
            PycrictlError: the runtime cannot run it, or kills it after ``limit_s``.
        """
        _check_words(command)
        return self._run_now(command, limit_s)

    def look(self, *command: str) -> Ended:
        """Run a program that only looks; its words may be names that are not UTF-8.

        They go through ``xargs`` then, and what is cut off on the way must do no harm.

        Raises:
            CopyError: the container has no ``xargs``, but needs one.
            PycrictlError: as ``run``.
        """
        if is_utf8(*command):
            return self.run(*command)
        words = b"".join(os.fsencode(word) + b"\0" for word in command[1:])
        try:
            with self.stream("xargs", "-0", command[0], stdin=True) as session:
                session.send(words)
                return session.ended()
        except ProgramMissing:
            _check_words(command)
            raise

    def _run_now(self, command: Sequence[str], limit_s: int) -> Ended:
        try:
            answer = sessions.exec_sync(self._client, self._container_id, command, limit_s=limit_s)
        except RuntimeFault as exc:
            if not isinstance(exc, NotFound) and _is_missing(exc.details):
                raise ProgramMissing(command[0]) from exc
            raise
        if answer.exit_code in _MISSING_STATUS and not answer.stdout:
            raise ProgramMissing(command[0])
        return Ended(answer.exit_code, answer.stdout, answer.stderr[:MAX_STDERR_BYTES])

    def check_running(self) -> None:
        """Check that the container still runs: nobody ends the streams of one that was killed.

        Raises:
            FailedPrecondition: it does not.
        """
        request = cri_pb2.ContainerStatusRequest(container_id=self._container_id)
        state = self._client.call("ContainerStatus", request).status.state
        if state != cri_pb2.CONTAINER_RUNNING:
            raise FailedPrecondition(
                f"container {quote(self._container_id)} has stopped", code="FailedPrecondition"
            )

    def refuse_kernel_file_system(self, path: bytes) -> None:
        """Refuse what is no storage but an interface of the kernel, if the container tells it.

        Raises:
            CopyError: it is.
        """
        try:
            ended = self.run("stat", "-f", "-c", "%t", "--", os.fsdecode(path))
            name = KERNEL_FILE_SYSTEMS.get(int(ended.stdout, 16))
        except (ProgramMissing, ValueError):  # it does not tell
            return
        if name is not None:
            raise CopyError(f"{quote(os.fsdecode(path))} is on {name}, which is never copied")

    def stream(self, *command: str, stdin: bool) -> Session:
        """Start a program whose output is wanted as it comes, or that is fed with input."""
        _check_words(command)
        streams = Streams(stdin=stdin)
        ask_url = partial(
            sessions.exec_url, self._client, self._container_id, command, stdin=stdin, tty=False
        )

        def begin(ends: Ends) -> Coroutine[Any, Any, ExitReported | None]:
            return run_command(
                ask_url,
                streams,
                ends,
                choice=self._choice,
                timeout_s=self._client.timeout_s,
                tls=self._tls,
            )

        session = Session(command[0], begin, stdin=stdin)
        session.on_stall = lambda _: self.check_running()
        return session


class Session:
    """A program in a container that runs. Leaving the ``with`` statement hangs up.

    The connection has a thread of its own, so that the caller stays free to be interrupted.

    Attributes:
        on_stall: called again and again while nothing moves, with the seconds since something did;
            what it raises is raised where the caller waits.
    """

    def __init__(
        self,
        program: str,
        begin: Callable[[Ends], Coroutine[Any, Any, ExitReported | None]],
        *,
        stdin: bool,
    ) -> None:
        self.on_stall: Callable[[float], None] = _be_patient
        self._program = program
        self._stdout = bytearray()
        self._stderr = bytearray()
        self._unsendable = ""
        self._input: asyncio.Queue[bytes] = asyncio.Queue(_QUEUE_PIECES)
        self._output: asyncio.Queue[bytes] = asyncio.Queue(_QUEUE_PIECES)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        ends = Ends(
            stdout=_Taker(self._keep_output if stdin else self._output.put),
            stderr=_Taker(self._keep),
            stdin=_Feeder(self._input) if stdin else None,
            note=self._refuse,
        )
        self._task = self._on_loop(self._start(begin, ends))

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(TimeoutError):  # a connection that hangs is left to the end of the program
            asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).result(_END_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_END_S)
        if not self._thread.is_alive():
            self._loop.close()
        if self._task.done() and not self._task.cancelled():
            self._task.exception()  # asyncio complains of one that nobody has looked at

    def pieces(self) -> Iterator[bytes]:
        """Yield the program's output until it ends; then ask ``ended``."""
        while True:
            piece = self._on_loop(self._until_over(self._output.get))
            if piece is None:
                break
            yield piece
        while not self._output.empty():
            yield self._output.get_nowait()

    def send(self, data: bytes) -> bool:
        """Send input; return False if the program has ended, and more input would be lost."""
        return bool(self._on_loop(self._until_over(partial(self._put, data))))

    def ended(self) -> Ended:
        """Wait for the end of the program; of its input too.

        Raises:
            ProgramMissing: it is not there.
            StreamError: the connection broke before the end was known.
            PycrictlError: the program could not be started.
        """
        self.send(b"")
        outcome = self._on_loop(self._wait())
        if self._unsendable:
            raise StreamError(
                "this transport cannot tell the program that its input has ended",
                hint="--transport spdy can",
            )
        if outcome is None:
            raise StreamError("the connection ended before the outcome was known")
        if outcome.exit_code is None:
            if _is_missing(outcome.message):
                raise ProgramMissing(self._program)
            raise CopyError(f"cannot run {self._program} in the container: {outcome.message}")
        if outcome.exit_code in _MISSING_STATUS and not self._stderr:
            raise ProgramMissing(self._program)
        return Ended(outcome.exit_code, bytes(self._stdout), bytes(self._stderr))

    @property
    def so_far(self) -> Ended:
        """What it complained about, without its end."""
        return Ended(-1, b"", bytes(self._stderr))

    def _on_loop(self, coroutine: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        stalled_s = 0.0
        while True:
            try:
                return future.result(STALL_S)
            except TimeoutError:
                if future.done():
                    raise
            stalled_s += STALL_S
            self.on_stall(stalled_s)

    async def _start(
        self, begin: Callable[[Ends], Coroutine[Any, Any, ExitReported | None]], ends: Ends
    ) -> asyncio.Task[ExitReported | None]:
        return asyncio.create_task(begin(ends))

    async def _until_over(self, act: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
        """Do something unless the session ends before; None if it has."""
        acting = asyncio.create_task(act())
        await asyncio.wait({acting, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if acting.done():
            return acting.result()
        acting.cancel()
        return None

    async def _wait(self) -> ExitReported | None:
        await asyncio.wait({self._task})
        try:
            return self._task.result()
        except asyncio.CancelledError:
            return None

    def _refuse(self, text: str) -> None:
        self._unsendable = text
        self._task.cancel()

    async def _put(self, data: bytes) -> bool:
        await self._input.put(data)
        return not self._task.done()

    async def _keep(self, data: bytes) -> None:
        self._stderr += data[: MAX_STDERR_BYTES - len(self._stderr)]

    async def _keep_output(self, data: bytes) -> None:
        self._stdout += data[: _MAX_STDOUT_BYTES - len(self._stdout)]


class _Taker(Output):
    """An output that hands on what comes."""

    def __init__(self, take: Callable[[bytes], Coroutine[Any, Any, None]]) -> None:
        self._take = take

    async def write(self, *pieces: bytes | memoryview) -> None:
        await self._take(b"".join(pieces))


class _Feeder(Input):
    """An input that comes from a queue; an empty piece is its end."""

    def __init__(self, queue: asyncio.Queue[bytes]) -> None:
        self._queue = queue

    async def read(self) -> bytes:
        return await self._queue.get()


def _be_patient(_: float) -> None:
    """Who waits for output does so for as long as it takes."""


async def _cancel_all() -> None:
    """End all tasks but this one, so that nothing is left that could complain later."""
    await end_tasks(task for task in asyncio.all_tasks() if task is not asyncio.current_task())
    await asyncio.get_running_loop().shutdown_default_executor()


def in_large_pieces(pieces: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    """The same bytes in pieces of ``CHUNK_BYTES``, in which holes of files can be seen."""
    held: list[bytes] = []
    free_bytes = CHUNK_BYTES
    for piece in pieces:
        view = memoryview(piece)
        while len(view) >= free_bytes:
            held.append(bytes(view[:free_bytes]))
            view = view[free_bytes:]
            yield b"".join(held)
            held.clear()
            free_bytes = CHUNK_BYTES
        held.append(bytes(view))
        free_bytes -= len(view)
    if rest := b"".join(held):
        yield rest


def _is_missing(details: str) -> bool:
    return any(words in details for words in _MISSING)


def is_utf8(*words: str) -> bool:
    """Whether the CRI can carry them all: its texts are UTF-8."""
    return all(word.isascii() or word == word.encode(errors="replace").decode() for word in words)


def _check_words(command: Sequence[str]) -> None:
    """Require that the CRI can carry a command."""
    for word in command:
        if not is_utf8(word):
            raise CopyError(
                f"{quote(word)} is not UTF-8, and cannot be named to a program in the container",
                hint="--method node can copy it",
            )
