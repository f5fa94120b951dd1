"""``pycrictl update``."""

from __future__ import annotations

from typing import Annotated

import typer

from pycrictl.cli import complete, crictl, options
from pycrictl.cli.context import AppContext
from pycrictl.cli.results import Results
from pycrictl.cri.lifecycle.control import Resources, check_ids, update_containers
from pycrictl.cri.lists import lookup
from pycrictl.errors import UsageError


def update(
    ctx: typer.Context,
    containers: Annotated[list[str] | None, options.containers(complete.containers)] = None,
    cpu_count: Annotated[
        int | None,
        typer.Option(
            "--cpu-count",
            parser=options.integer,
            metavar="INT",
            show_default=False,
            help="Windows only; ignored here.",
        ),
    ] = None,
    cpu_maximum: Annotated[
        int | None,
        typer.Option(
            "--cpu-maximum",
            parser=options.integer,
            metavar="INT",
            show_default=False,
            help="Windows only; ignored here.",
        ),
    ] = None,
    cpu_period: Annotated[
        int | None,
        typer.Option(
            "--cpu-period",
            parser=options.integer,
            metavar="INT",
            show_default=False,
            help="CFS period in microseconds.",
        ),
    ] = None,
    cpu_quota: Annotated[
        int | None,
        typer.Option(
            "--cpu-quota",
            parser=options.integer,
            metavar="INT",
            show_default=False,
            help="CFS quota in microseconds.",
        ),
    ] = None,
    cpu_share: Annotated[
        int | None,
        typer.Option(
            "--cpu-share",
            parser=options.integer,
            metavar="INT",
            show_default=False,
            help="Relative CPU weight (shares).",
        ),
    ] = None,
    cpuset_cpus: Annotated[
        str | None, typer.Option("--cpuset-cpus", metavar="LIST", help="CPUs, such as 0-2,7.")
    ] = None,
    cpuset_mems: Annotated[
        str | None, typer.Option("--cpuset-mems", metavar="LIST", help="Memory nodes, such as 0-1.")
    ] = None,
    memory: Annotated[
        int | None,
        typer.Option(
            "--memory",
            parser=options.integer,
            metavar="INT",
            show_default=False,
            help="Memory limit in bytes.",
        ),
    ] = None,
    oom_score_adj: Annotated[
        int | None,
        typer.Option(
            "--oom-score-adj",
            parser=options.parser(crictl.score),
            metavar="INT",
            show_default=False,
            help="OOM score adjustment, from -1000 to 1000.",
        ),
    ] = None,
) -> None:
    """Change the resource limits of containers.

    Containers are taken one after the other; the first failure ends the command. The ID of each is
    printed.

    Example: pycrictl update --memory 67108864 web
    """
    app: AppContext = ctx.obj
    words = check_ids(containers or (), "container")
    resources = Resources(
        cpu_period=cpu_period,
        cpu_quota=cpu_quota,
        cpu_shares=cpu_share,
        memory_limit_in_bytes=memory,
        oom_score_adj=oom_score_adj,
        cpuset_cpus=cpuset_cpus or None,
        cpuset_mems=cpuset_mems or None,
    )
    if oom_score_adj is not None and not -1000 <= oom_score_adj <= 1000:
        raise UsageError("--oom-score-adj must be from -1000 to 1000")
    if resources.is_empty and not crictl.is_called():
        if "" in (cpuset_cpus, cpuset_mems):
            raise UsageError("every limit is empty", hint="is a script's variable not set?")
        raise UsageError("nothing to update", hint="give a limit, such as --memory")
    is_for_windows = cpu_count is not None or cpu_maximum is not None
    if is_for_windows and not crictl.is_called():
        app.env.warn("--cpu-count and --cpu-maximum are for Windows and are ignored")
    with app.open_client("runtime") as client:
        found = lookup.targets(client, words, "container")
        Results(app.env).say(update_containers(client, found, resources))
