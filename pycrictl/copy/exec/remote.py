"""Programs in a container: short ones at once, and one whose streams carry an archive.

Commands are lists of words, and none of them is a shell. What the programs write is outside data.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pycrictl._proto import cri_pb2
from pycrictl.copy.exec.running import (
    MAX_STDERR_BYTES,
    MISSING_STATUS,
    Ended,
    ProgramMissing,
    Running,
    is_missing,
)
from pycrictl.copy.rules.spec import Existing, not_running
from pycrictl.copy.tree.resolve import KERNEL_FILE_SYSTEMS
from pycrictl.cri import sessions
from pycrictl.errors import CopyError, NotFound, RuntimeFault
from pycrictl.streaming.pump import Ends
from pycrictl.streaming.session import Choice, run_command
from pycrictl.units import quote
from pycrictl.wire.command import ExitReported, Streams

if TYPE_CHECKING:
    from pycrictl.cri.calls.client import CriClient
    from pycrictl.streaming.target import TlsFiles

SHORT_S: Final = 60
"""How long a program may take that only looks, or does one thing."""

LONG_S: Final = 3600
"""How long a program may take that removes many."""

_FIND_KIND: Final = (
    *(b"-prune", b"-print0"),
    *(b"!", b"-type", b"f", b"!", b"-type", b"l", b"-print0"),
    *(b"!", b"-type", b"d", b"-print0"),
)
"""For ``find``, to print a path as often as ``_KINDS`` says, or more often."""

_KINDS: Final = {0: Existing.NOTHING, 1: Existing.FILE, 2: Existing.DIRECTORY}

_ALWAYS_THERE: Final = b"/."
"""The root directory, as no other path is written."""

_MAX_WORDS_BYTES: Final = 16 * 1024
"""No more than ``xargs`` of BusyBox puts into one command."""


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
        self._mounts: frozenset[bytes] | None = None

    @property
    def address(self) -> tuple[str, str]:
        """The runtime's socket and the container's full ID."""
        return self._client.path, self._container_id

    def run(self, *command: str, limit_s: int = SHORT_S) -> Ended:
        """Run a program to its end.

        Raises:
            ProgramMissing: it is not there.
            PycrictlError: the runtime cannot run it, or kills it after ``limit_s``.
        """
        _check_words(command)
        return self._run_now(command, limit_s)

    def run_bytes(self, *command: bytes) -> Ended:
        """Run a program whose words may be any bytes, up to 16 KiB in all.

        What is not UTF-8 goes through ``xargs``, which runs the program too if the connection
        breaks in the middle of its words: such a command must do no harm.

        Raises:
            CopyError: the container has no ``xargs``, but needs it.
            PycrictlError: as ``run``.
        """
        words = [*map(os.fsdecode, command)]
        if is_utf8(*words):
            return self.run(*words)
        try:
            with self.stream("xargs", "-0", words[0], stdin=True) as program:
                program.send(b"".join(word + b"\0" for word in command[1:]))
                return program.ended()
        except ProgramMissing:
            _check_words(words)
            raise

    def _run_now(self, command: Sequence[str], limit_s: int) -> Ended:
        try:
            answer = sessions.exec_sync(self._client, self._container_id, command, limit_s=limit_s)
        except RuntimeFault as exc:
            if not isinstance(exc, NotFound) and is_missing(exc.details):
                raise ProgramMissing(command[0]) from exc
            raise
        if answer.exit_code in MISSING_STATUS and not answer.stdout:
            raise ProgramMissing(command[0])
        return Ended(answer.exit_code, answer.stdout, answer.stderr[:MAX_STDERR_BYTES])

    def check_running(self) -> None:
        """Check that the container is still running: the streams of a killed one do not end.

        Raises:
            FailedPrecondition: it is not.
        """
        request = cri_pb2.ContainerStatusRequest(container_id=self._container_id)
        state = self._client.call("ContainerStatus", request).status.state
        if state != cri_pb2.CONTAINER_RUNNING:
            raise not_running(self._container_id, what="has stopped")

    def existing(self, paths: Iterable[bytes], *, follow: bool = False) -> dict[bytes, Existing]:
        """Look what is at each of these paths.

        Args:
            paths: absolute.
            follow: what a link points to counts, unless it is dangling.

        Raises:
            Unimplemented: the container has no ``find``.
            CopyError: that cannot be seen.
        """
        found: dict[bytes, Existing] = {}
        for batch in batches((path,) for path in paths):
            options = [b"-L"] if follow else []
            ended = self.run_bytes(b"find", *options, _ALWAYS_THERE, *batch, *_FIND_KIND)
            count = Counter(ended.stdout.split(b"\0"))
            if _KINDS.get(count[_ALWAYS_THERE]) is not Existing.DIRECTORY:
                raise ended.failure("look at", batch[0])
            found.update((path, _KINDS.get(count[path], Existing.SPECIAL)) for path in batch)
        return found

    def mounts(self) -> frozenset[bytes]:
        """Return where something is mounted in the container, as far as that can be seen."""
        if self._mounts is None:
            text = self.run("cat", "/proc/self/mountinfo").stdout
            rows = [line.split(b" ") for line in text.splitlines()]
            self._mounts = frozenset(_unescaped(row[4]) for row in rows if len(row) > 4)
        return self._mounts

    def refuse_kernel_file_system(self, path: bytes) -> None:
        """Refuse what is not storage but an interface of the kernel, if that can be seen.

        Raises:
            CopyError: it is.
        """
        try:
            ended = self.run("stat", "-f", "-c", "%t", "--", os.fsdecode(path))
            name = KERNEL_FILE_SYSTEMS.get(int(ended.stdout, 16))
        except (ProgramMissing, ValueError):  # it cannot be seen
            return
        if name is not None:
            raise CopyError(f"{quote(os.fsdecode(path))} is on {name}, which is never copied")

    def stream(self, *command: str, stdin: bool) -> Running:
        """Start a program whose output is wanted as it comes, or that is given input."""
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

        program = Running(command[0], begin, stdin=stdin)
        program.on_stall = lambda _: self.check_running()
        return program


def batches(groups: Iterable[tuple[bytes, ...]]) -> Iterator[list[bytes]]:
    """Yield words in portions that one command can hold; those of a group stay together."""
    words: list[bytes] = []
    size_bytes = 0
    for group in groups:
        group_bytes = sum(len(word) + 1 for word in group)
        if words and size_bytes + group_bytes > _MAX_WORDS_BYTES:
            yield words
            words, size_bytes = [], 0
        words += group
        size_bytes += group_bytes
    if words:
        yield words


def is_utf8(*words: str) -> bool:
    """Return whether the CRI can carry them all: its texts are UTF-8."""
    return all(word.isascii() or word == word.encode(errors="replace").decode() for word in words)


def _check_words(command: Sequence[str]) -> None:
    """Require that the CRI can carry a command."""
    for word in command:
        if not is_utf8(word):
            raise CopyError(
                f"{quote(word)} is not UTF-8 and cannot be passed to a program in the container",
                hint="--method node can copy it",
            )


def _unescaped(field: bytes) -> bytes:
    """Read a path of mountinfo, where blanks and the like are octal (proc(5))."""
    return field.decode("unicode_escape").encode("latin-1") if b"\\" in field else field
