"""``pycrictl [OPTIONS] __complete KIND [WORD]``: what the completion scripts ask for.

It prints a candidate a line, and a description after a tab. Scripts run it while somebody types:
whatever is wrong, it prints nothing and succeeds, within a time limit. A hanging runtime or file
system cannot hold it up, because the work is done in a child process that is killed.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NoReturn

from pycrictl.cli import argv
from pycrictl.config import Flags, load
from pycrictl.errors import PycrictlError
from pycrictl.units import escape, parse_duration

WORD: Final = "__complete"

LIMIT_S: Final = 1.5
"""The time limit, from the call's start: the interpreter may take long to load on a busy node."""

LIMIT_VARIABLE: Final = "PYCRICTL_COMPLETION_TIMEOUT"

_CHUNK_BYTES: Final = 65536

_SHORT: Final = {
    "config": "c",
    "host-root": "",
    "image-endpoint": "i",
    "runtime-endpoint": "r",
    "timeout": "t",
    "max-retries": "",
    "profile-cpu": "",
    "profile-mem": "",
    "tracing-endpoint": "",
    "tracing-sampling-rate-per-million": "",
    "debug": "D",
    "enable-tracing": "",
    "help": "h",
    "version": "v",
}
_SWITCHES: Final = ("debug", "enable-tracing", "help", "version")
GLOBALS: Final = {
    spelling: argv.OptionSpec(name, is_switch=name in _SWITCHES)
    for name, short in _SHORT.items()
    for spelling in filter(None, (name, short))
}
"""The program's own options; what they are declared by takes too long to import."""


def is_asked(words: Sequence[str]) -> bool:
    """Return whether a command line is one of this command."""
    if WORD not in words:
        return False
    try:
        return argv.parse(words, GLOBALS, interspersed=False).positionals[:1] == [WORD]
    except PycrictlError:
        return False


def run(words: Sequence[str]) -> NoReturn:
    """Answer and end the process with status 0.

    Args:
        words: the command line without the program's name, for which ``is_asked`` holds.
    """
    output = in_time(partial(_answer, words), LIMIT_S)
    with suppress(OSError):
        os.write(1, output)
    os._exit(0)


def in_time(work: Callable[[int], None], limit_s: float) -> bytes:
    """Return what some work writes, done by a child process that is killed when its time is over.

    Args:
        work: takes the descriptor to write to.
        limit_s: how long it may take, where $PYCRICTL_COMPLETION_TIMEOUT does not say otherwise.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    ends_at = time.monotonic() + _limit_s(limit_s)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            os.close(read_end)
            # Should the parent be killed, the child would be left with something that hangs.
            signal.setitimer(signal.ITIMER_REAL, max(ends_at - time.monotonic(), 0.001))
            work(write_end)
        os._exit(0)
    os.close(write_end)
    output = _read(read_end, ends_at)
    os.kill(child, signal.SIGKILL)
    return output


def _limit_s(otherwise_s: float = LIMIT_S) -> float:
    try:
        return parse_duration(os.environ[LIMIT_VARIABLE])
    except (KeyError, ValueError):
        return otherwise_s


def _read(pipe: int, ends_at: float) -> bytes:
    """Return all that the child writes, or nothing if it is not done in time."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    chunks: list[bytes] = []
    while (left_s := ends_at - time.monotonic()) > 0 and poll.poll(left_s * 1000):
        chunk = os.read(pipe, _CHUNK_BYTES)
        if not chunk:
            return b"".join(chunks)
        chunks.append(chunk)
    return b""


def _answer(words: Sequence[str], pipe: int) -> None:
    line = argv.parse(words, GLOBALS, interspersed=False)
    kind, word = (*line.positionals[1:], "")[:2]
    given = dict(option.split("=", 1) for option in line.options if "=" in option)
    from pycrictl.cli.program import use_root

    use_root(_expanded(given.get("host-root")))
    flags = Flags(
        config=_expanded(given.get("config")),
        runtime_endpoint=_expanded(given.get("runtime-endpoint")),
        image_endpoint=_expanded(given.get("image-endpoint")),
    )
    settings = load(flags, os.environ, executable=sys.argv[0] or None)

    from pycrictl.cli.completion import candidates

    lines = [
        f"{candidate.word}\t{escape(candidate.description)}\n"
        for candidate in candidates.find(kind, word, settings)
    ]
    with open(pipe, "wb") as file:
        file.write("".join(lines).encode())


def _expanded(text: str | None) -> str | None:
    """Return a word as the shell would expand it: completion sees it as typed."""
    return None if text is None else os.path.expanduser(os.path.expandvars(text))  # noqa: PTH111 (quick)
