"""Which display shows the progress of pulls."""

from __future__ import annotations

from pycrictl.show.displays.modes import Outlet
from pycrictl.show.displays.pull_bars import Bars
from pycrictl.show.displays.pull_lines import JsonLines, PlainLines
from pycrictl.show.displays.writers import Silent

PullDisplay = Bars | PlainLines | JsonLines | Silent


def open_display(outlet: Outlet, *, aggregate: bool = False) -> PullDisplay:
    env = outlet.env
    if outlet.form == "none":
        return Silent()
    if outlet.form == "bar":
        return Bars(env.stderr, env.environ, aggregate=aggregate)
    if outlet.form == "plain":
        return PlainLines(env.stderr, aggregate=aggregate)
    return JsonLines(outlet, aggregate=aggregate)
