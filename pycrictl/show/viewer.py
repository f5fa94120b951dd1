"""Output that is repeated until Ctrl-C, on a terminal in place."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from io import StringIO
from typing import TYPE_CHECKING, Final, TextIO, TypeVar

from pycrictl.environ import is_dumb, terminal_size
from pycrictl.show.colours import plain
from pycrictl.show.displays.block import TerminalBlock
from pycrictl.show.displays.phrases import cut, width
from pycrictl.show.render import CLEAR_SCREEN

if TYPE_CHECKING:
    from pycrictl.environ import Environment

T = TypeVar("T")

HOME: Final = "\x1b[H"

_SIGNALS: Final = (signal.SIGWINCH, signal.SIGCONT)


def clip(text: str, *, columns: int, rows: int) -> list[str]:
    """Return the first lines of a text as far as they fit. Pure.

    A row stays free for the cursor. Where lines do not fit, the last one says how many.
    """
    lines = text.removesuffix("\n").split("\n") if text else []
    room = max(rows - 1, 1)
    if len(lines) > room:
        left_out = len(lines) - room + 1
        lines[room - 1 :] = [f"… {left_out} more"]
    return [_clipped(line.expandtabs(), columns) for line in lines]


def _clipped(line: str, columns: int) -> str:
    bare = plain(line)
    return line if width(bare) <= columns else cut(bare, columns)


class Picture:
    """What a terminal shows of a text that changes.

    It is painted when the text or the size of the window changes, and at once when the process
    continues after Ctrl-Z. Until it is closed, it blocks SIGWINCH and SIGCONT in its thread.
    """

    def __init__(self, stream: TextIO, environ: Mapping[str, str]) -> None:
        self._stream = stream
        self._environ = environ
        self._text: str | None = None
        self._lines: list[str] = []
        self._size = (0, 0)
        self._block = TerminalBlock(stream)
        self._former_mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)

    def show(self, text: str) -> None:
        """Show another text; its control characters are line breaks and tabs only."""
        is_first, self._text = self._text is None, text
        self._paint(clears=is_first)

    def pause(self, seconds: float) -> None:
        ends_at = time.monotonic() + seconds
        while (left_s := ends_at - time.monotonic()) > 0:
            received = signal.sigtimedwait(_SIGNALS, left_s)
            if received is None:
                return
            # After a stop others have written there.
            self._paint(clears=received.si_signo == signal.SIGCONT)

    def close(self) -> None:
        try:
            self._block.close(self._lines)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._former_mask)

    def _paint(self, *, clears: bool) -> None:
        size = columns, rows = terminal_size(self._stream, self._environ)
        self._lines = clip(self._text or "", columns=columns, rows=rows)
        if clears or size != self._size:
            self._stream.write(CLEAR_SCREEN if clears else HOME)
            self._stream.flush()
        self._size = size
        self._block.draw(self._lines, size=size, whole=clears)


class Viewer:
    """Shows one text after another, on a terminal each in the place of the one before."""

    def __init__(self, env: Environment, picture: Picture | None = None) -> None:
        self._env = env
        self._picture = picture
        self._warnings: list[str] = []

    @property
    def is_in_place(self) -> bool:
        return self._picture is not None

    def show(self, write: Callable[[TextIO], object]) -> None:
        if self._picture is None:
            write(self._env.stdout)
            self._env.stdout.flush()
            return
        text = StringIO()
        write(text)
        self._picture.show(text.getvalue())

    def warn(self, text: str) -> None:
        """Show a warning; at the end, where the picture would cover it."""
        if self._picture is not None and self._env.stderr_is_terminal:
            self._warnings.append(text)
        else:
            self._env.warn(text)

    def pause(self, seconds: float) -> None:
        if self._picture is None:
            time.sleep(seconds)
        else:
            self._picture.pause(seconds)

    def repeat(self, write: Callable[[TextIO], object], *, pause_s: float) -> None:
        while True:
            self.show(write)
            self.pause(pause_s)

    def follow(
        self, fetch: Callable[[], T], write: Callable[[T, TextIO], object], *, pause_s: float
    ) -> None:
        """Show what is fetched whenever it changes; in place, as time changes it too."""
        previous: T | None = None
        while True:
            found = fetch()
            if self.is_in_place or found != previous:
                self.show(partial(write, found))
            previous = found
            self.pause(pause_s)

    def close(self) -> None:
        if self._picture is not None:
            self._picture.close()
        for text in self._warnings:
            self._env.warn(text)


@contextmanager
def until_interrupted(env: Environment, *, has_log: bool) -> Iterator[Viewer]:
    """Yield a viewer for something without end, which Ctrl-C ends without failure.

    Log lines on a terminal would tear a picture.
    """
    is_torn = has_log and env.stderr_is_terminal
    has_picture = env.stdout_is_terminal and not is_dumb(env.environ) and not is_torn
    viewer = Viewer(env, Picture(env.stdout, env.environ) if has_picture else None)
    try:
        yield viewer
    except KeyboardInterrupt:
        pass
    finally:
        viewer.close()
