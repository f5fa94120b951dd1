"""``pycrictl imagefsinfo``."""

from __future__ import annotations

import typer

from pycrictl.cli import list_options
from pycrictl.cli.context import app_context


def imagefsinfo(
    ctx: typer.Context,
    output: list_options.InspectOutput = "json",
    template: list_options.Template = "",
) -> None:
    """Show the disk usage of images.

    Example: pycrictl imagefsinfo --output table
    """
    from pycrictl._proto import cri_pb2
    from pycrictl.show import inspect_views, protodata, render
    from pycrictl.show.inspect_format import InspectFormat

    chosen = InspectFormat(output, template=template)
    app = app_context(ctx)
    with app.open_client("image") as client:
        answer = client.call("ImageFsInfo", cri_pb2.ImageFsInfoRequest())
    if chosen.is_table:
        render.write_lines(inspect_views.image_filesystem_lines(answer), app.env.stdout)
    else:
        chosen.write_document(protodata.status_document(answer), app.env.stdout)
