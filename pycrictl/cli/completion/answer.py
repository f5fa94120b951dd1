"""``pycrictl __complete [WORD]...``, and ``kubectl_complete-NAME`` for kubectl's plugins.

Prints a candidate a line, with a description after a tab, and in the last line a colon and a
directive, as cobra has it: kubectl reads that (1.26 and later), and so do the scripts in
``completions/``. They run it while somebody types: whatever is wrong, it succeeds without
candidates, within a time limit. A hanging runtime or file system cannot hold it up, because the
work is done in a child process that is killed.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NoReturn

from pycrictl.units import escape, parse_duration

LIMIT_S: Final = 1.5
"""The time limit, from the call's start: the interpreter may take long to load on a busy node."""

LIMIT_VARIABLE: Final = "PYCRICTL_COMPLETION_TIMEOUT"

_NOTHING: Final = b":4\n"
_CHUNK_BYTES: Final = 65536


def run(program: str, words: Sequence[str], limit_s: float = LIMIT_S) -> NoReturn:
    """Answer and end the process; $PYCRICTL_COMPLETION_TIMEOUT overrides ``limit_s``."""
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
            _answer(program, words, write_end)
        os._exit(0)
    os.close(write_end)
    output = _read(read_end, ends_at)
    os.kill(child, signal.SIGKILL)
    with suppress(OSError):
        os.write(1, output or _NOTHING)
    os._exit(0)


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


def _answer(program: str, words: Sequence[str], pipe: int) -> None:
    from pycrictl.cli.completion import line  # noqa: PLC0415 - within the time limit

    found, directive = line.candidates(program, words)
    # What the runtime calls something need not fit on a line of a terminal.
    offers = [(word, escape(about)) for word, about in found if word.isprintable()]
    lines = [f"{word}\t{about}\n" if about else f"{word}\n" for word, about in offers]
    with open(pipe, "wb") as file:
        file.write("".join([*lines, f":{directive}\n"]).encode())
