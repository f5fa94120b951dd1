"""``pycrictl statsp``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pycrictl._proto import cri_pb2
from pycrictl.cli import complete, list_options, options, stats_loop
from pycrictl.cli.context import AppContext
from pycrictl.cri.inspection.stats import sample_pods
from pycrictl.show import headings, stats_tables

if TYPE_CHECKING:
    from pycrictl._proto import cri_pb2
    from pycrictl.cri.inspection.stats import Sample


def statsp(
    ctx: typer.Context,
    positional: Annotated[
        str,
        typer.Argument(
            metavar="[POD]",
            autocompletion=complete.pods,
            help="Only this pod sandbox.",
            show_default=False,
        ),
    ] = "",
    pod_id: Annotated[
        str,
        typer.Option(
            "--id", metavar="POD", autocompletion=complete.pods, help="Only this pod sandbox."
        ),
    ] = "",
    labels: list_options.Labels = None,
    no_headers: list_options.NoHeaders = False,
    output: stats_loop.StatsOutput = "table",
    seconds: stats_loop.Seconds = 1,
    sort_by: Annotated[str, list_options.sort_by([*headings.POD_STATS, "cpu"])] = "",
    watch: list_options.WatchStats = False,
) -> None:
    """Show the resource usage of pods.

    CPU usage is a percentage of one core, measured over an interval. The exit status is 1 if a
    pod could not be measured.

    Example: pycrictl statsp --seconds 2 --label app=web
    """
    app: AppContext = ctx.obj
    condition = cri_pb2.PodSandboxStatsFilter(
        id=pod_id or positional, label_selector=options.split_pairs(labels, "--label")
    )
    measured = stats_loop.Measuring(
        output,
        seconds=seconds,
        watch=watch,
        sort_by=sort_by,
        header=not no_headers,
        headings=headings.POD_STATS,
    )
    with app.open_client("runtime") as client:

        def sample() -> Sample[cri_pb2.PodSandboxStats]:
            return sample_pods(client, condition)

        measured.show(
            app,
            sample,
            stats_tables.pod_stats_table,
            lambda: list_options.note_missing(app, client, ("pod", pod_id or positional)),
        )
