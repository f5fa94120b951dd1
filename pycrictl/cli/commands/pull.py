"""``pycrictl pull``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pycrictl.cli import options
from pycrictl.cli.context import AppContext, app_context
from pycrictl.errors import PycrictlError, RuntimeFault, UsageError

if TYPE_CHECKING:
    from pycrictl._proto import cri_pb2


def pull(
    ctx: typer.Context,
    images: Annotated[
        list[str] | None,
        typer.Argument(metavar="IMAGE...", help="NAME[:TAG] or NAME@DIGEST.", show_default=False),
    ] = None,
    annotation: Annotated[
        list[str] | None,
        typer.Option(
            "--annotation", "-a", metavar="KEY=VALUE", help="Annotation of the image; repeatable."
        ),
    ] = None,
    auth: Annotated[
        str,
        typer.Option(
            "--auth", envvar="CRICTL_AUTH", help="Base64 of USER:PASSWORD.", metavar="B64"
        ),
    ] = "",
    creds: Annotated[
        str,
        typer.Option(
            "--creds", envvar="CRICTL_CREDS", metavar="USER[:PASSWORD]", help="Credentials."
        ),
    ] = "",
    pod_config: Annotated[
        str,
        typer.Option(
            "--pod-config", metavar="FILE", help="Pull for the pod of this JSON or YAML file."
        ),
    ] = "",
    pull_timeout: Annotated[
        float,
        typer.Option(
            "--pull-timeout",
            "-pt",
            envvar="CRICTL_PULL_TIMEOUT",
            help="Limit of each pull; 0s is none.",
            **options.DURATION,
        ),
    ] = 0.0,
    username: Annotated[
        str, typer.Option("--username", "-u", metavar="USER", help="User; asks for the password.")
    ] = "",
    progress: options.Progress = "auto",
) -> None:
    """Pull images from their registry.

    The image's reference is printed on standard output; progress goes to standard error.

    Example: pycrictl pull docker.io/library/busybox:1.36
    """
    from pycrictl._proto import cri_pb2
    from pycrictl.cri.auth import auth_config
    from pycrictl.cri.podconfig import load_pod_config

    if not images:
        raise UsageError("no image is named")
    if pull_timeout < 0:
        raise UsageError("--pull-timeout must not be negative")
    app = app_context(ctx)
    template = cri_pb2.PullImageRequest(
        auth=auth_config(
            creds=creds,
            auth=auth,
            username=username,
            password=app.env.ask_password() if username else "",
        ),
        sandbox_config=load_pod_config(pod_config) if pod_config else None,
    )
    template.image.annotations.update(options.split_pairs(annotation, "--annotation"))
    requests = []
    for image in images:
        request = cri_pb2.PullImageRequest()
        request.CopyFrom(template)
        request.image.image = image
        requests.append(request)
    _pull_all(app, requests, timeout_s=pull_timeout or None, mode=progress)


def _pull_all(
    app: AppContext, requests: list[cri_pb2.PullImageRequest], *, timeout_s: float | None, mode: str
) -> None:
    """Pulls one image after the other; one that fails does not keep back the others."""
    from pycrictl.progress.pull import pull as pull_image
    from pycrictl.show.progress import Display, check_mode, open_display

    def open_sink() -> Display:
        # What progress there is goes to stderr in every mode: stdout is for the references.
        return open_display(
            mode,
            stderr=env.stderr,
            stdout=env.stderr,
            environ=env.environ,
            wall_clock=env.wall_clock,
        )

    env = app.env
    check_mode(mode)
    mode = app.progress_mode(mode)
    if mode == "auto" and not env.stderr_is_terminal:
        mode = "none"
    failures: list[PycrictlError] = []
    with app.open_client("image") as client:
        for request in requests:
            try:
                image_ref = pull_image(
                    client,
                    request,
                    timeout_s=timeout_s,
                    open_sink=None if mode == "none" else open_sink,
                    interval_s=0.25 if env.stderr_is_terminal else 1.0,
                )
            except RuntimeFault as exc:
                failures.append(exc)
            else:
                env.stdout.write(f"Image is up to date for {image_ref}\n")
                env.stdout.flush()
    for failure in failures[:-1]:
        env.error(failure.message, hint=failure.hint)
    if failures:
        raise failures[-1]
