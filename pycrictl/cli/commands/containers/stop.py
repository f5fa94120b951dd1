"""``pycrictl stop``."""

from __future__ import annotations

from typing import Annotated

import typer

from pycrictl.cli import complete, options
from pycrictl.cli.context import AppContext
from pycrictl.cli.results import Results
from pycrictl.cri.lifecycle.control import check_ids, running_containers, stop_containers
from pycrictl.errors import UsageError


def stop(
    ctx: typer.Context,
    containers: Annotated[list[str] | None, options.containers(complete.running_containers)] = None,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Stop all running containers.")] = False,
    timeout: Annotated[
        int,
        typer.Option(
            "--timeout",
            "-t",
            parser=options.integer,
            metavar="INT",
            help="Seconds from the stop signal to SIGKILL; 0 kills immediately.",
        ),
    ] = 0,
) -> None:
    """Stop running containers.

    Containers are taken one after the other; the first failure ends the command. Each is printed as
    it was given. What a name stands for is said on standard error.

    Example: pycrictl stop --timeout 10 web
    """
    app: AppContext = ctx.obj
    if all_ and containers:
        raise UsageError("--all and IDs cannot be combined")
    if timeout < 0:
        raise UsageError("--timeout must not be negative")
    words = () if all_ else check_ids(containers or (), "container")
    results = Results(app.env)
    with app.open_client("runtime") as client:
        found = running_containers(client) if all_ else results.targets(client, words, "container")
        results.say(stop_containers(client, found, grace_s=timeout))
    if not found:
        results.say(["No running containers found."])
