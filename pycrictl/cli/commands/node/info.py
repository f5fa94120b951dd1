"""``pycrictl info``."""

from __future__ import annotations

from typing import Annotated

import typer

from pycrictl._proto import cri_pb2
from pycrictl.cli import list_options, options
from pycrictl.cli.context import AppContext
from pycrictl.cri.inspection import answers
from pycrictl.show import inspect_views
from pycrictl.show.inspect_format import DOCUMENT_FORMATS, InspectFormat


def info(
    ctx: typer.Context,
    output: Annotated[
        str,
        options.formats("json", "yaml", "go-template", "jsonpath=TEMPLATE"),
    ] = "json",
    quiet: list_options.NoInfo = False,
    template: list_options.Template = "",
) -> None:
    """Show the status and configuration of the runtime.

    Example: pycrictl info --quiet
    """
    app: AppContext = ctx.obj
    chosen = InspectFormat(output, template=template, formats=DOCUMENT_FORMATS)
    with app.open_client("runtime") as client:
        answer = client.call("Status", cri_pb2.StatusRequest(verbose=not quiet))
    answers.check_conditions(answer.status, "Status")
    chosen.write_document(inspect_views.runtime_document(answer), app.env.stdout)
