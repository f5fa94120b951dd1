"""Output that is repeated until Ctrl-C, in place if on a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from io import StringIO
from typing import TextIO, TypeVar

from pycrictl.base.environ import Environment, is_dumb, terminal_size
from pycrictl.show.displays.block import TerminalBlock
from pycrictl.show.displays.phrases import cut, width
from pycrictl.show.records import records_of
from pycrictl.show.render import CLEAR_SCREEN, plain

T = TypeVar("T")


def clip(text: str, *, columns: int, rows: int) -> list[str]:
    """Return the first lines of a text, as many as fit. Pure.

    One row is kept free for the cursor. If lines are left out, the last one shows how many.
    """
    lines = text.removesuffix("\n").split("\n") if text else []
    room = max(rows - 1, 1)
    if len(lines) > room:
        left_out = len(lines) - room + 1
        lines[room - 1 :] = [f"… {left_out} more"]
    lines = [line.expandtabs() for line in lines]
    return [line if width(plain(line)) <= columns else cut(plain(line), columns) for line in lines]


class Viewer:
    """Shows one text after another; with a ``block``, each replaces the previous one."""

    def __init__(self, env: Environment, block: TerminalBlock | None = None) -> None:
        self._env = env
        self._block = block
        self._lines: list[str] | None = None
        self._warnings: list[str] = []

    @property
    def is_in_place(self) -> bool:
        return self._block is not None

    def show(self, write: Callable[[TextIO], object]) -> None:
        """Show the output of ``write``; in place, its only controls may be line breaks and tabs."""
        out = self._env.stdout
        if self._block is None:
            write(out)
            out.flush()
            return
        text = StringIO()
        write(text)
        size = columns, rows = terminal_size(out, self._env.environ)
        if self._lines is None:
            out.write(CLEAR_SCREEN)
            out.flush()
        self._lines = clip(text.getvalue(), columns=columns, rows=rows)
        self._block.draw(self._lines, size=size)

    def warn(self, text: str) -> None:
        """Show a warning, or keep it for the end if the lines in place would cover it."""
        if self._block is not None and self._env.stderr_is_terminal:
            self._warnings.append(text)
        else:
            self._env.warn(text)

    def repeat(self, write: Callable[[TextIO], object], *, pause_s: float) -> None:
        while True:
            self.show(write)
            time.sleep(pause_s)

    def follow(
        self, fetch: Callable[[], T], write: Callable[[T, TextIO], object], *, pause_s: float
    ) -> None:
        """Show each changed result of ``fetch``; in place, show all, since ages change too."""
        previous: T | None = None
        while True:
            found = fetch()
            if self.is_in_place or found != previous:
                self.show(partial(write, found))
            previous = found
            time.sleep(pause_s)

    def close(self) -> None:
        if self._block is not None:
            self._block.close(self._lines or ())
        for text in self._warnings:
            self._env.warn(text)


@contextmanager
def until_interrupted(env: Environment, *, has_log: bool) -> Iterator[Viewer]:
    """Yield a viewer for endless output, which Ctrl-C ends without an error.

    With log lines on the terminal, which would break up the output, nothing is shown in place.
    """
    is_torn = has_log and env.stderr_is_terminal
    is_terminal = env.stdout_is_terminal and records_of(env.stdout) is None
    is_in_place = is_terminal and not is_dumb(env.environ) and not is_torn
    viewer = Viewer(env, TerminalBlock(env.stdout) if is_in_place else None)
    try:
        yield viewer
    except KeyboardInterrupt:
        pass
    finally:
        viewer.close()
