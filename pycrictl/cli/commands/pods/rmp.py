"""``pycrictl rmp``."""

from __future__ import annotations

from typing import Annotated

import typer

from pycrictl.cli import crictl, options
from pycrictl.cli.context import AppContext
from pycrictl.cli.results import Results
from pycrictl.cri.lifecycle.control import check_ids
from pycrictl.cri.lifecycle.removal import all_pods, remove_pods
from pycrictl.errors import UsageError


def rmp(
    ctx: typer.Context,
    pods: options.PodIds = None,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Remove all pod sandboxes.")] = False,
    force: options.Force = False,
) -> None:
    """Remove pod sandboxes and their containers.

    Pod sandboxes are removed in parallel; a failure does not stop the others. What a name stands
    for is said on standard error.

    Example: pycrictl rmp $(pycrictl pods -q --state notready)
    """
    app: AppContext = ctx.obj
    if all_ and pods:
        raise UsageError("--all and IDs cannot be combined")
    words = () if all_ else check_ids(pods or (), "pod sandbox")
    results = Results(app.env)
    with app.open_client("runtime") as client:
        found = all_pods(client) if all_ else results.targets(client, words, "pod")
        for removal in remove_pods(client, found, force=force):
            if removal.is_stopped:
                results.say([f"Stopped sandbox {removal.target}"])
            if removal.error is None:
                results.say([f"Removed sandbox {removal.target}"])
            else:
                results.fail(removal.error)
    if not found:
        kind = "pods" if crictl.is_called() else "pod sandboxes"
        app.env.note(f"no {kind} to remove")
    results.finish()
