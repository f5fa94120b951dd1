"""``pycrictl imagefsinfo``."""

from __future__ import annotations

from typing import Annotated

import typer

from pycrictl._proto import cri_pb2
from pycrictl.cli import list_options, options
from pycrictl.cli.context import AppContext
from pycrictl.cri.inspection.disk import space
from pycrictl.show import inspect_views, protodata, render
from pycrictl.show.inspect_format import INSPECT_FORMATS, InspectFormat


def imagefsinfo(
    ctx: typer.Context,
    output: Annotated[
        str,
        options.formats(
            "json",
            "yaml",
            "go-template",
            "table",
            "wide",
            "jsonpath=TEMPLATE",
            help="Output format; wide also shows the free space.",
        ),
    ] = "json",
    template: list_options.Template = "",
    no_headers: list_options.NoHeaders = False,
) -> None:
    """Show the disk usage of images.

    Example: pycrictl imagefsinfo --output wide
    """
    app: AppContext = ctx.obj
    chosen = InspectFormat(output, template=template, formats=(*INSPECT_FORMATS, "wide"))
    with app.open_client("image") as client:
        answer = client.call("ImageFsInfo", cri_pb2.ImageFsInfoRequest())
    if chosen.is_wide:
        table = inspect_views.image_filesystems_table(answer, space)
        render.write_table(table, app.env.stdout, header=not no_headers)
    elif chosen.is_table:
        render.write_lines(inspect_views.image_filesystem_lines(answer), app.env.stdout)
    else:
        chosen.write_document(protodata.status_document(answer), app.env.stdout)
