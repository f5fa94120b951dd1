"""The environment of the process: streams, variables, clocks and properties of the terminal.

Properties are read when needed, never at import, and never cached: a terminal changes its size, and
tests change everything. This module is loaded at every start, so its module-level imports must cost
nothing.
"""

from __future__ import annotations

import getpass
import io
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

from pycrictl.base.errors import PycrictlError
from pycrictl.base.units import escape

if TYPE_CHECKING:
    from logging import LogRecord

FALLBACK_SIZE = (80, 24)

OWN_NAME = "pycrictl"
ON_HOST = "PYCRICTL_ON_HOST"
"""A variable set for a command on another host: the host's name, as the client knows it."""


def is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def is_dumb(environ: Mapping[str, str]) -> bool:
    """Return whether a terminal cannot move its cursor, or ``TERM`` is not set."""
    return environ.get("TERM", "") in ("", "dumb")


def is_utf8(stream: TextIO) -> bool:
    """Return whether every character can be written to ``stream``."""
    return (getattr(stream, "encoding", None) or "").lower().replace("-", "") == "utf8"


def terminal_size(stream: TextIO, environ: Mapping[str, str]) -> tuple[int, int]:
    """Return the columns and rows of the terminal at ``stream``.

    The terminal's own size comes first, since ``COLUMNS`` and ``LINES`` do not follow a window's
    size. Without it (a serial line has 0 by 0) the variables count, and without them 80 by 24.
    """
    try:
        columns, rows = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):  # not a terminal; closed or without a descriptor
        columns, rows = 0, 0
    return (
        columns or _positive(environ.get("COLUMNS")) or FALLBACK_SIZE[0],
        rows or _positive(environ.get("LINES")) or FALLBACK_SIZE[1],
    )


def _positive(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() else 0


def _line(text: str) -> str:
    return escape(" ".join(text.split()))


class _Nowhere(io.StringIO):
    """Replaces a standard stream that was closed before the program started."""

    def write(self, text: str, /) -> int:
        return len(text)


class Wording:
    """How messages are worded, and how a password is requested."""

    program = OWN_NAME
    password_prompt = "Password: "
    prompts_on_stdout = False

    def note(self, text: str) -> str:
        return text

    def message(self, lines: str) -> str:
        return lines


class Environment:
    """The streams, variables and clocks that one run of the program uses.

    ``clock`` is monotonic, ``wall_clock`` counts from 1970, and ``program`` is the prefix of every
    message.
    """

    program: str = OWN_NAME
    wording: Wording = Wording()

    def __init__(
        self,
        *,
        stdin: TextIO | None = None,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
        environ: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        # The interpreter's own streams are None when the caller closed the descriptor.
        self.stdin: TextIO = stdin or sys.stdin or _Nowhere()
        self.stdout: TextIO = stdout or sys.stdout or _Nowhere()
        self.stderr: TextIO = stderr or sys.stderr or _Nowhere()
        self.environ: Mapping[str, str] = os.environ if environ is None else environ
        self.clock = clock
        self.wall_clock = wall_clock

    @property
    def stdin_is_terminal(self) -> bool:
        return is_terminal(self.stdin)

    @property
    def stdout_is_terminal(self) -> bool:
        return is_terminal(self.stdout)

    @property
    def stderr_is_terminal(self) -> bool:
        return is_terminal(self.stderr)

    @property
    def columns(self) -> int:
        """Columns of the terminal at standard output; 0 if it is not a terminal."""
        return terminal_size(self.stdout, self.environ)[0] if self.stdout_is_terminal else 0

    def terminal_size(self) -> tuple[int, int]:
        return terminal_size(self.stderr, self.environ)

    def ask_password(self) -> str | None:
        """Read a password: typed without being shown, or the first line of a piped stdin.

        None if a piped stdin has no line at all, which is not the same as an empty password.
        """
        prompt, on_stdout = self.wording.password_prompt, self.wording.prompts_on_stdout
        if not self.stdin_is_terminal:
            if on_stdout:
                self.stdout.write(f"{prompt}\n")
            line = self.stdin.readline()
            return line.rstrip("\n") if line else None
        try:
            return getpass.getpass(prompt, stream=self.stdout if on_stdout else self.stderr)
        except EOFError:  # Ctrl-D
            return ""

    def note(self, text: str) -> None:
        self._write(f"{self.program}: {_line(self.wording.note(text))}\n")

    def warn(self, text: str) -> None:
        self._write(f"{self.program}: warning: {_line(text)}\n")

    def error(self, message: str, *, hint: str | None = None) -> None:
        lines = f"{self.program}: {_line(message)}\n"
        if hint:
            lines += f"hint: {_line(hint)}\n"
        self._write(lines)

    def _write(self, lines: str) -> None:
        try:
            self.stderr.write(self.wording.message(lines))
            self.stderr.flush()
        except (OSError, ValueError):
            pass  # nobody reads it; the exit status remains

    def configure_logging(self, *, debug: bool) -> None:
        class OneLine(logging.Formatter):
            def formatMessage(self, record: LogRecord) -> str:
                record.message = _line(record.message)
                return super().formatMessage(record)

        handler = logging.StreamHandler(self.stderr)
        if debug:
            line = "%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s"
            handler.setFormatter(OneLine(line, datefmt="%H:%M:%S"))
        else:
            handler.setFormatter(OneLine(f"{self.program}: %(message)s"))
        logger = logging.getLogger("pycrictl")
        logger.handlers = [handler]
        logger.setLevel(logging.DEBUG if debug else logging.WARNING)
        logger.propagate = False


def raise_file_limit(least: int = 0) -> None:
    """Raise the limit on descriptors as far as allowed.

    A service needs some for each client, and a copy one for each level of a deep tree.

    Raises:
        PycrictlError: fewer than ``least`` are allowed.
    """
    import resource  # noqa: PLC0415 (not needed at every start)

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < least:
        raise PycrictlError(
            f"this needs {least} file descriptors, and the limit is {hard}",
            hint="raise it with ulimit -n",
        )
    if soft != hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
