"""``pycrictl stats``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pycrictl._proto import cri_pb2
from pycrictl.cli import complete, list_options, options, stats_loop
from pycrictl.cli.context import AppContext
from pycrictl.cri.inspection.stats import sample_containers
from pycrictl.show import headings, stats_tables

if TYPE_CHECKING:
    from pycrictl._proto import cri_pb2
    from pycrictl.cri.inspection.stats import Sample


def stats(
    ctx: typer.Context,
    positional: Annotated[
        str,
        typer.Argument(
            metavar="[CONTAINER]",
            autocompletion=complete.containers,
            help="Only this container.",
            show_default=False,
        ),
    ] = "",
    all_: Annotated[
        bool, typer.Option("--all", "-a", help="Include containers that are not running.")
    ] = False,
    container_id: Annotated[
        str,
        typer.Option(
            "--id",
            metavar="CONTAINER",
            autocompletion=complete.containers,
            help="Only this container.",
        ),
    ] = "",
    labels: list_options.Labels = None,
    no_headers: list_options.NoHeaders = False,
    output: stats_loop.StatsOutput = "table",
    pod: list_options.PodId = "",
    seconds: stats_loop.Seconds = 1,
    sort_by: Annotated[str, list_options.sort_by([*headings.CONTAINER_STATS, "cpu"])] = "",
    watch: list_options.WatchStats = False,
) -> None:
    """Show the resource usage of containers.

    CPU usage is a percentage of one core, measured over an interval. The exit status is 1 if a
    container could not be measured.

    Example: pycrictl stats --watch
    """
    app: AppContext = ctx.obj
    condition = cri_pb2.ContainerStatsFilter(
        id=container_id or positional,
        pod_sandbox_id=pod,
        label_selector=options.split_pairs(labels, "--label"),
    )
    measured = stats_loop.Measuring(
        output,
        seconds=seconds,
        watch=watch,
        sort_by=sort_by,
        header=not no_headers,
        headings=headings.CONTAINER_STATS,
    )
    with app.open_client("runtime") as client:

        def sample() -> Sample[cri_pb2.ContainerStats]:
            return sample_containers(client, condition)

        measured.show(
            app,
            sample,
            lambda before, after: stats_tables.stats_table(before, after, show_all=all_),
            lambda: list_options.note_missing(
                app, client, ("pod", pod), ("container", container_id or positional)
            ),
        )
