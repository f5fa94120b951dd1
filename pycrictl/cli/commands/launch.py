"""``create``, ``run`` and ``runp``."""

from __future__ import annotations

import typer

from pycrictl.cli import launch_options, options
from pycrictl.cli.context import AppContext
from pycrictl.cli.pulling import worded_sandbox
from pycrictl.cli.records import with_records
from pycrictl.cri.configurations import load_pod
from pycrictl.cri.lifecycle.launch import create_container, run_container, run_pod
from pycrictl.cri.lists.lookup import Lookup
from pycrictl.errors import UsageError


@with_records
def create(
    ctx: typer.Context,
    *,
    pod: options.Pod,
    container_config: options.ContainerFile,
    pod_config: options.PodFile,
    pulling: launch_options.PullOptions,
    cancel_timeout: options.CancelTimeout = 0.0,
) -> None:
    """Create a container in a pod sandbox.

    With --with-pull, or if the configuration sets pull-image-on-create, its images are pulled
    first. The container's ID is printed.

    Example: pycrictl create web container.yaml pod.yaml
    """
    app: AppContext = ctx.obj
    if not pod:
        raise UsageError("the pod sandbox ID is empty")
    pulls = pulling.decide(app.config.pull_image_on_create)
    files = container_config, pod_config
    with launch_options.prepared(app, files, pulling, cancel_timeout, pulls=pulls) as (
        client,
        launch,
    ):
        pod_id = Lookup(client).found(pod, "pod").id
        app.env.stdout.write(f"{create_container(client, pod_id, launch)}\n")


@with_records
def run(
    ctx: typer.Context,
    *,
    container_config: options.ContainerFile,
    pod_config: options.PodFile,
    pulling: launch_options.PullOptions,
    cancel_timeout: options.CancelTimeout = 0.0,
    runtime: options.RuntimeHandler = "",
) -> None:
    """Run a container in a new pod sandbox.

    Its images are pulled first, unless --no-pull is given or the configuration sets
    disable-pull-on-run. The container's ID is printed. If a step fails, the new pod sandbox is
    removed again.

    Example: pycrictl run --no-pull container.yaml pod.yaml
    """
    app: AppContext = ctx.obj
    pulls = pulling.decide(not app.config.disable_pull_on_run)
    files = container_config, pod_config
    with launch_options.prepared(app, files, pulling, cancel_timeout, pulls=pulls) as (
        client,
        launch,
    ):
        with worded_sandbox(launch.pod.metadata.name, app.persona):
            container_id = run_container(client, launch, handler=runtime)
        app.env.stdout.write(f"{container_id}\n")


def runp(
    ctx: typer.Context,
    pod_config: options.PodFile,
    cancel_timeout: options.CancelTimeout = 0.0,
    runtime: options.RuntimeHandler = "",
) -> None:
    """Start a new pod sandbox.

    Prints the pod sandbox's ID.

    Example: pycrictl runp pod.yaml
    """
    app: AppContext = ctx.obj
    config = load_pod(pod_config, app.env.warn)
    with (
        launch_options.launch_clients(app, cancel_timeout) as (client, _),
        worded_sandbox(config.metadata.name, app.persona),
    ):
        pod_id = run_pod(client, config, handler=runtime)
    app.env.stdout.write(f"{pod_id}\n")
