"""``pycrictl info``."""

from __future__ import annotations

from typing import Annotated

from pycrictl.cli import list_options
from pycrictl.cli.context import AppContext
from pycrictl.cli.declare import Option


def info(
    app: AppContext,
    output: Annotated[
        str,
        Option(
            "--output",
            "-o",
            metavar="json|yaml|go-template|jsonpath=TEMPLATE",
            help="Output format.",
        ),
    ] = "json",
    quiet: list_options.NoInfo = False,
    template: list_options.Template = "",
) -> None:
    """Show the status and configuration of the runtime.

    Example: pycrictl info --quiet
    """
    from pycrictl._proto import cri_pb2
    from pycrictl.cri.inspection import answers
    from pycrictl.show import inspect_views
    from pycrictl.show.inspect_format import DOCUMENT_FORMATS, InspectFormat

    chosen = InspectFormat(output, template=template, formats=DOCUMENT_FORMATS)
    with app.open_client("runtime") as client:
        answer = client.call("Status", cri_pb2.StatusRequest(verbose=not quiet))
    answers.check_conditions(answer.status, "Status")
    chosen.write_document(inspect_views.runtime_document(answer), app.env.stdout)
