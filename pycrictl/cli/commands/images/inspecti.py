"""``pycrictl inspecti``."""

from __future__ import annotations

from typing import Annotated

import typer

from pycrictl.cli import complete, crictl, list_options, options
from pycrictl.cli.context import AppContext
from pycrictl.cri.inspection import status
from pycrictl.cri.lists.images import list_images, parse_filters
from pycrictl.show import inspect_views
from pycrictl.show.inspect_format import InspectFormat


def inspecti(
    ctx: typer.Context,
    images: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[IMAGE]...",
            autocompletion=complete.images,
            help="References or IDs (default: what the options select).",
            show_default=False,
        ),
    ] = None,
    filters: list_options.ImageFilters = None,
    name: Annotated[
        str,
        typer.Option("--name", metavar="NAME", help="Only images with this name."),
    ] = "",
    output: list_options.InspectOutput = "json",
    quiet: list_options.NoInfo = False,
    template: list_options.Template = "",
) -> None:
    """Show the details of images.

    If one of them fails, nothing is shown.

    Example: pycrictl inspecti --output yaml docker.io/library/busybox:1.36
    """
    app: AppContext = ctx.obj
    chosen = InspectFormat(output, template=template)
    conditions = parse_filters(options.split_list(filters), is_exact=crictl.is_called())
    targets = status.checked(images or (), "image")
    with app.open_client("image") as client:
        if not targets:
            targets = [image.id for image in list_images(client, name, conditions)]
        statuses = status.image_statuses(client, targets, verbose=not quiet, is_listed=not images)
        chosen.write(
            status.at_least_one(statuses, "image"),
            inspect_views.image_document,
            lambda answer: inspect_views.image_status_block(answer.image, answer.info),
            app.env.stdout,
        )
