"""``pycrictl stop``."""

from __future__ import annotations

from typing import Annotated

import typer

from pycrictl.cli import options
from pycrictl.cli.context import app_context
from pycrictl.cli.results import Results
from pycrictl.errors import UsageError


def stop(
    ctx: typer.Context,
    containers: options.ContainerIds = None,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Stop all running containers.")] = False,
    timeout: Annotated[
        int,
        typer.Option(
            "--timeout",
            "-t",
            **options.INTEGER,
            help="Seconds from the stop signal to SIGKILL; 0 kills immediately.",
        ),
    ] = 0,
) -> None:
    """Stop running containers.

    Containers are taken one after the other; the first failure ends the command. The ID of each is
    printed.

    Example: pycrictl stop --timeout 10 $(pycrictl ps -q --name web)
    """
    from pycrictl.cri.lifecycle.control import check_ids, running_containers, stop_containers

    if all_ and containers:
        raise UsageError("--all and IDs cannot be combined")
    if timeout < 0:
        raise UsageError("--timeout must not be negative")
    ids = () if all_ else check_ids(containers or (), "container")
    app = app_context(ctx)
    results = Results(app.env)
    with app.open_client("runtime") as client:
        if all_:
            ids = running_containers(client)
        results.say(stop_containers(client, ids, grace_s=timeout))
    if not ids:
        results.say(["No running containers found."])
