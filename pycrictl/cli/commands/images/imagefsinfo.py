"""``pycrictl imagefsinfo``."""

from __future__ import annotations

from typing import Annotated

from pycrictl.cli import list_options
from pycrictl.cli.context import AppContext
from pycrictl.cli.declare import Option


def imagefsinfo(
    app: AppContext,
    output: Annotated[
        str,
        Option(
            "--output",
            "-o",
            metavar="json|yaml|go-template|table|wide|jsonpath=TEMPLATE",
            help="Output format; wide also shows the free space.",
        ),
    ] = "json",
    template: list_options.Template = "",
    no_headers: list_options.NoHeaders = False,
) -> None:
    """Show the disk usage of images.

    Example: pycrictl imagefsinfo --output wide
    """
    from pycrictl._proto import cri_pb2
    from pycrictl.show import inspect_views, protodata, render
    from pycrictl.show.inspect_format import INSPECT_FORMATS, InspectFormat

    chosen = InspectFormat(output, template=template, formats=(*INSPECT_FORMATS, "wide"))
    with app.open_client("image") as client:
        answer = client.call("ImageFsInfo", cri_pb2.ImageFsInfoRequest())
    if chosen.is_wide:
        from pycrictl.cri.inspection.disk import space

        table = inspect_views.image_filesystems_table(answer, space)
        render.write_table(table, app.env.stdout, header=not no_headers)
    elif chosen.is_table:
        render.write_lines(inspect_views.image_filesystem_lines(answer), app.env.stdout)
    else:
        chosen.write_document(protodata.status_document(answer), app.env.stdout)
