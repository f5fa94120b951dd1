"""``pycrictl events``."""

from __future__ import annotations

from typing import Annotated

import typer

from pycrictl._proto import cri_pb2
from pycrictl.cli import crictl, list_options, options
from pycrictl.cli.context import AppContext
from pycrictl.errors import ExitCode, UsageError
from pycrictl.show.gotemplate import TemplateError
from pycrictl.show.inspect_format import DOCUMENT_FORMATS, InspectFormat


def events(
    ctx: typer.Context,
    output: Annotated[
        str,
        options.formats("json", "yaml", "go-template", "jsonpath=TEMPLATE"),
    ] = "json",
    template: list_options.Template = "",
) -> None:
    """Show container events as they happen.

    The exit status is 0 if the runtime ends the stream, and 130 after Ctrl-C.

    Example: pycrictl events -o go-template --template '{{.containerEventType}}'
    """
    app: AppContext = ctx.obj
    chosen = InspectFormat(output, template=template, formats=DOCUMENT_FORMATS)
    if template and not chosen.is_template:
        raise UsageError("--template needs --output go-template")
    has_failed = False
    with app.open_client("runtime") as client:
        for event in client.stream("GetContainerEvents", cri_pb2.GetEventsRequest()):
            try:
                chosen.write_message(event, app.env.stdout)
            except TemplateError as error:
                has_failed |= crictl.has_failed(app.env, event.container_id, error.message)
            app.env.stdout.flush()
    app.env.note("the runtime ended the stream of events")
    if has_failed:
        raise typer.Exit(ExitCode.FAILURE)
