"""``pycrictl update-runtime-config``."""

from __future__ import annotations

from typing import Annotated

import typer

from pycrictl.cli import crictl
from pycrictl.cli.context import AppContext
from pycrictl.cri.lifecycle import control
from pycrictl.errors import MissingArgument, UsageError


def update_runtime_config(
    ctx: typer.Context,
    pod_cidr: Annotated[
        str | None,
        typer.Option("--pod-cidr", "-p", metavar="CIDR", help="Address range of the node's pods."),
    ] = None,
) -> None:
    """Update the runtime's configuration.

    Example: pycrictl update-runtime-config --pod-cidr 10.1.0.0/16
    """
    app: AppContext = ctx.obj
    if pod_cidr is None:
        raise MissingArgument("nothing to update", hint="give --pod-cidr")
    if not pod_cidr and not crictl.is_called():
        raise UsageError("--pod-cidr is empty", hint="is a script's variable not set?")
    with app.open_client("runtime") as client:
        control.update_runtime_config(client, pod_cidr=pod_cidr)
    crictl.inform(app.env, "the runtime's configuration was updated")
