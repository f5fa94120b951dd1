"""Running programs in a container: short ones, and one whose streams carry an archive.

Commands are lists of words, and none runs in a shell. Output of the programs is untrusted data.
"""

from __future__ import annotations

import asyncio  # noqa: TID253 (this module is loaded only for this method)
import errno
import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from pycrictl._proto import cri_pb2
from pycrictl.copy.rules.spec import Existing, not_running
from pycrictl.copy.tree.commit import kind_of_mode
from pycrictl.copy.tree.resolve import KERNEL_FILE_SYSTEMS, KernelFileSystem
from pycrictl.copy.tree.rootfs import to_error
from pycrictl.cri import sessions
from pycrictl.errors import CopyError, NotFound, RuntimeFault, StreamError, Unimplemented
from pycrictl.streaming.loop import end_tasks, new_loop
from pycrictl.streaming.pump import Ends
from pycrictl.streaming.remote_command import Choice, run_command
from pycrictl.units import quote
from pycrictl.wire.command import ExitReported, Streams

if TYPE_CHECKING:
    from pycrictl.cri.calls.client import CriClient
    from pycrictl.streaming.target import TlsFiles

_MAX_STDERR_BYTES: Final = 64 * 1024

_MISSING: Final = ("executable file not found", "no such file or directory")
_MISSING_STATUS: Final = (126, 127)
"""The exit statuses that mean that a program cannot be run."""

_ERRNOS: Final = {os.strerror(number).lower(): number for number in errno.errorcode}
_ERRNOS["resource busy"] = errno.EBUSY  # musl's wording

_STALL_S: Final = 3.0
"""The interval at which ``on_stall`` is called while a program stalls."""

_QUEUE_PIECES: Final = 4
_END_S: Final = 5.0

_SHORT_S: Final = 60
"""The timeout of programs that only query something."""

T = TypeVar("T")


class CommandResult(NamedTuple):
    status: int
    stdout: bytes
    stderr: bytes

    def failure(self, action: str, path: bytes) -> CopyError:
        """Return an error that quotes stderr: ``cannot <action> "<path>": <reason>``."""
        lines = map(str.strip, self.stderr.decode(errors="replace").splitlines())
        said = next(filter(None, lines), f"it ended with status {self.status}")
        reason = said.rpartition(": ")[2]
        if (number := _ERRNOS.get(reason.lower())) is not None:
            return to_error(OSError(number, reason), action, path)
        return CopyError(f"cannot {action} {quote(os.fsdecode(path))}: {quote(said, limit=200)}")


class ProgramMissing(Unimplemented):
    """A program is not in the container."""

    reference = "program-missing"

    def __init__(self, program: str) -> None:
        super().__init__(
            f"there is no {program} in the container",
            hint="--method node needs no program in the container",
        )


class Running:
    """A running program in a container. Leaving the ``with`` block closes the connection.

    The connection has a thread of its own, so the caller can be interrupted.

    Attributes:
        on_stall: called repeatedly during a stall, with its length in seconds; its errors are
            raised in the waiting caller.
        stderr: the start of the program's stderr so far; for a program with input, of its stdout
            as well.
    """

    def __init__(
        self,
        program: str,
        begin: Callable[[Ends], Coroutine[Any, Any, ExitReported | None]],
        *,
        stdin: bool,
    ) -> None:
        self.on_stall: Callable[[float], None] = lambda _: None
        self.stderr = bytearray()
        self._program = program
        self._noted = ""
        self._input = _QueuedInput()
        self._output: asyncio.Queue[bytes] = asyncio.Queue(_QUEUE_PIECES)
        ends = Ends(
            stdout=_ToFunction(self._keep if stdin else self._output.put),
            stderr=_ToFunction(self._keep),
            stdin=self._input if stdin else None,
            note=self._give_up,
        )
        self._loop = new_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._task = self._call(_started(begin(ends)))

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(TimeoutError):  # a hung connection stays until this program ends
            asyncio.run_coroutine_threadsafe(_end_all(), self._loop).result(_END_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_END_S)
        if not self._thread.is_alive():
            self._loop.close()

    def wait_for_streams(self) -> None:
        """Wait until the streams of a program with input are open, or it has failed.

        From then on the runtime starts it even if this program is killed.
        """
        self._call(self._until_over(self._input.is_read.wait()))

    def pieces(self) -> Iterator[bytes]:
        while (piece := self._call(self._until_over(self._output.get()))) is not None:
            yield piece
        while not self._output.empty():
            yield self._output.get_nowait()

    def send(self, data: bytes) -> bool:
        """Send input; return False if the program has ended and more input would be lost."""
        self._call(self._until_over(self._input.queue.put(data)))
        return not self._task.done()

    def ended(self) -> CommandResult:
        """Close the input of the program, and wait for its exit.

        Raises:
            StreamError: the connection broke before the exit status was known.
            PycrictlError: the program could not be started.
        """
        self.send(b"")
        self._call(asyncio.wait({self._task}))
        outcome = None if self._task.cancelled() else self._task.result()
        if outcome is None:
            raise StreamError(self._noted or "the connection ended before the outcome was known")
        if outcome.exit_code is None:
            raise CopyError(f"cannot run {self._program} in the container: {outcome.message}")
        return CommandResult(outcome.exit_code, b"", bytes(self.stderr))

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        stalled_s = 0.0
        while True:
            try:
                return future.result(_STALL_S)
            except TimeoutError:
                if future.done():
                    raise
            stalled_s += _STALL_S
            self.on_stall(stalled_s)

    async def _until_over(self, action: Coroutine[Any, Any, T]) -> T | None:
        acting = asyncio.create_task(action)
        await asyncio.wait({acting, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if acting.done():
            return acting.result()
        acting.cancel()
        return None

    async def _keep(self, data: bytes) -> None:
        self.stderr += data[: _MAX_STDERR_BYTES - len(self.stderr)]

    def _give_up(self, noted: str) -> None:
        """Cancel a run that will not end by itself, for example if its input cannot be closed."""
        self._noted = noted
        self._task.cancel()


class _ToFunction:
    """Output to a function."""

    def __init__(self, take: Callable[[bytes], Coroutine[Any, Any, None]]) -> None:
        self._take = take

    async def write(self, *pieces: bytes | memoryview) -> None:
        await self._take(b"".join(pieces))


class _QueuedInput:
    """Input from a queue; an empty piece marks its end."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[bytes] = asyncio.Queue(_QUEUE_PIECES)
        self.is_read = asyncio.Event()

    async def read(self) -> bytes:
        self.is_read.set()
        return await self.queue.get()


async def _started(coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    task = asyncio.create_task(coroutine)
    task.add_done_callback(lambda _: task.cancelled() or task.exception())  # marks it as retrieved
    return task


async def _end_all() -> None:
    """End all tasks but this one, as they could log errors later."""
    await end_tasks(task for task in asyncio.all_tasks() if task is not asyncio.current_task())


@dataclass(eq=False)
class Remote:
    client: CriClient
    container_id: str
    choice: Choice = "auto"
    tls: TlsFiles | None = None

    def run(self, *command: str) -> CommandResult:
        _check_words(command)
        try:
            answer = sessions.exec_sync(self.client, self.container_id, command, limit_s=_SHORT_S)
        except RuntimeFault as exc:
            is_missing = any(words in exc.details for words in _MISSING)
            if is_missing and not isinstance(exc, NotFound):
                raise ProgramMissing(command[0]) from exc
            raise
        if answer.exit_code in _MISSING_STATUS and not answer.stdout:
            raise ProgramMissing(command[0])
        return CommandResult(answer.exit_code, answer.stdout, answer.stderr[:_MAX_STDERR_BYTES])

    def check_running(self) -> None:
        """Require that the container is still running: streams of a killed one do not end."""
        request = cri_pb2.ContainerStatusRequest(container_id=self.container_id)
        state = self.client.call("ContainerStatus", request).status.state
        if state != cri_pb2.CONTAINER_RUNNING:
            raise not_running(self.container_id, what="has stopped")

    def look(self, path: bytes, *, follow: bool = False) -> Existing:
        """Return the kind of a path; with ``follow``, of a link's target unless it is dangling."""
        for options in (["-L"], []) if follow else ([],):
            ended = self.run("stat", *options, "-c", "%f", "--", os.fsdecode(path))
            with suppress(ValueError):
                return kind_of_mode(int(ended.stdout, 16))
        if b"ermission denied" in ended.stderr:
            raise ended.failure("look at", path)
        return Existing.NOTHING

    def refuse_kernel_file_system(self, path: bytes) -> None:
        """Refuse a path on a file system of the kernel, not storage, if that can be detected."""
        try:
            ended = self.run("stat", "-f", "-c", "%t", "--", os.fsdecode(path))
            name = KERNEL_FILE_SYSTEMS.get(int(ended.stdout, 16))
        except (ProgramMissing, ValueError):  # not detectable
            return
        if name is not None:
            raise KernelFileSystem(path, name)

    def stream(self, *command: str, stdin: bool) -> Running:
        _check_words(command)
        ask_url = partial(
            sessions.exec_url, self.client, self.container_id, command, stdin=stdin, tty=False
        )
        begin = partial(
            run_command,
            ask_url,
            Streams(stdin=stdin),
            choice=self.choice,
            timeout_s=self.client.timeout_s,
            tls=self.tls,
        )
        program = Running(command[0], begin, stdin=stdin)
        program.on_stall = lambda _: self.check_running()
        return program


def _check_words(command: Sequence[str]) -> None:
    """Require that the CRI, whose strings are UTF-8, can carry a command."""
    for word in command:
        if not (word.isascii() or word == word.encode(errors="replace").decode()):
            raise CopyError(
                f"{quote(word)} is not UTF-8 and cannot be passed to a program in the container",
                hint="--method node can copy it",
            )
