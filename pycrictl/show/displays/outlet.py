"""The form and the stream of progress displays, and the writers for forms other than bars."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO

from pycrictl.base.environ import is_dumb
from pycrictl.show.displays import Mode
from pycrictl.show.displays.phrases import clean
from pycrictl.show.records import records_of

if TYPE_CHECKING:
    from pycrictl.base.environ import Environment

BAR_INTERVAL_S: Final = 0.25
LINE_INTERVAL_S: Final = 1.0

HEARTBEAT_S: Final = 9.0
"""When totals are written again: with a poll every second, that is at least every 10 s."""

Form = Literal["bar", "plain", "json", "none"]
Stdout = Literal["progress", "result", "nothing"]
"""What a command writes to standard output: progress, something else, or nothing at all."""


@dataclass(frozen=True, slots=True)
class Outlet:
    """How and where progress is shown.

    The ``objects`` stream gets JSON objects; all else goes to the environment's stderr. If
    progress is the command's result (``is_result``), a closed stream is an error. ``is_summed``:
    objects are sums, from which a client makes one display for several hosts.
    """

    form: Form
    env: Environment
    objects: TextIO
    is_result: bool
    is_summed: bool = False

    @property
    def interval_s(self) -> float:
        return BAR_INTERVAL_S if self.form == "bar" else LINE_INTERVAL_S


def choose(mode: Mode, env: Environment, *, stdout: Stdout, has_log: bool = False) -> Outlet:
    """Choose how to show progress; print a note if requested bars cannot be shown.

    ``auto`` means bars on a terminal, or lines if it cannot show bars or also gets log lines.
    Without a terminal it means lines if progress is the command's result, else nothing. ``bar``
    falls back to lines. Objects go to stdout, or to stderr if stdout carries another result.
    """
    is_terminal = env.stderr_is_terminal
    has_bars = is_terminal and not is_dumb(env.environ)
    if mode == "auto":
        if has_bars and not has_log:
            mode = "bar"
        else:
            mode = "plain" if is_terminal or stdout == "progress" else "none"
    elif mode == "bar" and not has_bars:
        env.note("no bars: standard error is not a terminal that can show them")
        mode = "plain"
    if mode != "none" and (records := records_of(env.stdout)) is not None:
        objects = records.objects(mode, "stderr" if stdout == "result" else "stdout")
        return Outlet("json", env, objects, stdout == "progress", is_summed=mode != "json")
    return Outlet(
        form=mode,
        env=env,
        objects=env.stderr if stdout == "result" else env.stdout,
        is_result=stdout == "progress",
    )


class Lines:
    """Lines on stderr, which are dropped once their reader is gone."""

    interval_s: float | None = LINE_INTERVAL_S
    """Pause between two calls of ``show``; None for no calls."""

    def __init__(self, stderr: TextIO) -> None:
        self._stderr: TextIO | None = stderr

    def note(self, text: str) -> None:
        self.write([clean(text)])

    def write(self, lines: Iterable[str]) -> None:
        self._stderr = _write(self._stderr, lines)

    def close(self) -> None:
        """Do nothing: there is no terminal state to restore."""


class Objects(Lines):
    """One JSON object per line, each with its ``time`` (RFC 3339, UTC). Notes go to stderr.

    Objects, too, are dropped once their reader is gone, unless they are the command's result.
    """

    def __init__(self, outlet: Outlet) -> None:
        super().__init__(outlet.env.stderr)
        self._stream: TextIO | None = outlet.objects
        self._is_result = outlet.is_result
        self._wall_clock = outlet.env.wall_clock

    def write_objects(self, objects: Iterable[Mapping[str, Any]]) -> None:
        now = datetime.fromtimestamp(self._wall_clock(), UTC)
        when = now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        lines = [json.dumps({**fields, "time": when}) for fields in objects]
        self._stream = _write(self._stream, lines, must_arrive=self._is_result)


class Silent:
    """Shows nothing; errors are raised, and reported when the program ends."""

    interval_s: float | None = None

    def _ignore(self, *args: object, **named: object) -> None: ...

    show = note = skip = end = close = _ignore


def _write(
    stream: TextIO | None, lines: Iterable[str], *, must_arrive: bool = False
) -> TextIO | None:
    text = "".join(f"{line}\n" for line in lines)
    if text and stream is not None:
        try:
            stream.write(text)
            stream.flush()
        except (OSError, ValueError):  # the pipe or the terminal is gone
            if must_arrive:
                raise
            # Otherwise flushing its buffer at exit would fail again.
            with suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:  # noqa: PTH123
                os.dup2(nowhere.fileno(), stream.fileno())
            return None
    return stream
