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
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TextIO

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import CopyError, NotFound, RuntimeFault, StreamError, Unimplemented
from pycrictl.base.units import quote
from pycrictl.copy.rules.spec import Existing, not_running
from pycrictl.copy.tree.commit import kind_of_mode
from pycrictl.copy.tree.content import CHUNK_BYTES
from pycrictl.copy.tree.resolve import KERNEL_FILE_SYSTEMS, KernelFileSystem
from pycrictl.copy.tree.rootfs import to_error
from pycrictl.runtime.cri import sessions
from pycrictl.streams.loop import end_tasks, in_thread, new_loop
from pycrictl.streams.pump import Ends, Input, Output
from pycrictl.streams.remote_command import run_command
from pycrictl.streams.wire.command import ExitReported, Streams

if TYPE_CHECKING:
    from pycrictl.runtime.cri.calls.client import CriClient
    from pycrictl.streams.target import TlsFiles

_MAX_STDERR_BYTES: Final = 64 * 1024

_MISSING: Final = ("executable file not found", "no such file or directory")
_MISSING_STATUS: Final = (126, 127)
"""The exit statuses that mean that a program cannot be run."""

_ERRNOS: Final = {os.strerror(number).lower(): number for number in errno.errorcode}
_ERRNOS["resource busy"] = errno.EBUSY  # musl's wording

_CHECK_S: Final = 3.0
_SILENCE_S: Final = 10.0
"""How long the server may be silent once the program has closed its outputs."""

_END_S: Final = 5.0

_SHORT_S: Final = 60
"""The timeout of programs that only query something."""


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

    def __init__(self, program: str) -> None:
        super().__init__(
            f"there is no {program} in the container",
            hint="--method node needs no program in the container",
        )


class Running:
    """A running program in a container, with a pipe to its input or from its output.

    The connection has an event loop in a thread of its own. Leaving the ``with`` block closes it.

    Args:
        run: connects the program to these ends, and returns its outcome.
        check: called every few seconds; its errors end the program.

    Attributes:
        stderr: the start of the program's stderr so far; for a program with input, of its stdout
            as well.
    """

    def __init__(
        self,
        program: str,
        run: Callable[[Ends], Coroutine[Any, Any, ExitReported | None]],
        *,
        stdin: bool,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.stderr = bytearray()
        self._program = program
        self._outcome: ExitReported | None = None
        self._error: Exception | None = None
        reading, writing = os.pipe()
        self._fd, theirs = (writing, reading) if stdin else (reading, writing)
        self._loop = new_loop()
        pipe = open(theirs, "r" if stdin else "w")  # noqa: PTH123 (a descriptor)
        self._task = self._loop.create_task(self._follow(run, check, pipe, stdin=stdin))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
        with suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(_END_S)  # a hung connection stays until this program ends

    def pieces(self) -> Iterator[bytes]:
        while data := os.read(self._fd, CHUNK_BYTES):
            yield data

    def send(self, data: bytes) -> bool:
        """Send input; return False if the program has ended and more input would be lost."""
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except BrokenPipeError:
            return False
        return True

    def ended(self) -> CommandResult:
        """Close the input of the program, and wait for its exit.

        Raises:
            StreamError: the connection broke before the exit status was known.
            PycrictlError: the program could not be started.
        """
        self._close()
        self._thread.join()
        if self._error is not None:
            raise self._error
        if self._outcome is None:
            raise StreamError("the connection ended before the outcome was known")
        if self._outcome.exit_code is None:
            message = self._outcome.message
            raise CopyError(f"cannot run {self._program} in the container: {message}")
        return CommandResult(self._outcome.exit_code, b"", bytes(self.stderr))

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    # In the thread

    def _serve(self) -> None:
        try:
            self._outcome = self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            pass
        except Exception as exc:
            self._error = exc
        finally:
            self._loop.close()

    async def _follow(
        self,
        run: Callable[[Ends], Coroutine[Any, Any, ExitReported | None]],
        check: Callable[[], None],
        pipe: TextIO,
        *,
        stdin: bool,
    ) -> ExitReported | None:
        with pipe:
            kept = _Kept(self.stderr)
            output = None if stdin else Output(pipe)
            running = asyncio.create_task(
                run(Ends(output or kept, kept, Input(pipe) if stdin else None))
            )
            checking = asyncio.create_task(_repeat(check))
            try:
                await asyncio.wait((running, checking), return_when=asyncio.FIRST_COMPLETED)
                outcome = await (running if running.done() else checking)
                if output is not None:
                    await output.finish()
                return outcome
            finally:
                await end_tasks((running, checking))


async def _repeat(check: Callable[[], None]) -> NoReturn:
    while True:
        await asyncio.sleep(_CHECK_S)
        await in_thread(check)


class _Kept(NamedTuple):
    """Keeps the start of an output."""

    kept: bytearray

    async def write(self, *pieces: bytes | memoryview) -> None:
        for piece in pieces:
            self.kept.extend(piece[: _MAX_STDERR_BYTES - len(self.kept)])


@dataclass(eq=False)
class Remote:
    client: CriClient
    container_id: str
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
        run = partial(
            run_command,
            ask_url,
            Streams(stdin=stdin),
            timeout_s=self.client.timeout_s,
            tls=self.tls,
            silence_s=_SILENCE_S,
        )
        return Running(command[0], run, stdin=stdin, check=self.check_running)


def _check_words(command: Sequence[str]) -> None:
    """Require that the CRI, whose strings are UTF-8, can carry a command."""
    for word in command:
        if not (word.isascii() or word == word.encode(errors="replace").decode()):
            raise CopyError(
                f"{quote(word)} is not UTF-8 and cannot be passed to a program in the container",
                hint="--method node can copy it",
            )
