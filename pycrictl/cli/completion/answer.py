"""``pycrictl __complete [WORD]...``.

Prints one candidate per line, with a description after a tab; the last line is a colon and a
directive, as in cobra. The scripts in ``completions/`` read this.
As it runs while the user types, any error results in success without candidates, and there is a
time limit. A hanging runtime or file system cannot delay it: the work is done in another thread,
which ends with the process.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from threading import Thread
from typing import Final, NoReturn

from pycrictl.base.units import escape, parse_duration

LIMIT_S: Final = 1.5
"""The time limit, counted from the call of ``run``: Python may start slowly on a busy node."""

LIMIT_VARIABLE: Final = "PYCRICTL_COMPLETION_TIMEOUT"

_NOTHING: Final = ":4\n"


def run(program: str, words: Sequence[str]) -> NoReturn:
    """Print candidates and end the process; $PYCRICTL_COMPLETION_TIMEOUT overrides ``LIMIT_S``."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    printed: list[str] = []
    worker = Thread(target=_answer, args=(program, words, printed), daemon=True)
    worker.start()
    worker.join(_limit_s())
    with suppress(OSError):
        os.write(1, "".join(printed or [_NOTHING]).encode())
    os._exit(0)


def _limit_s() -> float:
    try:
        return parse_duration(os.environ[LIMIT_VARIABLE])
    except (KeyError, ValueError):
        return LIMIT_S


def _answer(program: str, words: Sequence[str], into: list[str]) -> None:
    with suppress(BaseException):
        from pycrictl.cli.completion import line  # noqa: PLC0415 - within the time limit

        offered, directive = line.candidates(program, words)
        # Names from the runtime may contain unprintable characters.
        offers = [(word, escape(about)) for word, about in offered if word.isprintable()]
        lines = [f"{word}\t{about}\n" if about else f"{word}\n" for word, about in offers]
        into.append("".join([*lines, f":{directive}\n"]))
