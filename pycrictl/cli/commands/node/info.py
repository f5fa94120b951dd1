"""``pycrictl info``."""

from __future__ import annotations

from typing import Annotated

import typer

from pycrictl.cli import listing
from pycrictl.cli.context import app_context


def info(
    ctx: typer.Context,
    output: Annotated[
        str,
        typer.Option("--output", "-o", metavar="json|yaml|go-template", help="Output format."),
    ] = "json",
    quiet: listing.NoInfo = False,
    template: listing.Template = "",
) -> None:
    """Show the state and the settings of the runtime.

    Example: pycrictl info --quiet
    """
    from pycrictl._proto import cri_pb2
    from pycrictl.cri.inspection import answers
    from pycrictl.show import inspections
    from pycrictl.show.details import DOCUMENT_FORMATS, DetailFormat

    chosen = DetailFormat(output, template=template, formats=DOCUMENT_FORMATS)
    app = app_context(ctx)
    with app.open_client("runtime") as client:
        answer = client.call("Status", cri_pb2.StatusRequest(verbose=not quiet))
    answers.check_conditions(answer.status, "Status")
    chosen.write_document(inspections.runtime_document(answer), app.env.stdout)
