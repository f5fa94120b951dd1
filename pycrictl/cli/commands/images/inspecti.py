"""``pycrictl inspecti``."""

from __future__ import annotations

from typing import Annotated

import typer

from pycrictl.cli import listing, options
from pycrictl.cli.context import app_context


def inspecti(
    ctx: typer.Context,
    images: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[IMAGE]...",
            help="References or IDs; without any: those selected by the options.",
            show_default=False,
        ),
    ] = None,
    filters: listing.ImageFilters = None,
    name: Annotated[
        str,
        typer.Option("--name", metavar="NAME", help="Only images with this name."),
    ] = "",
    output: listing.InspectOutput = "json",
    quiet: listing.NoInfo = False,
    template: listing.Template = "",
) -> None:
    """Show all that is known about images.

    If one of them fails, nothing is shown.

    Example: pycrictl inspecti --output yaml docker.io/library/busybox:1.36
    """
    from pycrictl.cri.inspection import status
    from pycrictl.cri.lists.images import list_images, parse_filters
    from pycrictl.show import inspections
    from pycrictl.show.details import DetailFormat

    chosen = DetailFormat(output, template=template)
    conditions = parse_filters(options.split_list(filters))
    app = app_context(ctx)
    targets = status.checked(images or (), "image")
    with app.open_client("image") as client:
        if not targets:
            targets = [image.id for image in list_images(client, name, conditions)]
        statuses = status.image_statuses(client, targets, verbose=not quiet, is_listed=not images)
        chosen.write(
            listing.found_any(statuses, "image"),
            inspections.image_document,
            lambda answer: inspections.image_status_block(answer.image, answer.info),
            app.env.stdout,
        )
