"""``kubectl why``."""

from __future__ import annotations

from typing import Final

import typer

from pycrictl.base.errors import UsageError
from pycrictl.cli import list_options, options
from pycrictl.cli.cluster_options import Selection
from pycrictl.cli.context import AppContext
from pycrictl.cluster.kubectl.program import Kubectl
from pycrictl.cluster.kubectl.why import ClusterView
from pycrictl.show.formats import Format

WATCH_PAUSE_S: Final = 5.0


@options.with_records
def why(
    ctx: typer.Context,
    *,
    selection: Selection,
    output: list_options.InspectOutput = "table",
    watch: list_options.Watch = False,
) -> None:
    """Show why pods are not running.

    The first line is the most likely cause, the others are evidence. If several pods are selected,
    there is a line for each pod, node, claim or workload (TYPE/NAME) with a problem, most severe
    first. Sources that are not available are named. Exits with status 0 if there is no problem,
    else 1.

    Example: kubectl why web
    """
    app: AppContext = ctx.obj
    chosen = Format(output)
    if watch and not chosen.is_table:
        raise UsageError("--watch works only with the table")
    asked = selection.asked()
    kubectl = Kubectl(app.handed_on, app.env.note)
    with ClusterView(kubectl, asked) as view:
        list_options.show_survey(
            app,
            chosen,
            lambda: view.overview(app.env.wall_clock(), watches=watch),
            watch_pause_s=WATCH_PAUSE_S if watch else None,
            is_named=bool(asked.names),
        )
