"""Where displays write if not to a bar: lines for people, objects for programs, or nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

from pycrictl.show.displays.modes import LINE_INTERVAL_S, Outlet
from pycrictl.show.displays.phrases import clean


class Lines:
    """Lines on stderr; when nobody reads them any more they are dropped."""

    interval_s: float | None = LINE_INTERVAL_S
    """Pause between two states to show; None to show none."""

    def __init__(self, stderr: TextIO) -> None:
        self._stderr: TextIO | None = stderr

    def note(self, text: str) -> None:
        self.write([clean(text)])

    def write(self, lines: Iterable[str]) -> None:
        self._stderr = _write(self._stderr, lines)

    def close(self) -> None:
        """Do nothing: there is nothing to put back."""


class Objects(Lines):
    """One JSON object a line, each with its ``time`` (RFC 3339, UTC). Notes go to stderr.

    When nobody reads the objects any more, they are dropped as well, unless they are the result.
    """

    def __init__(self, outlet: Outlet) -> None:
        super().__init__(outlet.env.stderr)
        self._stream: TextIO | None = outlet.objects
        self._is_result = outlet.is_result
        self._wall_clock = outlet.env.wall_clock

    def write_objects(self, objects: Iterable[Mapping[str, Any]]) -> None:
        """Write objects at once.

        Raises:
            OSError: they are the command's result and cannot be written.
        """
        now = datetime.fromtimestamp(self._wall_clock(), UTC)
        when = now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        lines = [json.dumps({**fields, "time": when}) for fields in objects]
        self._stream = _write(self._stream, lines, must_arrive=self._is_result)


class Silent:
    """Shows nothing: what goes wrong is raised, and reported when the program ends."""

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
            return None
    return stream
