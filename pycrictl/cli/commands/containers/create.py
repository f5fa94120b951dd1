"""``pycrictl create``."""

from __future__ import annotations

from typing import Annotated

import typer

from pycrictl.cli import complete, launch_options, options
from pycrictl.cli.context import AppContext
from pycrictl.cri.lifecycle.launch import create_container
from pycrictl.cri.lists.lookup import Lookup
from pycrictl.errors import UsageError


def create(
    ctx: typer.Context,
    pod: Annotated[
        str,
        typer.Argument(
            metavar="POD",
            autocompletion=complete.pods,
            help="ID or name of the pod.",
            show_default=False,
        ),
    ],
    container_config: options.ContainerFile,
    pod_config: options.PodFile,
    auth: options.Auth = "",
    cancel_timeout: options.CancelTimeout = 0.0,
    creds: options.Creds = "",
    no_pull: options.NoPull = False,
    pull_timeout: options.PullTimeout = 0.0,
    username: options.Username = "",
    with_pull: options.WithPull = False,
) -> None:
    """Create a container in a pod sandbox.

    With --with-pull, or if the configuration sets pull-image-on-create, its images are pulled
    first. The container's ID is printed.

    Example: pycrictl create web container.yaml pod.yaml
    """
    app: AppContext = ctx.obj
    if not pod:
        raise UsageError("the pod sandbox ID is empty")
    pull_options = launch_options.PullOptions(
        auth, creds, username, no_pull, with_pull, pull_timeout
    )
    with launch_options.prepared(
        app,
        container_config,
        pod_config,
        pulls=pull_options.decide(app.config.pull_image_on_create.value),
        pull_options=pull_options,
        cancel_timeout_s=cancel_timeout,
    ) as (client, launch):
        app.env.stdout.write(f"{create_container(client, Lookup(client).pod_id(pod), launch)}\n")
