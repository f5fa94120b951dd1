"""Starting ssh, for a kept connection even before the command line is parsed: that takes as long.

What was started is used by ``connection`` if it turns out to be what the command line asks for.
Until then nothing is sent to it. Imports nothing that costs time.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

COMMAND_VARIABLE = "PYCRICTL_SSH_COMMAND"
_WORD = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-_@:")
_begun: list[Spawned] = []


class Spawned:
    """A started program, with the descriptors of its standard streams."""

    def __init__(self, words: Sequence[str], stdin: int | None, *, is_apart: bool) -> None:
        """Start a program, with a pipe for input if ``stdin`` is None.

        Args:
            is_apart: in a process group of its own, out of reach of the terminal's signals.
        """
        self.words = [*words]
        there, self.stdin = os.pipe() if stdin is None else (stdin, -1)
        self.stdout, out = os.pipe()
        self.stderr, err = os.pipe()
        dup2 = os.POSIX_SPAWN_DUP2
        actions = [(dup2, there, 0), (dup2, out, 1), (dup2, err, 2)]
        more: dict[str, Any] = {"setpgroup": 0} if is_apart else {}
        more |= {"file_actions": actions, "setsigdef": [signal.SIGPIPE, signal.SIGINT]}
        try:
            self.pid = os.posix_spawnp(words[0], self.words, os.environ, **more)
        finally:
            for descriptor in (out, err, *([there] if stdin is None else [])):
                os.close(descriptor)


def folder_of(environ: Mapping[str, str]) -> str:
    """Return the private folder for control connections."""
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    return f"{runtime}/pycrictl" if runtime else f"/tmp/pycrictl-ssh-{os.geteuid()}"


def remember(folder: str, word: str, socket: str, words: Sequence[str], command: str) -> None:
    """Note the words that start a session with a host, for as long as its connection is kept."""
    if _WORD.issuperset(word):
        number = str(os.lstat(socket).st_ino)
        with open(f"{folder}/{word}.words", "w") as file:  # noqa: PTH123 - pathlib costs time
            file.write("\0".join((number, socket, command, *words)))


def begin(argv: Sequence[str], environ: Mapping[str, str]) -> None:
    """Start a session if the command line seems to name a host with a kept connection."""
    if None in (sys.stdin, sys.stdout, sys.stderr):  # a pipe would take a standard stream's place
        return
    word = environ.get("PYCRICTL_HOST", "")
    for place, each in enumerate(argv):
        if each in ("-H", "--host"):
            word = argv[place + 1] if argv[place + 1 :] else ""
            break
        if each.startswith("--host="):
            word = each[7:]
            break
    folder = folder_of(environ)
    try:
        status = os.lstat(folder)
        if (
            not word
            or not _WORD.issuperset(word)
            or (status.st_uid, status.st_mode & 0o170077)
            != (
                os.geteuid(),
                0o040000,
            )
        ):
            return
        with open(f"{folder}/{word}.words") as file:  # noqa: PTH123 - pathlib costs time
            number, socket, command, *words = file.read().split("\0")
        if command == environ.get(COMMAND_VARIABLE, "") and str(os.lstat(socket).st_ino) == number:
            _begun.append(Spawned(words, None, is_apart=True))
    except (OSError, ValueError):
        return


def take(words: Sequence[str]) -> Spawned | None:
    """Return the program started by ``begin`` if it has these words."""
    return _begun.pop() if _begun and _begun[0].words == [*words] else None
