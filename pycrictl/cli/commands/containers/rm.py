"""``pycrictl rm``."""

from __future__ import annotations

from typing import Annotated

import typer

from pycrictl.cli import complete, crictl, options
from pycrictl.cli.context import AppContext
from pycrictl.cli.results import Results
from pycrictl.cri.lifecycle.control import check_ids
from pycrictl.cri.lifecycle.removal import all_containers, remove_containers
from pycrictl.errors import UsageError


def rm(
    ctx: typer.Context,
    containers: Annotated[list[str] | None, options.containers(complete.containers)] = None,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Remove all containers.")] = False,
    force: options.Force = False,
    keep_logs: Annotated[
        bool, typer.Option("--keep-logs", "-k", help="Keep the log files on this host.")
    ] = False,
) -> None:
    """Remove containers.

    Containers are removed in parallel; a failure does not stop the others. The ID of each is
    printed, twice if the container had to be stopped first. Log files on this host are removed with
    their container. What a name stands for is said on standard error.

    Example: pycrictl rm $(pycrictl ps -aq --state exited)
    """
    app: AppContext = ctx.obj
    if all_ and containers:
        raise UsageError("--all and IDs cannot be combined")
    words = () if all_ else check_ids(containers or (), "container")
    results = Results(app.env)
    with app.open_client("runtime") as client:
        found = all_containers(client) if all_ else results.targets(client, words, "container")
        for removal in remove_containers(client, found, force=force, keep_logs=keep_logs):
            if removal.is_stopped:
                results.say([removal.target])
            if removal.error is None:
                results.say([removal.target])
            else:
                results.fail(removal.error)
            results.warn(removal.warnings)
            crictl.report_missing_log(app.env, removal.missing_log)
    if not found:
        app.env.note("no containers to remove")
    results.finish()
