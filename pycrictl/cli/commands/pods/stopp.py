"""``pycrictl stopp``."""

from __future__ import annotations

import typer

from pycrictl.cli import options
from pycrictl.cli.context import AppContext
from pycrictl.cli.results import Results
from pycrictl.cri.lifecycle.control import check_ids, stop_pods


def stopp(ctx: typer.Context, pods: options.PodIds = None) -> None:
    """Stop running pod sandboxes.

    Their containers are stopped as well. Pods are taken one after the other; the first failure ends
    the command. What a name stands for is said on standard error.

    Example: pycrictl stopp default/web
    """
    app: AppContext = ctx.obj
    words = check_ids(pods or (), "pod sandbox")
    results = Results(app.env)
    with app.open_client("runtime") as client:
        found = results.targets(client, words, "pod")
        results.say(f"Stopped sandbox {pod}" for pod in stop_pods(client, found))
