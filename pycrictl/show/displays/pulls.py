"""Which display shows the progress of pulls, and what every display can do."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final, Protocol, TextIO

from pycrictl import environ as surroundings
from pycrictl.errors import UsageError
from pycrictl.show.displays import lines

if TYPE_CHECKING:
    from pycrictl.progress.tracker import View

MODES: Final = ("auto", "bar", "plain", "json", "none")


class Display(Protocol):
    """Shows one view after another. Not thread-safe: one thread calls it, in the order of time.

    Nothing that a display does ends a pull: a terminal or pipe behind *stderr* that goes away makes
    it silent. Only the loss of stdout, which carries the result in ``json`` mode, is raised.
    """

    def show(self, view: View) -> None:
        """Brings the display up to ``view``; call it at a steady pace, changes or not."""

    def note(self, text: str) -> None:
        """Tells one line; with bars it stays above them."""

    def end(self, images: Collection[str]) -> None:
        """Tells that the pulls of these images have ended, as the view shown last has it.

        Later views are without them; under the same name another pull may come.
        """

    def close(self, view: View | None = None) -> None:
        """Leaves the final state (``view``, else the one shown last) and ends. Idempotent.

        Belongs into a ``finally`` block: it also makes the terminal usable after Ctrl-C.
        """


def check_mode(mode: str) -> None:
    """Refuses a mode that ``open_display`` does not have, before anything is begun.

    Raises:
        UsageError: there is no such mode.
    """
    if mode not in MODES:
        raise UsageError(f'unknown kind of progress "{mode}"', hint=f"one of {', '.join(MODES)}")


def open_display(
    mode: str,
    *,
    stderr: TextIO,
    stdout: TextIO,
    environ: Mapping[str, str],
    aggregate: bool = False,
    wall_clock: Callable[[], float] = time.time,
) -> Display:
    """The display for ``--progress``.

    Args:
        mode: ``auto`` is ``bar`` where stderr is a terminal that can move its cursor, else
            ``plain``. ``bar`` becomes ``plain`` elsewhere as well, and says so. ``none`` tells
            nothing, not even notes.
        stderr: where bars, lines and notes go.
        stdout: where the objects of ``json`` go.
        environ: tells what the terminal is (``TERM``) and its size where it does not know it.
        aggregate: the totals only.
        wall_clock: seconds since 1970, for the timestamps of ``json``.

    Raises:
        UsageError: there is no such mode.
    """
    check_mode(mode)
    if mode == "none":
        return lines.Silent()
    if mode == "json":
        return lines.JsonLines(stdout, stderr, aggregate=aggregate, wall_clock=wall_clock)
    if surroundings.is_terminal(stderr) and not surroundings.is_dumb(environ) and mode != "plain":
        from pycrictl.show.displays.bars import (
            Bars,  # tqdm takes longer to load than everything else
        )

        return Bars(stderr, environ, aggregate=aggregate)
    plain = lines.PlainLines(stderr, aggregate=aggregate)
    if mode == "bar":
        plain.note("no bars: stderr is not a terminal that can show them")
    return plain
