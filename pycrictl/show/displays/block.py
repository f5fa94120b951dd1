"""A block of lines, redrawn in place at the cursor of a terminal, whatever their content.

Between two calls the cursor rests at the start of the block's *first* line. This makes resizing the
window harmless: whether the terminal rewraps the old lines, cuts them or scrolls them, it keeps the
cursor on the same text, so everything from there to the end of the screen belongs to the block, and
the next frame covers it. Between two frames the terminal is in its normal state (the cursor is
visible, lines wrap), so nothing needs repair when the process is killed.

Lines that somebody types stay in the terminal's input, for the shell. Their echo moves the cursor
down, and a block that does not fill the screen moves with it.
"""

from __future__ import annotations

import contextlib
import io
import select
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, TextIO, TypeVar

from pycrictl.base.environ import Environment, is_dumb, terminal_size
from pycrictl.show.displays.phrases import cut, width
from pycrictl.show.records import records_of
from pycrictl.show.render import CLEAR_SCREEN, plain

T = TypeVar("T")

ERASE_LINE: Final = "\x1b[K"
ERASE_BELOW_FIRST: Final = " \x1b[J\r"
"""Blanks the first cell, then erases the rest: tmux keeps what is erased from the first cell on."""

TOP_OF_SCREEN: Final = "\x1b[H"

WRAP_OFF: Final = "\x1b[?7l"
WRAP_ON: Final = "\x1b[?7h"

BUFFER_BYTES: Final = 256 * 1024
"""The size of the output buffer, which is larger than any frame."""


class TerminalBlock:
    """The block's lines, as currently shown on the terminal.

    Writes to the descriptor of ``stream`` through a buffer of its own. If a signal interrupts
    a frame, the next write first sends the rest of it, so the cursor's position stays known. If the
    terminal is closed (with its session), this is not an error; nothing more is drawn.

    Args:
        start: the control sequence that moves the cursor to the start of the first line.
    """

    def __init__(self, stream: TextIO, *, start: str = "\r") -> None:
        stream.flush()
        # Unlike os.write, a buffer tracks how much was written when a signal handler raises.
        raw = io.FileIO(stream.fileno(), "w", closefd=False)
        self._out = io.BufferedWriter(raw, BUFFER_BYTES)
        self._encoding = stream.encoding
        self._lines: list[str] = []
        self._size = (0, 0)
        self._start = start

    def draw(self, lines: Sequence[str], *, size: tuple[int, int]) -> None:
        """Replace the block with ``lines``, none of which is wider than the screen.

        If there are more lines than rows on the screen (``size`` is its columns and rows), the last
        ones are shown.
        """
        lines = list(lines[-size[1] :])
        # Erasing clears a line's wrap flag: else a terminal that grows again would join it with the
        # next. Erase first, since a line may fill the last column.
        frame = [f"{ERASE_LINE}{line}\r\n" for line in lines[:-1]]
        frame.append(f"{ERASE_LINE}{ERASE_BELOW_FIRST}{''.join(lines[-1:])}\r")
        if len(lines) > 1:
            frame.append(f"\x1b[{len(lines) - 1}A")
        self._lines, self._size = lines, size
        self._send("".join([self._start, WRAP_OFF, *frame, WRAP_ON]))

    def print_above(self, text: str) -> None:
        """Print one line of text, which may wrap, above the block."""
        lines = self._lines
        self._erase(f"{text}\r\n")
        if lines:
            self.draw(lines, size=self._size)

    def close(self, lines: Iterable[str] = ()) -> None:
        """Replace the block with lines, which may wrap, and put the cursor below them."""
        self._erase("".join(f"{line}\r\n" for line in lines))

    def _erase(self, successor: str = "") -> None:
        if self._lines:
            # Ctrl-C may make the kernel discard the end of a frame, so turn wrapping on again.
            successor = f"{WRAP_ON}{self._start}{ERASE_BELOW_FIRST}{successor}"
        self._send(successor)
        self._lines = []

    def _send(self, text: str) -> None:
        if self._out.closed:
            return
        self._out.write(text.encode(self._encoding, "replace"))
        try:
            while True:
                try:
                    return self._out.flush()
                except BlockingIOError:  # another program has made the shared terminal non-blocking
                    select.select([], [self._out], [])
        except OSError:
            self._out.raw.close()


# Output that is repeated until Ctrl-C, in place if on a terminal


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
        text = io.StringIO()
        write(text)
        size = columns, rows = terminal_size(out, self._env.environ)
        if self._lines is None:
            out.write(CLEAR_SCREEN)
            out.flush()
        self._lines = clip(text.getvalue(), columns=columns, rows=rows)
        self._block.draw(self._lines, size=size)

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
            rows = fetch()
            if self.is_in_place or rows != previous:
                self.show(partial(write, rows))
            previous = rows
            time.sleep(pause_s)

    def close(self) -> None:
        if self._block is not None:
            self._block.close(self._lines or ())


@contextlib.contextmanager
def until_interrupted(env: Environment, *, has_log: bool) -> Iterator[Viewer]:
    """Yield a viewer for endless output, which Ctrl-C ends without an error.

    If log lines go to the same terminal (``has_log``), nothing is redrawn in place.
    """
    is_torn = has_log and env.stderr_is_terminal
    is_terminal = env.stdout_is_terminal and records_of(env.stdout) is None
    is_in_place = is_terminal and not is_dumb(env.environ) and not is_torn
    viewer = Viewer(env, TerminalBlock(env.stdout, start=TOP_OF_SCREEN) if is_in_place else None)
    try:
        yield viewer
    except KeyboardInterrupt:
        pass
    finally:
        viewer.close()
