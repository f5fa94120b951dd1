"""Programs in a container: short ones at once, and one whose streams carry an archive.

Commands are lists of words, and none of them is a shell. What the programs write is outside data.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Coroutine, Sequence
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
from pycrictl.streaming.remote_command import Choice, run_command
from pycrictl.units import quote
from pycrictl.wire.command import ExitReported, Streams

if TYPE_CHECKING:
    from pycrictl.cri.calls.client import CriClient
    from pycrictl.streaming.target import TlsFiles

SHORT_S: Final = 60
"""How long a program may take that only looks."""

_FIND_KIND: Final = (
    *("-prune", "-print0"),
    *("!", "-type", "f", "!", "-type", "l", "-print0"),
    *("!", "-type", "d", "-print0"),
)
"""For ``find``, to print a path as often as ``_KINDS`` says, or more often."""

_KINDS: Final = {0: Existing.NOTHING, 1: Existing.FILE, 2: Existing.DIRECTORY}

_ALWAYS_THERE: Final = "/."
"""The root directory, as no other path is written."""


class Remote:
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

    def run(self, *command: str) -> Ended:
        _check_words(command)
        return self._run_now(command)

    def tar_version(self) -> bytes:
        return self.run("tar", "--version").stdout

    def _run_now(self, command: Sequence[str]) -> Ended:
        try:
            answer = sessions.exec_sync(self._client, self._container_id, command, limit_s=SHORT_S)
        except RuntimeFault as exc:
            if not isinstance(exc, NotFound) and is_missing(exc.details):
                raise ProgramMissing(command[0]) from exc
            raise
        if answer.exit_code in MISSING_STATUS and not answer.stdout:
            raise ProgramMissing(command[0])
        return Ended(answer.exit_code, answer.stdout, answer.stderr[:MAX_STDERR_BYTES])

    def check_running(self) -> None:
        """Check that the container is still running: the streams of a killed one do not end."""
        request = cri_pb2.ContainerStatusRequest(container_id=self._container_id)
        state = self._client.call("ContainerStatus", request).status.state
        if state != cri_pb2.CONTAINER_RUNNING:
            raise not_running(self._container_id, what="has stopped")

    def look(self, path: bytes, *, follow: bool = False) -> Existing:
        """Look what is at a path.

        Args:
            follow: what a link points to counts, unless it is dangling.

        Raises:
            Unimplemented: the container has no ``find``.
            CopyError: that cannot be seen.
        """
        options = ["-L"] if follow else []
        ended = self.run("find", *options, _ALWAYS_THERE, os.fsdecode(path), *_FIND_KIND)
        count = Counter(ended.stdout.split(b"\0"))
        if _KINDS.get(count[_ALWAYS_THERE.encode()]) is not Existing.DIRECTORY:
            raise ended.failure("look at", path)
        return _KINDS.get(count[path], Existing.SPECIAL)

    def refuse_kernel_file_system(self, path: bytes) -> None:
        """Refuse what is not storage but an interface of the kernel, if that can be seen."""
        try:
            ended = self.run("stat", "-f", "-c", "%t", "--", os.fsdecode(path))
            name = KERNEL_FILE_SYSTEMS.get(int(ended.stdout, 16))
        except (ProgramMissing, ValueError):  # it cannot be seen
            return
        if name is not None:
            raise CopyError(f"{quote(os.fsdecode(path))} is on {name}, which is never copied")

    def stream(self, *command: str, stdin: bool) -> Running:
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


def _check_words(command: Sequence[str]) -> None:
    """Require that the CRI, whose texts are UTF-8, can carry a command."""
    for word in command:
        if not (word.isascii() or word == word.encode(errors="replace").decode()):
            raise CopyError(
                f"{quote(word)} is not UTF-8 and cannot be passed to a program in the container",
                hint="--method node can copy it",
            )
