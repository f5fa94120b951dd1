"""Displays of a copy's progress and of its result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pycrictl.base.environ import OWN_NAME
from pycrictl.base.units import duration_in_words, format_bytes, plural
from pycrictl.pulls.state import Sums
from pycrictl.show.displays import phrases
from pycrictl.show.displays.meters import Meters, total_line
from pycrictl.show.displays.outlet import HEARTBEAT_S, Lines, Objects, Outlet, Silent

MAX_WARNINGS: Final = 10
"""Maximum number of left-out paths that are named one by one."""

Copied = Mapping[str, Any]
"""Numbers of a copy: ``files``, ``directories``, ``links``, ``size_bytes``, ``skipped`` (left out)
and ``elapsed_s``."""


def summary(copied: Copied) -> str:
    """Return ``copied 3 files, 1 directory (12.3 MiB) in 1.2 s``."""
    files, directories, links = (copied[key] for key in ("files", "directories", "links"))
    words = [plural(files, "file")] if files or not (directories or links) else []
    if directories:
        words.append(plural(directories, "directory", "directories"))
    if links:
        words.append(plural(links, "link"))
    size = f" ({format_bytes(copied['size_bytes'])})" if files else ""
    text = f"copied {', '.join(words)}{size} in {duration_in_words(copied['elapsed_s'])}"
    if copied["skipped"]:
        text += f", left out {copied['skipped']}"
    return text


class CopyLines:
    """Lines for people; with meters, above a bar that is removed when the copy ends.

    With ``has_result`` (the copied data is the command's output), no summary is written.
    """

    def __init__(
        self,
        out: Lines | Meters,
        program: str = OWN_NAME,
        *,
        shows_progress: bool = True,
        has_result: bool = False,
    ) -> None:
        self.interval_s = out.interval_s if shows_progress else None
        self.note = out.note
        self.close = out.close
        self._out = out
        self._program = program
        self._has_result = has_result
        self._skipped = 0
        self._said_s = 0.0

    def show(self, sums: Sums, elapsed_s: float) -> None:
        """Show bytes so far and in total, which is 0 if it is not known."""
        if isinstance(self._out, Meters):
            width, _ = self._out.measure()
            self._out.draw([total_line("", sums, (), width)])
        elif elapsed_s - self._said_s >= HEARTBEAT_S:
            self._said_s = elapsed_s
            self._out.write([phrases.sentence("copying", sums)])

    def skip(self, path: str, reason: str) -> None:
        self._skipped += 1
        if self._skipped <= MAX_WARNINGS:
            path, reason = phrases.clean(path), phrases.clean(reason)
            self._warn(f"left out {path}: {reason}")

    def end(self, copied: Copied) -> None:
        self.close()
        if (more := self._skipped - MAX_WARNINGS) > 0:
            self._warn(f"left out {more} more")
        if not self._has_result:
            self._out.write([summary(copied)])

    def _warn(self, text: str) -> None:
        self._out.write([f"{self._program}: warning: {text}"])


class CopyObjects(Objects):
    def show(self, sums: Sums, elapsed_s: float) -> None:
        self.write_objects([{"progress": sums.progress, "total": sums.total}])

    def skip(self, path: str, reason: str) -> None:
        self.write_objects([{"skipped": path, "reason": reason}])

    def end(self, copied: Copied) -> None:
        """Write the numbers of the copy."""
        self.write_objects([copied])


CopyDisplay = CopyLines | CopyObjects | Silent


def open_copy_display(outlet: Outlet, *, has_result: bool = False) -> CopyDisplay:
    env = outlet.env
    if outlet.form == "json" and not outlet.is_summed:
        return CopyObjects(outlet)
    is_bar = outlet.form == "bar"
    return CopyLines(
        Meters(env.stderr, env.environ) if is_bar else Lines(env.stderr),
        env.program,
        shows_progress=is_bar or outlet.form == "plain",
        has_result=has_result,
    )
