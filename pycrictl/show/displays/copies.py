"""What a copy shows while it runs, and what it says at its end; all of it on stderr."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol, TextIO

from pycrictl import environ as surroundings
from pycrictl.errors import UsageError
from pycrictl.show.displays import phrases
from pycrictl.units import format_bytes

MODES: Final = ("auto", "bar", "plain", "json", "none")

HEARTBEAT_S: Final = 10.0
"""How often ``PlainLines`` tells how far the copy is."""

MAX_WARNINGS: Final = 10
"""Most things that are named one by one of those that were left out."""

_WIDEST: Final = 110
_NARROW: Final = 40
_RATE_WIDTH: Final = len("  1023.9 KiB/s  ETA 0:00")


class Progress(NamedTuple):
    """How far a copy is.

    Attributes:
        done_bytes: copied so far.
        total_bytes: what is to be copied; None where that is not known before.
        rate: bytes a second; None while there is too little to tell.
        elapsed_s: since the beginning.
    """

    done_bytes: int
    total_bytes: int | None
    rate: float | None
    elapsed_s: float

    @property
    def eta_s(self) -> float | None:
        """Seconds that are left; None if that is not known."""
        if self.total_bytes is None or not self.rate or self.done_bytes > self.total_bytes:
            return None
        return (self.total_bytes - self.done_bytes) / self.rate


class CopyDisplay(Protocol):
    """Shows one copy. Not thread-safe. A stderr that goes away makes it silent.

    Attributes:
        interval_s: how often ``show`` is to be called; None for never.
    """

    interval_s: float | None

    def show(self, progress: Progress) -> None:
        """Bring the display up to date."""

    def skip(self, path: str, reason: str) -> None:
        """Tell that something is left out, and why."""

    def finish(self, counts: Mapping[str, int], elapsed_s: float) -> None:
        """Tell what was copied: ``files``, ``directories``, ``links``, ``size_bytes``, ``kept``."""

    def close(self) -> None:
        """Leave the terminal as it was found; belongs into a ``finally`` block."""


def open_copy_display(
    mode: str, *, stderr: TextIO, environ: Mapping[str, str], quiet: bool
) -> CopyDisplay:
    """The display for ``--progress``.

    Args:
        mode: ``auto`` is ``bar`` where stderr is a terminal that can move its cursor, else
            ``none``, which tells only how the copy ended; ``plain`` tells it every 10 s.
        quiet: tell nothing at all.

    Raises:
        UsageError: there is no such mode.
    """
    if mode not in MODES:
        raise UsageError(f'unknown kind of progress "{mode}"', hint=f"one of {', '.join(MODES)}")
    if quiet:
        return Silent()
    if mode == "json":
        return JsonLines(stderr)
    if mode in ("auto", "bar") and surroundings.is_terminal(stderr):
        if not surroundings.is_dumb(environ):
            return Bar(stderr, environ)
        mode = "plain"
    return PlainLines(stderr, tells_progress=mode in ("bar", "plain"))


def summary(counts: Mapping[str, int], elapsed_s: float) -> str:
    """``copied 3 files, 1 directory (12.3 MiB) in 1.2 s``."""
    files, directories, links = (counts[key] for key in ("files", "directories", "links"))
    words = [phrases.plural(files, "file")] if files or not (directories or links) else []
    if directories:
        words.append("1 directory" if directories == 1 else f"{directories} directories")
    if links:
        words.append(phrases.plural(links, "link"))
    size = f" ({format_bytes(counts['size_bytes'])})" if files else ""
    text = f"copied {', '.join(words)}{size} in {phrases.duration(elapsed_s)}"
    if counts["kept"]:
        text += f", kept {counts['kept']} that were there"
    if counts["skipped"]:
        text += f", left out {counts['skipped']}"
    return text


class Silent:
    """Tells nothing."""

    interval_s: float | None = None

    def show(self, progress: Progress) -> None: ...

    def skip(self, path: str, reason: str) -> None: ...

    def finish(self, counts: Mapping[str, int], elapsed_s: float) -> None: ...

    def close(self) -> None: ...


class _Lines:
    """Lines on stderr; when nobody reads them any more they are dropped."""

    def __init__(self, stderr: TextIO) -> None:
        self._stderr: TextIO | None = stderr

    def _tell(self, line: str) -> None:
        if self._stderr is not None:
            try:
                self._stderr.write(f"{line}\n")
                self._stderr.flush()
            except (OSError, ValueError):  # the pipe or the terminal is gone
                self._stderr = None

    def close(self) -> None:
        """There is nothing to put back."""


class PlainLines(_Lines):
    """Lines for logs and pipes.

    Args:
        tells_progress: tell how far it is, not only how it ended.
    """

    def __init__(self, stderr: TextIO, *, tells_progress: bool) -> None:
        super().__init__(stderr)
        self.interval_s: float | None = HEARTBEAT_S if tells_progress else None
        self._skipped = 0

    def show(self, progress: Progress) -> None:
        self._tell(" ".join(["copying", *map(str.strip, _words(progress))]))

    def skip(self, path: str, reason: str) -> None:
        self._skipped += 1
        if self._skipped <= MAX_WARNINGS:
            self._tell(_warning(path, reason))

    def finish(self, counts: Mapping[str, int], elapsed_s: float) -> None:
        if self._skipped > MAX_WARNINGS:
            self._tell(_more(self._skipped))
        self._tell(summary(counts, elapsed_s))


class Bar(_Lines):
    """A bar that is gone when the copy has ended; warnings stay above it.

    Args:
        stderr: open on a terminal.
        environ: tells the size where the terminal does not know it.
    """

    interval_s: float | None = 0.2

    def __init__(self, stderr: TextIO, environ: Mapping[str, str]) -> None:
        super().__init__(stderr)
        from pycrictl.show.displays.block import Block

        self._terminal = stderr
        self._environ = environ
        self._is_utf8 = surroundings.is_utf8(stderr, environ)
        self._block = Block(stderr)
        self._skipped = 0

    def show(self, progress: Progress) -> None:
        columns, rows = surroundings.terminal_size(self._terminal, self._environ)
        # The last column stays free: a terminal may wrap as soon as it is filled.
        line = self._line(progress, max(columns - 1, 1))
        self._block.draw([line], size=(columns, rows))

    def skip(self, path: str, reason: str) -> None:
        self._skipped += 1
        if self._skipped <= MAX_WARNINGS:
            self._block.print_above(_warning(path, reason))

    def finish(self, counts: Mapping[str, int], elapsed_s: float) -> None:
        self._block.close()
        if self._skipped > MAX_WARNINGS:
            self._tell(_more(self._skipped))
        self._tell(summary(counts, elapsed_s))

    def close(self) -> None:
        self._block.close()

    def _line(self, progress: Progress, width: int) -> str:
        percent, *words = _words(progress)
        total = progress.total_bytes
        if not total or width < _NARROW:
            return phrases.join_fitting([word.strip() for word in (percent, *words) if word], width)
        from tqdm.std import tqdm

        # As wide as it will be: a redrawn bar must not change its length.
        right = "  ".join(words).ljust(len(words[0]) + _RATE_WIDTH)
        return str(
            tqdm.format_meter(
                min(progress.done_bytes, total),
                total,
                progress.elapsed_s,
                ncols=min(width, _WIDEST),
                ascii=not self._is_utf8,
                bar_format=f"{percent} |{{bar}}| {right}",
            )
        )


class JsonLines(_Lines):
    """One JSON object a line, for programs.

    While the copy runs, every second: ``progress`` and ``total`` in bytes, ``total`` 0 where it is
    not known. For what is left out: ``skipped``, its path, and ``reason``. At the end what was
    copied: ``files``, ``directories``, ``links``, ``size_bytes``, ``kept``, ``skipped`` (numbers)
    and ``elapsed_s``.
    """

    interval_s: float | None = 1.0

    def show(self, progress: Progress) -> None:
        total = progress.total_bytes or 0
        self._tell(json.dumps({"progress": progress.done_bytes, "total": total}))

    def skip(self, path: str, reason: str) -> None:
        self._tell(json.dumps({"skipped": path, "reason": reason}))

    def finish(self, counts: Mapping[str, int], elapsed_s: float) -> None:
        self._tell(json.dumps({**counts, "elapsed_s": round(elapsed_s, 3)}))


def _words(progress: Progress) -> list[str]:
    """``45%`` or nothing, ``5.2/10.0 GiB``, ``120.3 MiB/s``, ``ETA 0:05``; each as far as known."""
    total = progress.total_bytes or 0
    percent = f"{phrases.percent(progress.done_bytes, total):>3}%" if total else ""
    size = phrases.part(progress.done_bytes, total)
    words = [percent, size.rjust(len(phrases.part(total, total))) if total else size]
    if progress.rate is not None:
        words.append(f"{format_bytes(progress.rate, aligned=True)}/s")
        if (eta_s := progress.eta_s) is not None:
            words.append(f"ETA {phrases.clock(eta_s)}")
    return words


def _warning(path: str, reason: str) -> str:
    return f"pycrictl: warning: left out {phrases.clean(path)}: {phrases.clean(reason)}"


def _more(count: int) -> str:
    return f"pycrictl: warning: left out {count - MAX_WARNINGS} more"
