"""``pycrictl update-runtime-config``."""

from __future__ import annotations

from typing import Annotated

import typer

from pycrictl.cli.context import app_context
from pycrictl.errors import UsageError


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
    from pycrictl.cri.lifecycle import control

    if pod_cidr is None:
        raise UsageError("nothing to update", hint="give --pod-cidr")
    if not pod_cidr:
        raise UsageError("--pod-cidr is empty", hint="is a script's variable not set?")
    with app_context(ctx).open_client("runtime") as client:
        control.update_runtime_config(client, pod_cidr=pod_cidr)
