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
            help="ID, start of an ID, name, or NAMESPACE/NAME; without one: all pulls on the node.",
            show_default=False,
        ),
    ] = None,
    container: Annotated[
        str | None,
        typer.Option("--container", "-c", metavar="CONTAINER", help="Only for this container."),
    ] = None,
    image: Annotated[
        str | None, typer.Option("--image", metavar="IMAGE", help="Only pulls of this image.")
    ] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Keep watching when no pull is left, until Ctrl-C."),
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
            help="Pause between two looks (default: 0.25 for bars, else 1).",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show the progress of image pulls, whoever started them.

    Ends when nothing is being pulled any more: with status 0, or 1 if a pull failed.
    Ctrl-C ends only the watch (130), never a pull.

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
    outlet = app.outlet(progress, stdout="progress")
    display = open_display(outlet, aggregate=aggregate)
    pace = Pace(interval_s=interval or outlet.interval_s, follow=follow)
    with app.open_client("runtime") as client:
        try:
            watch.watch(client, request, display, pace)
        finally:
            display.close()


def _named(name: str | None, kind: str) -> str:
    """Return what was named, empty if nothing was.

    Raises:
        UsageError: the name is empty, which would stand for every pull of the node.
    """
    if name == "":
        raise UsageError(f"the name of the {kind} is empty", hint="is a script's variable not set?")
    return name or ""
