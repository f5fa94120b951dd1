"""``pycrictl runp``."""

from __future__ import annotations

import typer

from pycrictl.cli import launch_options, options
from pycrictl.cli.context import AppContext
from pycrictl.cri.lifecycle.launch import run_pod


def runp(
    ctx: typer.Context,
    pod_config: options.PodFile,
    cancel_timeout: options.CancelTimeout = 0.0,
    runtime: options.RuntimeHandler = "",
) -> None:
    """Start a new pod sandbox.

    The pod sandbox's ID is printed.

    Example: pycrictl runp pod.yaml
    """
    app: AppContext = ctx.obj
    config = launch_options.load_pod(app, pod_config)
    flag = launch_options.timeout_flag(cancel_timeout)
    with launch_options.launch_clients(app, cancel_timeout) as (client, _):
        pod_id = run_pod(client, config, handler=runtime, timeout_flag=flag)
    app.env.stdout.write(f"{pod_id}\n")
