"""``pycrictl imagefsinfo``."""

from __future__ import annotations

import typer

from pycrictl.cli import listing
from pycrictl.cli.context import app_context


def imagefsinfo(
    ctx: typer.Context,
    output: listing.InspectOutput = "json",
    template: listing.Template = "",
) -> None:
    """Show how much space images take up on the node.

    Example: pycrictl imagefsinfo --output table
    """
    from pycrictl._proto import cri_pb2
    from pycrictl.show import documents, inspections, render
    from pycrictl.show.details import DetailFormat

    chosen = DetailFormat(output, template=template)
    app = app_context(ctx)
    with app.open_client("image") as client:
        answer = client.call("ImageFsInfo", cri_pb2.ImageFsInfoRequest())
    if chosen.is_table:
        render.write_lines(inspections.image_filesystem_lines(answer), app.env.stdout)
    else:
        chosen.write_document(documents.status_document(answer), app.env.stdout)
