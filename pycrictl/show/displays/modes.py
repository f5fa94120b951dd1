"""How progress is shown, and on which stream: one rule for the displays of pulls and of copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TextIO

from pycrictl.environ import is_dumb

if TYPE_CHECKING:
    from pycrictl.environ import Environment

Mode = Literal["auto", "bar", "plain", "json", "none"]
"""What ``--progress`` takes."""

BAR_INTERVAL_S: Final = 0.25
LINE_INTERVAL_S: Final = 1.0

HEARTBEAT_S: Final = 9.0
"""With a look each second, lines say how far all is at least every 10 s."""

Form = Literal["bar", "plain", "json", "none"]
Stdout = Literal["progress", "result", "nothing"]
"""What a command writes to standard output: progress, something else, or nothing at all."""


@dataclass(frozen=True, slots=True)
class Outlet:
    """How and where progress is shown.

    Attributes:
        form: how.
        env: bars, lines and notes go to its stderr.
        objects: where the objects of ``json`` go.
        is_result: whether progress is the command's result, so that losing it is an error.
    """

    form: Form
    env: Environment
    objects: TextIO
    is_result: bool

    @property
    def interval_s(self) -> float:
        return BAR_INTERVAL_S if self.form == "bar" else LINE_INTERVAL_S


def choose(mode: Mode, env: Environment, *, stdout: Stdout, has_log: bool = False) -> Outlet:
    """Choose how to show progress; say so if bars were asked for and cannot be shown.

    ``auto`` is bars on a terminal; lines on one that cannot show bars, or that log lines go to as
    well. Without a terminal it is lines where progress is the command's result, else nothing.
    ``bar`` becomes lines where there can be no bars. Objects go to stdout, or to stderr where
    stdout carries another result.

    Args:
        stdout: what the command writes there.
        has_log: whether log lines go to stderr.
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
    return Outlet(
        form=mode,
        env=env,
        objects=env.stderr if stdout == "result" else env.stdout,
        is_result=stdout == "progress",
    )
