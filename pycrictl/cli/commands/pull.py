"""``pycrictl pull``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pycrictl._proto import cri_pb2
from pycrictl.cli import complete, crictl, launch_options, options
from pycrictl.cli.context import AppContext
from pycrictl.cli.pulling import pull_image
from pycrictl.cli.results import Results
from pycrictl.cri.specs.auth import auth_config
from pycrictl.errors import MissingArgument, RuntimeFault, UsageError
from pycrictl.pull.image import Turns
from pycrictl.pull.slots import MAX_LIMIT, Retry, default_directory

if TYPE_CHECKING:
    from pycrictl.pull.image import Turns


def pull(
    ctx: typer.Context,
    images: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="IMAGE...",
            autocompletion=complete.images,
            help="NAME[:TAG] or NAME@DIGEST.",
            show_default=False,
        ),
    ] = None,
    annotation: Annotated[
        list[str] | None,
        typer.Option(
            "--annotation", "-a", metavar="KEY=VALUE", help="Annotation of the image; repeatable."
        ),
    ] = None,
    auth: options.Auth = "",
    creds: options.Creds = "",
    pod_config: Annotated[
        str | None,
        typer.Option(
            "--pod-config",
            metavar="FILE",
            autocompletion=complete.files,
            help="Pull for the pod of this JSON or YAML file.",
        ),
    ] = None,
    pull_timeout: options.PullTimeout = 0.0,
    username: options.Username = "",
    progress: options.Progress = "auto",
    no_manifest: options.NoManifest = False,
    max_parallel_image_pulls: Annotated[
        int,
        typer.Option(
            "--max-parallel-image-pulls",
            help="Limit on parallel pulls by all pycrictl processes on the node; 0: no limit. "
            "With a limit, images already present are not pulled again.",
            parser=options.integer,
            metavar="INT",
        ),
    ] = 0,
    when_full: Annotated[
        Literal["wait", "retry"],
        typer.Option(
            "--when-full",
            help="With a limit: wait in line, or retry a few times.",
        ),
    ] = "wait",
    retry_interval: Annotated[
        float,
        typer.Option(
            "--retry-interval",
            help="With retry: pause between attempts (default: 10s).",
            show_default=False,
            parser=options.duration,
            metavar="DURATION",
        ),
    ] = 10.0,
    retries: Annotated[
        int,
        typer.Option(
            "--retries",
            help="With retry: number of retries.",
            parser=options.integer,
            metavar="INT",
        ),
    ] = 3,
) -> None:
    """Pull images from a registry.

    Prints the image's reference on stdout; progress goes to stderr.

    Example: pycrictl pull docker.io/library/busybox:1.36
    """
    app: AppContext = ctx.obj
    if not images:
        raise MissingArgument("no image given")
    if "" in images:
        raise UsageError("the name of one image is empty", hint="is a script's variable not set?")
    if pull_timeout < 0:
        raise UsageError("--pull-timeout must not be negative")
    outlet = app.outlet(progress, stdout="result")
    sandbox_config = None if pod_config is None else launch_options.load_pod(app, pod_config)
    annotations = options.split_pairs(annotation, "--annotation")
    password = launch_options.ask_password(app) if username else ""
    requests = [
        cri_pb2.PullImageRequest(
            image=cri_pb2.ImageSpec(image=image, annotations=annotations),
            auth=auth_config(creds=creds, auth=auth, username=username, password=password),
            sandbox_config=sandbox_config,
        )
        for image in images
    ]
    turns = None
    if max_parallel_image_pulls:
        turns = _turns(app, max_parallel_image_pulls, when_full, retry_interval, retries)
    results = Results(app.env)
    with app.open_client("image") as client:
        for request in requests:
            try:
                image_ref = pull_image(
                    client,
                    request,
                    outlet,
                    timeout_s=pull_timeout,
                    turns=turns,
                    wants_manifests=not no_manifest,
                )
            except RuntimeFault as error:
                error.message = crictl.pull_failure(error.message)
                results.fail(error)
            else:
                results.say([f"Image is up to date for {image_ref}"])
    results.finish()


def _turns(
    app: AppContext, limit: int, when_full: str, retry_interval_s: float, retries: int
) -> Turns:
    if not 0 < limit <= MAX_LIMIT:
        raise UsageError(f"--max-parallel-image-pulls must be from 0 to {MAX_LIMIT}")
    if retry_interval_s <= 0 or retries < 0:
        raise UsageError("--retry-interval must be positive and --retries not negative")

    def on_wait(place: int) -> None:
        where = f"place {place} in line" if place else "trying again"
        app.env.note(f"waiting for another pull to end: {where}")

    return Turns(
        limit=limit,
        directory=default_directory(app.env.environ, os.geteuid()),
        retry=Retry(retry_interval_s, retries) if when_full == "retry" else None,
        on_wait=on_wait,
    )
