"""A terminal for tests: a pseudo-terminal whose output is rendered on a model of a screen.

The model accepts only what the displays may send: any other escape sequence or control character is
an error. Its window is resized in both ways that real terminals have.
"""

from __future__ import annotations

import codecs
import os
import re
import select
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self
from unicodedata import east_asian_width

LIMIT_S = 60.0
SEQUENCE = re.compile(r"\x1b\[(\??)(\d*)([A-Za-z])")
PARTIAL_SEQUENCE = re.compile(r"\x1b(\[\??\d*)?$")


@dataclass
class Row:
    """Cells of a row; a wide character is followed by an empty cell."""

    cells: list[str] = field(default_factory=list)
    wraps: bool = False

    def text(self) -> str:
        return "".join(self.cells).rstrip()


class Screen:
    """Rows with the scrollback above them. If ``x`` is ``columns``, the next character wraps."""

    def __init__(self, columns: int, rows: int, encoding: str = "utf-8") -> None:
        self.columns = columns
        self.rows = rows
        self.buffer = [Row()]
        self.x = 0
        self.y = 0  # within the buffer
        self.top = 0
        self.is_wrapping = True
        self.cut = 0
        """Characters that did not fit on their row."""
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._rest = ""

    @property
    def lines(self) -> list[str]:
        lines = [row.text() for row in self.buffer[self.top : self.top + self.rows]]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    @property
    def everything(self) -> list[str]:
        """The text with the scrollback, without empty rows at the end."""
        return [row.text() for row in self.buffer[: self.top]] + self.lines

    @property
    def cursor(self) -> tuple[int, int]:
        return self.x, self.y - self.top

    def feed(self, data: bytes) -> None:
        text = self._rest + self._decoder.decode(data)
        self._rest = ""
        position = 0
        while position < len(text):
            char = text[position]
            if char == "\x1b":
                if PARTIAL_SEQUENCE.match(text, position):
                    self._rest = text[position:]
                    return
                match = SEQUENCE.match(text, position)
                assert match, f"unknown escape sequence: {text[position : position + 20]!r}"
                self._control(*match.groups())
                position = match.end()
                continue
            position += 1
            if char == "\r":
                self.x = 0
            elif char == "\n":
                self._down()
            else:
                assert char.isprintable(), f"control character: {char!r}"
                self._put(char)

    def _control(self, private: str, number: str, letter: str) -> None:
        if (private, letter) == ("", "A"):
            self.y = max(self.y - int(number or 1), self.top)
        elif (private, number, letter) == ("", "", "H"):
            self.x, self.y = 0, self.top
        elif (private, number, letter) == ("", "2", "J"):
            # The old content goes into the scrollback, as in tmux.
            self.buffer += [Row() for _ in range(self.rows)]
            self.y += self.rows
            self.top = len(self.buffer) - self.rows
        elif (private, number, letter) == ("", "", "K"):
            self._erase_row()
        elif (private, number, letter) == ("", "", "J"):
            self._erase_row()
            del self.buffer[self.y + 1 :]
        elif (private, number) == ("?", "7") and letter in "hl":
            self.is_wrapping = letter == "h"
        elif letter != "m":  # colours are ignored
            raise AssertionError(f"unknown control: {private}{number}{letter}")

    def _erase_row(self) -> None:
        row = self.buffer[self.y]
        del row.cells[min(self.x, self.columns - 1) :]
        if self.x == 0:  # as in tmux, only a row that is erased whole is no longer wrapped
            row.wraps = False
            if self.y:
                self.buffer[self.y - 1].wraps = False

    def _down(self) -> None:
        self.y += 1
        if self.y == len(self.buffer):
            self.buffer.append(Row())
        self.top = max(self.top, self.y - self.rows + 1)

    def _put(self, char: str) -> None:
        width = 2 if east_asian_width(char) in "FW" else 1
        if self.x + width > self.columns:
            if self.is_wrapping:
                self.buffer[self.y].wraps = True
                self._down()
                self.x = 0
            else:
                self.cut += 1
                self.x = self.columns - width
        cells = self.buffer[self.y].cells
        cells += [" "] * (self.x - len(cells))
        cells[self.x : self.x + width] = [char, ""][:width]
        self.x += width

    def resize(self, columns: int, rows: int, *, rewraps: bool) -> None:
        """Resize the window. With ``rewraps``, long rows wrap again, as in tmux and VTE; else they
        are cut, as in xterm. The cursor stays on its text; rows below it are dropped first."""
        surplus = len(self.buffer) - self.top - rows
        if surplus > 0:
            del self.buffer[max(self.y + 1, len(self.buffer) - surplus) :]
        if rewraps:
            self._rewrap(columns)
        else:
            for row in self.buffer:
                del row.cells[columns:]
        self.columns, self.rows = columns, rows
        self.x = min(self.x, columns - 1)
        self.top = max(len(self.buffer) - rows, 0)
        self.y = max(self.y, self.top)

    def _rewrap(self, columns: int) -> None:
        old, self.buffer = self.buffer, []
        cells: list[str] = []
        offset: int | None = None
        cursor = 0
        for index, row in enumerate(old):
            if index == self.y:
                offset = len(cells) + self.x
            cells += row.cells
            if row.wraps and index + 1 < len(old):
                continue
            starts = range(0, max(len(cells), 1), columns)
            if offset is not None:
                cursor = len(self.buffer) + min(offset // columns, len(starts) - 1)
                self.x = offset % columns
                offset = None
            self.buffer += [Row(cells[n : n + columns], wraps=n != starts[-1]) for n in starts]
            cells = []
        self.y = cursor


class Terminal:
    """A pseudo-terminal: what is written to ``stderr`` appears on ``screen``."""

    def __init__(self, columns: int = 80, rows: int = 24, encoding: str = "utf-8") -> None:
        self._outer, inner = os.openpty()
        self.stderr = os.fdopen(inner, "w", encoding=encoding)
        self.screen = Screen(columns, rows, encoding)
        self.sent = b""
        """All output, before its rendering by the model."""
        self.set_size(columns, rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stderr.close()
        os.close(self._outer)

    def set_size(self, columns: int, rows: int) -> None:
        termios.tcsetwinsize(self.stderr.fileno(), (rows, columns))

    def mark_end(self) -> None:
        """Mark the end of the output for `read`, with a byte that no display sends."""
        self.stderr.flush()
        os.write(self.stderr.fileno(), b"\0")

    def read(self) -> None:
        """Put the output on the screen, up to the mark, waiting for what is still on its way."""
        data = b""
        while not data.endswith(b"\0"):
            data = os.read(self._outer, 65536)
            self.sent += data.removesuffix(b"\0")
            self.screen.feed(data.removesuffix(b"\0"))

    def read_until(self, is_enough: Callable[[bytes], object]) -> None:
        """Put the output of another process on the screen until there is enough of it."""
        ends_at = time.monotonic() + LIMIT_S
        while not is_enough(self.sent):
            assert time.monotonic() < ends_at, self.sent
            self.read_more(0.05)

    def read_more(self, within_s: float = 0.0) -> bool:
        if not select.select([self._outer], [], [], within_s)[0]:
            return False
        data = os.read(self._outer, 65536)
        self.sent += data
        self.screen.feed(data)
        return True

    def visible_lines(self) -> list[str]:
        """Read all output and return the visible lines."""
        self.mark_end()
        self.read()
        return self.screen.lines

    def resize(self, columns: int, rows: int, *, rewraps: bool = True) -> None:
        self.visible_lines()
        self.set_size(columns, rows)
        self.screen.resize(columns, rows, rewraps=rewraps)
