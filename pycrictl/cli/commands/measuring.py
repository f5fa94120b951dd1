"""Usage: ``stats``, ``statsp``, ``metricsp``, ``metricdescs`` and ``imagefsinfo``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final, TextIO

import typer

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import UsageError
from pycrictl.cli import complete, list_options, options
from pycrictl.cli.context import AppContext
from pycrictl.runtime.cri.calls.client import CriClient
from pycrictl.runtime.cri.inspection.statuses import measure
from pycrictl.runtime.cri.lists import lookup
from pycrictl.show import inspect_views, protodata, render
from pycrictl.show.columns import Column, table_of
from pycrictl.show.displays.block import Viewer
from pycrictl.show.formats import METRICS_FORMATS, OUTPUT_FORMATS, Format, ListFormat, Views
from pycrictl.show.list_views import CONTAINER_STATS, POD_STATS, measured
from pycrictl.show.render import Table

LONGEST_S: Final = 24 * 3600

MetricsOutput = Annotated[str, options.formats(METRICS_FORMATS)]


@dataclass(frozen=True, slots=True)
class Measurement:
    """The options of ``stats`` and ``statsp`` about what to measure, how, and how to show it."""

    labels: list_options.Labels = None
    output: list_options.Output = "table"
    seconds: Annotated[
        int, options.int_option("--seconds", "-s", help="Seconds between the two measurements.")
    ] = 1
    watch: list_options.Watch = False


@options.with_records
def stats(
    ctx: typer.Context,
    *,
    positional: Annotated[
        str,
        typer.Argument(
            metavar="[CONTAINER]", autocompletion=complete.containers, help="Only this container."
        ),
    ] = "",
    all_: Annotated[
        bool, typer.Option("--all", "-a", help="Include containers that are not running.")
    ] = False,
    container_id: list_options.ContainerId = "",
    how: Measurement,
    pod: list_options.PodId = "",
) -> None:
    """Show the resource usage of containers.

    CPU usage is a percentage of one core, measured over an interval.

    Example: pycrictl stats --watch
    """
    app: AppContext = ctx.obj
    labels = options.split_pairs(app, how.labels, "--label")
    condition = cri_pb2.ContainerStatsFilter(
        id=container_id or positional, pod_sandbox_id=pod, label_selector=labels
    )
    _measure(app, condition, how, CONTAINER_STATS, show_all=all_)


@options.with_records
def statsp(
    ctx: typer.Context,
    *,
    positional: Annotated[
        str,
        typer.Argument(
            metavar="[POD]", autocompletion=complete.pods, help="Only this pod sandbox."
        ),
    ] = "",
    pod_id: list_options.SandboxId = "",
    how: Measurement,
) -> None:
    """Show the resource usage of pods.

    CPU usage is a percentage of one core, measured over an interval.

    Example: pycrictl statsp --seconds 2 --label app=web
    """
    app: AppContext = ctx.obj
    labels = options.split_pairs(app, how.labels, "--label")
    condition = cri_pb2.PodSandboxStatsFilter(id=pod_id or positional, label_selector=labels)
    _measure(app, condition, how, POD_STATS)


def _measure(
    app: AppContext,
    condition: cri_pb2.ContainerStatsFilter | cri_pb2.PodSandboxStatsFilter,
    how: Measurement,
    columns: Sequence[Column],
    *,
    show_all: bool = False,
) -> None:
    """Measure and show, once or until Ctrl-C; a table compares two samples, some seconds apart."""
    output = app.persona.known_format(how.output or "table", OUTPUT_FORMATS)
    chosen = ListFormat(output, name="stats", formats=OUTPUT_FORMATS)
    if not 0 <= how.seconds <= LONGEST_S:
        raise UsageError(f'"{how.seconds}" for --seconds is not between 0 and {LONGEST_S}')

    def table(before: list[Any], after: Sequence[Any]) -> Table:
        return table_of(columns, measured(before, after, show_all=show_all))

    def show_once(client: CriClient, viewer: Viewer) -> None:
        stats = measure(client, condition)
        views = None
        if chosen.is_table:
            before = stats
            time.sleep(how.seconds)
            stats = measure(client, condition)
            if app.persona.is_crictl and not viewer.is_in_place:
                viewer.show(lambda out: out.write(render.CLEAR_SCREEN))
            views = Views(lambda after, _: table(before, after))
        viewer.show(partial(chosen.write, stats, views))

    with app.open_client("runtime") as client:
        if how.watch:
            with app.until_interrupted() as viewer:
                while True:
                    show_once(client, viewer)
                    time.sleep(list_options.STATS_PAUSE_S)
        else:
            show_once(client, Viewer(app.env))


def metricsp(
    ctx: typer.Context,
    output: MetricsOutput = "json",
    watch: list_options.Watch = False,
) -> None:
    """Show the metrics of pods.

    Example: pycrictl metricsp --output yaml
    """
    app: AppContext = ctx.obj
    chosen = ListFormat(output or "json", name="podMetrics", formats=METRICS_FORMATS)
    with app.open_client("runtime") as client:

        def write(out: TextIO) -> None:
            metrics = lookup.whole(client, "StreamPodSandboxMetrics", "ListPodSandboxMetrics")
            chosen.write(metrics, None, out)

        if watch:
            with app.until_interrupted() as viewer:
                viewer.repeat(write, pause_s=list_options.STATS_PAUSE_S)
        else:
            write(app.env.stdout)


def metricdescs(ctx: typer.Context, output: MetricsOutput = "json") -> None:
    """List the pod metrics that the runtime provides.

    Example: pycrictl metricdescs
    """
    app: AppContext = ctx.obj
    chosen = ListFormat(output or "json", name="descriptors", formats=METRICS_FORMATS)
    with app.open_client("runtime") as client:
        answer = client.call("ListMetricDescriptors", cri_pb2.ListMetricDescriptorsRequest())
    chosen.write(answer.descriptors, None, app.env.stdout)


def imagefsinfo(
    ctx: typer.Context,
    output: list_options.InspectOutput = "json",
    template: list_options.Template = "",
) -> None:
    """Show the disk usage of images.

    Example: pycrictl imagefsinfo --output table
    """
    app: AppContext = ctx.obj
    chosen = Format(output, template=template)
    with app.open_client("image") as client:
        answer = client.call("ImageFsInfo", cri_pb2.ImageFsInfoRequest())
    if chosen.is_table:
        groups = inspect_views.image_filesystems(answer)
        render.write_groups("FILESYSTEM", groups, app.env.stdout)
    else:
        chosen.write_document(protodata.status_document(answer), app.env.stdout)
