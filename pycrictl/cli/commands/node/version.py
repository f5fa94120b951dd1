"""``pycrictl version``."""

from __future__ import annotations

import typer

from pycrictl._proto import cri_pb2
from pycrictl.cli import options
from pycrictl.cli.context import AppContext
from pycrictl.cri.inspection import answers
from pycrictl.show import list_views, render
from pycrictl.show.inspect_format import InspectFormat


def version(ctx: typer.Context, output: options.Output = "table") -> None:
    """Show the runtime's name and version.

    Example: pycrictl version
    """
    app: AppContext = ctx.obj
    chosen = InspectFormat(output, formats=options.OUTPUT_FORMATS)
    with app.open_client("runtime") as client:
        answer = client.call("Version", cri_pb2.VersionRequest(version="v1"))
    answers.check(answer, "Version")
    if chosen.is_table:
        render.write_lines(list_views.version_lines(answer), app.env.stdout)
    else:
        chosen.write_message(answer, app.env.stdout)
