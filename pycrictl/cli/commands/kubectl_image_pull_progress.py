"""``kubectl image-pull-progress``."""

from __future__ import annotations

from typing import Annotated

import typer

from pycrictl.cli import options
from pycrictl.cli.cluster_options import Selection
from pycrictl.cli.context import AppContext
from pycrictl.cluster.kubectl.cluster_watch import watch
from pycrictl.cluster.kubectl.program import Kubectl
from pycrictl.pulls.sources.endings import Pace
from pycrictl.show.displays.outlet import choose
from pycrictl.show.displays.pull_lines import open_display


@options.with_records
def image_pull_progress(
    ctx: typer.Context,
    *,
    selection: Selection,
    node: Annotated[
        str | None,
        typer.Option(
            "--node",
            metavar="NODE",
            help="Only pulls on this node.",
        ),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            "-f",
            help="Keep watching when no pull is left, until Ctrl-C.",
        ),
    ] = False,
    progress: options.Progress = "auto",
    interval: options.ProgressInterval = None,
) -> None:
    """Show the progress of image pulls in a cluster.

    Queries the agents of the cluster through kubectl. Ends when no pull is left: with status 0, or
    1 if a pull failed. Ctrl-C ends the watch (status 130), never a pull.

    Example: kubectl image-pull-progress web
    """
    app: AppContext = ctx.obj
    asked = selection.asked(node)
    outlet = choose(progress, app.env, stdout="progress")
    display = open_display(outlet)
    pace = Pace(interval_s=interval or outlet.interval_s, follow=follow)
    kubectl = Kubectl(app.handed_on, display.note)
    try:
        has_seen = watch(kubectl, asked, display, pace)
    finally:
        display.close()
    if not has_seen:
        app.env.note("'kubectl why' says what the pods wait for")
