"""``pycrictl runp``."""

from __future__ import annotations

import typer

from pycrictl.cli import launching, options
from pycrictl.cli.context import app_context


def runp(
    ctx: typer.Context,
    pod_config: options.PodFile,
    cancel_timeout: options.CancelTimeout = 0.0,
    runtime: options.RuntimeHandler = "",
) -> None:
    """Run a pod sandbox.

    Its ID is printed.

    Example: pycrictl runp pod.yaml
    """
    from pycrictl.cri.lifecycle.launch import run_pod

    app = app_context(ctx)
    config = launching.load_pod(app, pod_config)
    flag = launching.timeout_flag(cancel_timeout)
    with launching.runtime_client(app, cancel_timeout) as client:
        pod_id = run_pod(client, config, handler=runtime, timeout_flag=flag)
    app.env.stdout.write(f"{pod_id}\n")
