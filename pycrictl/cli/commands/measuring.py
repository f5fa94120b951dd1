"""Usage: ``stats``, ``statsp``, ``metricsp``, ``metricdescs`` and ``imagefsinfo``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pycrictl._proto import cri_pb2
from pycrictl.cli import complete, list_options, options, stats_loop
from pycrictl.cli.context import AppContext
from pycrictl.cri.inspection.stats import sample_containers, sample_pods, space
from pycrictl.cri.lists import fetch
from pycrictl.show import headings, inspect_views, protodata, render, stats_tables
from pycrictl.show.inspect_format import INSPECT_FORMATS, InspectFormat
from pycrictl.show.list_format import DOCUMENT_FORMATS, ListFormat

if TYPE_CHECKING:
    from typing import TextIO

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


def metricsp(
    ctx: typer.Context,
    output: list_options.DocumentOutput = "json",
    watch: list_options.WatchStats = False,
) -> None:
    """Show the metrics of pods.

    Example: pycrictl metricsp --output yaml
    """
    app: AppContext = ctx.obj
    chosen = ListFormat(output or "json", name="podMetrics", formats=DOCUMENT_FORMATS)
    with app.open_client("runtime") as client:

        def write(out: TextIO) -> None:
            chosen.write(fetch.pod_metrics(client), None, out)

        if watch:
            with app.until_interrupted() as viewer:
                viewer.repeat(write, pause_s=list_options.STATS_PAUSE_S)
        else:
            write(app.env.stdout)


def metricdescs(ctx: typer.Context, output: list_options.DocumentOutput = "json") -> None:
    """List the pod metrics that the runtime provides.

    Example: pycrictl metricdescs
    """
    app: AppContext = ctx.obj
    chosen = ListFormat(output or "json", name="descriptors", formats=DOCUMENT_FORMATS)
    with app.open_client("runtime") as client:
        answer = client.call("ListMetricDescriptors", cri_pb2.ListMetricDescriptorsRequest())
    chosen.write(answer.descriptors, None, app.env.stdout)


def imagefsinfo(
    ctx: typer.Context,
    output: Annotated[
        str,
        options.formats(
            "json",
            "yaml",
            "go-template",
            "table",
            "wide",
            "jsonpath=TEMPLATE",
            help="Output format; wide also shows the free space.",
        ),
    ] = "json",
    template: list_options.Template = "",
    no_headers: list_options.NoHeaders = False,
) -> None:
    """Show the disk usage of images.

    Example: pycrictl imagefsinfo --output wide
    """
    app: AppContext = ctx.obj
    chosen = InspectFormat(output, template=template, formats=(*INSPECT_FORMATS, "wide"))
    with app.open_client("image") as client:
        answer = client.call("ImageFsInfo", cri_pb2.ImageFsInfoRequest())
    if chosen.is_wide:
        table = inspect_views.image_filesystems_table(answer, space)
        render.write_table(table, app.env.stdout, header=not no_headers)
    elif chosen.is_table:
        render.write_lines(inspect_views.image_filesystem_lines(answer), app.env.stdout)
    else:
        chosen.write_document(protodata.status_document(answer), app.env.stdout)
