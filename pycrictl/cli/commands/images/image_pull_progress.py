"""``pycrictl image-pull-progress``."""

from __future__ import annotations

from typing import Annotated

import typer

from pycrictl.cli import options
from pycrictl.cli.context import app_context
from pycrictl.errors import UsageError


def image_pull_progress(
    ctx: typer.Context,
    pod: Annotated[
        str | None,
        typer.Argument(
            metavar="[POD]",
            help="ID or its beginning, name, or NAMESPACE/NAME; without one: all on the node.",
            show_default=False,
        ),
    ] = None,
    container: Annotated[
        str | None,
        typer.Option("--container", "-c", metavar="CONTAINER", help="Only of this container."),
    ] = None,
    image: Annotated[
        str | None, typer.Option("--image", metavar="IMAGE", help="Only pulls of this image.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on when nothing is pulled, until Ctrl-C.")
    ] = False,
    aggregate: Annotated[bool, typer.Option("--aggregate", help="Show only the total.")] = False,
    progress: options.Progress = "auto",
    source: Annotated[
        str,
        typer.Option(
            "--source",
            metavar="auto|cri|containerd",
            help="Ask the runtime's ImagePullProgress, or containerd's own API.",
        ),
    ] = "auto",
    interval: Annotated[
        float | None,
        typer.Option(
            "--interval",
            **options.INTERVAL,
            help="Pause between looks (default: 0.25 on a terminal, else 1).",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show the progress of image pulls, whoever started them.

    Ends when nothing is being pulled any more: with status 0, or 1 if a pull failed.
    Ctrl-C ends the watch only (130), never the pull.

    Example: pycrictl image-pull-progress default/web
    """
    from pycrictl.progress import watch
    from pycrictl.progress.sources import Pace
    from pycrictl.show.displays.pulls import open_display

    app = app_context(ctx)
    request = watch.WatchRequest(
        pod=_named(pod, "pod"),
        container=_named(container, "container"),
        image=_named(image, "image"),
        source=source,
    )
    display = open_display(
        app.progress_mode(progress),
        stderr=app.env.stderr,
        stdout=app.env.stdout,
        environ=app.env.environ,
        aggregate=aggregate,
        wall_clock=app.env.wall_clock,
    )
    default_s = 0.25 if app.env.stderr_is_terminal and progress in ("auto", "bar") else 1.0
    pace = Pace(interval_s=interval or default_s, follow=follow)
    with app.open_client("runtime") as client:
        try:
            watch.watch(client, request, display, pace)
        finally:
            display.close()


def _named(name: str | None, kind: str) -> str:
    """What was named, empty if nothing was.

    Raises:
        UsageError: the name is empty, which would stand for every pull of the node.
    """
    if name == "":
        raise UsageError(f"the name of the {kind} is empty", hint="is a script's variable not set?")
    return name or ""
