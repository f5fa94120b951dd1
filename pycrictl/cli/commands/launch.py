"""``create``, ``run`` and ``runp``: files, credentials and connections."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Final

import typer

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import UsageError
from pycrictl.cli import options
from pycrictl.cli.context import AppContext
from pycrictl.cli.pulling import (
    CredentialOptions,
    LoginOptions,
    pull_image,
    shown,
    worded_sandbox,
)
from pycrictl.pulls.own.image import pull_many
from pycrictl.runtime.cri.calls.client import CriClient
from pycrictl.runtime.cri.configurations import load_container, load_pod
from pycrictl.runtime.cri.lifecycle.control import Launch, create_container, run_container, run_pod
from pycrictl.runtime.cri.lists.lookup import Lookup

CANCEL_FLAG: Final = "--cancel-timeout"


@dataclass(frozen=True, slots=True)
class PullOptions(LoginOptions):
    """The options of ``create`` and ``run`` about pulls of the container's images."""

    no_pull: Annotated[
        bool, typer.Option("--no-pull", help="Do not pull the container's images.")
    ] = False
    with_pull: Annotated[bool, typer.Option("--with-pull", help="Pull the container's images.")] = (
        False
    )
    pull_timeout: options.PullTimeout = 0.0

    def __post_init__(self) -> None:
        if self.no_pull and self.with_pull:
            raise UsageError("--no-pull and --with-pull cannot be combined")

    def decide(self, by_default: bool) -> bool:
        return self.with_pull or (by_default and not self.no_pull)


@contextmanager
def _clients(
    app: AppContext, cancel_timeout_s: float, *, needs_images: bool = False
) -> Iterator[tuple[CriClient, CriClient]]:
    with app.open_clients(needs_images=needs_images) as (client, images):
        if cancel_timeout_s:
            client.timeout_s, client.timeout_flag = cancel_timeout_s, CANCEL_FLAG
        yield client, images


@contextmanager
def _prepared(
    app: AppContext, files: tuple[str, str], how: PullOptions, timeout_s: float, *, pulls: bool
) -> Iterator[tuple[CriClient, Launch]]:
    """Read the container and pod files, then connect: nothing is sent if a file is invalid."""
    container = load_container(files[0])
    pod = load_pod(files[1], app.env.warn)
    auth = how.make(app) if pulls else None
    with _clients(app, timeout_s, needs_images=pulls) as (client, images):

        def pull(request: cri_pb2.PullImageRequest) -> str:
            pull_one = partial(
                pull_image,
                timeout_s=how.pull_timeout,
                keyring=CredentialOptions().keyring(app),
                persona=app.persona,
            )
            show = shown(app.outlet("auto", stdout="result"))
            (outcome,) = pull_many(images, [request], pull_one, parallel=1, show=show)
            if outcome.error is not None:
                raise outcome.error
            return outcome.reference

        before = pull if pulls else None
        yield client, Launch(container, pod, pull=before, auth=auth)


@options.with_records
def create(
    ctx: typer.Context,
    *,
    pod: options.Pod,
    container_config: options.ContainerFile,
    pod_config: options.PodFile,
    pulling: PullOptions,
    cancel_timeout: options.CancelTimeout = 0.0,
) -> None:
    """Create a container in a pod sandbox.

    With --with-pull, or if the configuration sets pull-image-on-create, its images are pulled
    first. The container's ID is printed.

    Example: pycrictl create web container.yaml pod.yaml
    """
    app: AppContext = ctx.obj
    options.named(pod, "pod sandbox")
    pulls = pulling.decide(app.config.pull_image_on_create)
    files = container_config, pod_config
    with _prepared(app, files, pulling, cancel_timeout, pulls=pulls) as (client, launch):
        pod_id = Lookup(client).resolve(pod, "pod").id
        app.env.stdout.write(f"{create_container(client, pod_id, launch)}\n")


@options.with_records
def run(
    ctx: typer.Context,
    *,
    container_config: options.ContainerFile,
    pod_config: options.PodFile,
    pulling: PullOptions,
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
    with _prepared(app, files, pulling, cancel_timeout, pulls=pulls) as (client, launch):
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
        _clients(app, cancel_timeout) as (client, _),
        worded_sandbox(config.metadata.name, app.persona),
    ):
        pod_id = run_pod(client, config, handler=runtime)
    app.env.stdout.write(f"{pod_id}\n")
