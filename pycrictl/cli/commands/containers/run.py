"""``pycrictl run``."""

from __future__ import annotations

import typer

from pycrictl.cli import launch_options, options
from pycrictl.cli.context import AppContext
from pycrictl.cri.lifecycle.launch import run_container


def run(
    ctx: typer.Context,
    container_config: options.ContainerFile,
    pod_config: options.PodFile,
    auth: options.Auth = "",
    cancel_timeout: options.CancelTimeout = 0.0,
    creds: options.Creds = "",
    no_pull: options.NoPull = False,
    pull_timeout: options.PullTimeout = 0.0,
    runtime: options.RuntimeHandler = "",
    username: options.Username = "",
    with_pull: options.WithPull = False,
) -> None:
    """Run a container in a new pod sandbox.

    Its images are pulled first, unless --no-pull is given or the configuration sets
    disable-pull-on-run. The container's ID is printed. If a step fails, the new pod sandbox is
    removed again.

    Example: pycrictl run --no-pull container.yaml pod.yaml
    """
    app: AppContext = ctx.obj
    pull_options = launch_options.PullOptions(
        auth, creds, username, no_pull, with_pull, pull_timeout
    )
    with launch_options.prepared(
        app,
        container_config,
        pod_config,
        pulls=pull_options.decide(not app.config.disable_pull_on_run.value),
        pull_options=pull_options,
        cancel_timeout_s=cancel_timeout,
    ) as (client, launch):
        app.env.stdout.write(f"{run_container(client, launch, handler=runtime)}\n")
