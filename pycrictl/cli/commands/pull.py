"""``pycrictl pull``."""

from __future__ import annotations

import os
from functools import partial
from typing import Annotated, Final

import typer

from pycrictl._proto import cri_pb2
from pycrictl.base.config import read_text
from pycrictl.base.errors import ConfigError, RuntimeFault, UsageError, reason_of
from pycrictl.base.units import quote_path
from pycrictl.cli import complete, options
from pycrictl.cli.context import AppContext, Results
from pycrictl.cli.pulling import CredentialOptions, LoginOptions, pull_image, shown
from pycrictl.pulls.own.image import PullOutcome, SharedLimit, images_in, pull_many
from pycrictl.pulls.own.slots import MAX_LIMIT, default_directory
from pycrictl.runtime.cri.configurations import load_pod
from pycrictl.show.render import Table, write_table

MAX_PARALLEL: Final = 100


@options.with_records
def pull(
    ctx: typer.Context,
    *,
    images: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="IMAGE...", autocompletion=complete.images, help="NAME[:TAG] or NAME@DIGEST."
        ),
    ] = None,
    annotation: Annotated[
        list[str] | None,
        typer.Option(
            "--annotation", "-a", metavar="KEY=VALUE", help="Annotation of the image; repeatable."
        ),
    ] = None,
    login: LoginOptions,
    pod_config: Annotated[
        str | None,
        options.file_option("--pod-config", help="Pull for the pod in this JSON or YAML file."),
    ] = None,
    pull_timeout: options.PullTimeout = 0.0,
    credentials: CredentialOptions,
    progress: options.Progress = "auto",
    max_parallel_image_pulls: Annotated[
        int,
        options.int_option(
            "--max-parallel-image-pulls",
            help="Limit on parallel pulls by all pycrictl processes on the node; 0: no limit. "
            "With a limit, images already present are not pulled again.",
        ),
    ] = 0,
    from_: Annotated[
        str,
        options.file_option(
            "--from",
            help="Pull the images in FILE, one per line; - is stdin.",
        ),
    ] = "",
    parallel: Annotated[
        int,
        typer.Option(
            "--parallel",
            help="Pull this many images at once (default: the limit, else 1).",
            show_default=False,
            parser=options.natural,
            metavar="INT",
        ),
    ] = 0,
) -> None:
    """Pull images from a registry.

    Prints each image's reference on stdout; progress goes to stderr. With --from, prints a table of
    results at the end instead.

    Example: pycrictl pull docker.io/library/busybox:1.36
    """
    app: AppContext = ctx.obj
    if from_:
        if images:
            raise UsageError("--from and images as arguments cannot be combined")
        images = _listed(app, from_)
    if parallel > MAX_PARALLEL:
        raise UsageError(f"--parallel must be at most {MAX_PARALLEL}")
    images = options.some_named(images, "image")
    outlet = app.outlet(progress, stdout="result")
    sandbox_config = None if pod_config is None else load_pod(pod_config, app.env.warn)
    annotations = options.split_pairs(app, annotation, "--annotation")
    auth = login.make(app)
    requests = [
        cri_pb2.PullImageRequest(
            image=cri_pb2.ImageSpec(image=image, annotations=annotations),
            auth=auth,
            sandbox_config=sandbox_config,
        )
        for image in images
    ]
    results = Results(app)
    at_once = min(parallel or max_parallel_image_pulls or 1, MAX_PARALLEL, len(requests))
    keyring = credentials.keyring(app) if auth is None else None
    pull_one = partial(
        pull_image,
        timeout_s=pull_timeout,
        limit=_shared_limit(app, max_parallel_image_pulls),
        keyring=keyring,
        persona=app.persona,
    )

    def report(outcome: PullOutcome) -> None:
        if outcome.error is not None:
            if not isinstance(outcome.error, RuntimeFault | UsageError | ConfigError):
                raise outcome.error
            if app.persona.is_crictl:
                outcome.error.message = f"pulling image: {outcome.error.message}"
            results.fail(outcome.error)
        else:
            results.say([f"Image is up to date for {outcome.reference}"])

    # Images pulled one after the other each have a display, and print their line at once.
    is_together = at_once > 1 or bool(from_)
    outcomes: list[PullOutcome] = []
    with app.open_client("image") as client:
        for group in [requests] if is_together else [[request] for request in requests]:
            ended = pull_many(client, group, pull_one, parallel=at_once, show=shown(outlet))
            outcomes += ended
            for outcome in () if from_ else ended:
                report(outcome)
    if from_:
        rows = [(outcome.image, outcome.words, f"{outcome.took_s:.1f} s") for outcome in outcomes]
        write_table(Table(("IMAGE", "RESULT", "TIME"), rows, min_width=0), app.env.stdout)
        results.has_failed = any(outcome.error is not None for outcome in outcomes)
    results.finish()


def _shared_limit(app: AppContext, limit: int) -> SharedLimit | None:
    if not 0 <= limit <= MAX_LIMIT:
        raise UsageError(f"--max-parallel-image-pulls must be from 0 to {MAX_LIMIT}")
    if not limit:
        return None

    directory = default_directory(app.env.environ, os.geteuid())
    return SharedLimit(limit, directory, lambda: app.env.note("waiting for another pull to end"))


def _listed(app: AppContext, path: str) -> list[str]:
    name = "standard input" if path == "-" else quote_path(path)
    try:
        return images_in(app.env.stdin.read() if path == "-" else read_text(path))
    except OSError as exc:
        raise ConfigError(f"cannot read {name}: {reason_of(exc)}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{name}: it is not UTF-8 text") from None
    except ConfigError as exc:
        raise ConfigError(f"{name}: {exc.message}", hint=exc.hint) from None
