"""``pycrictl __complete [WORD]...``: candidates for the completion scripts.

It prints a candidate a line, and a description after a tab. Scripts run it while somebody types:
whatever is wrong, it prints nothing and succeeds, within a time limit. A hanging runtime or file
system cannot hold it up, because the work is done in a child process that is killed.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NoReturn

from pycrictl.cli import crictl
from pycrictl.units import escape, parse_duration

LIMIT_S: Final = 1.5
"""The time limit, from the call's start: the interpreter may take long to load on a busy node."""

LIMIT_VARIABLE: Final = "PYCRICTL_COMPLETION_TIMEOUT"

_CHUNK_BYTES: Final = 65536


def run(words: Sequence[str]) -> NoReturn:
    """Answer and end the process with status 0.

    Args:
        words: those after the program's name, up to the one that is completed.
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
    from pycrictl.cli.completion import line  # noqa: PLC0415 - within the time limit

    found = line.find(crictl.program_name(), words).offers()
    # What the runtime calls something need not fit on a line of a terminal.
    offers = [(word, about) for word, about in found if word.isprintable()]
    with open(pipe, "wb") as file:
        file.write("".join(f"{word}\t{escape(about)}\n" for word, about in offers).encode())
