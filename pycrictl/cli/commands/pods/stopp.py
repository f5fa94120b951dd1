"""``pycrictl stopp``."""

from __future__ import annotations

import typer

from pycrictl.cli import options
from pycrictl.cli.context import app_context
from pycrictl.cli.results import Results


def stopp(ctx: typer.Context, pods: options.PodIds = None) -> None:
    """Stop running pod sandboxes.

    Their containers are stopped as well. Pods are taken one after the other; the first failure ends
    the command.

    Example: pycrictl stopp $(pycrictl pods -q --name web)
    """
    from pycrictl.cri.lifecycle.control import check_ids, stop_pods

    ids = check_ids(pods or (), "pod sandbox")
    app = app_context(ctx)
    with app.open_client("runtime") as client:
        Results(app.env).say(f"Stopped sandbox {pod_id}" for pod_id in stop_pods(client, ids))
