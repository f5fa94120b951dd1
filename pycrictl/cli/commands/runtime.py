"""The runtime itself: ``version``, ``info``, its configuration and its events."""

from __future__ import annotations

from typing import Annotated

import typer

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import ExitCode, MissingArgument, UsageError
from pycrictl.cli import list_options, options
from pycrictl.cli.context import AppContext
from pycrictl.runtime.cri.inspection import statuses
from pycrictl.runtime.cri.lifecycle import control
from pycrictl.show import inspect_views, list_views, render
from pycrictl.show.formats import DOCUMENT_FORMATS, OUTPUT_FORMATS, Format
from pycrictl.show.gotemplate import TemplateError


def version(ctx: typer.Context, output: list_options.Output = "table") -> None:
    """Show the runtime's name and version.

    Example: pycrictl version
    """
    app: AppContext = ctx.obj
    chosen = Format(output, formats=OUTPUT_FORMATS)
    with app.open_client("runtime") as client:
        answer = client.call("Version", cri_pb2.VersionRequest(version="v1"))
    statuses.check(answer, "Version")
    if chosen.is_table:
        render.write_block(list_views.version_block(answer), app.env.stdout, gap="  ")
    else:
        chosen.write_message(answer, app.env.stdout)


def info(
    ctx: typer.Context,
    output: Annotated[str, options.formats(DOCUMENT_FORMATS)] = "json",
    quiet: list_options.NoInfo = False,
    template: list_options.Template = "",
) -> None:
    """Show the status and configuration of the runtime.

    Example: pycrictl info --quiet
    """
    app: AppContext = ctx.obj
    chosen = Format(output, template=template, formats=DOCUMENT_FORMATS)
    with app.open_client("runtime") as client:
        answer = client.call("Status", cri_pb2.StatusRequest(verbose=not quiet))
    statuses.check_conditions(answer.status)
    chosen.write_document(inspect_views.runtime_document(answer), app.env.stdout)


def runtime_config(ctx: typer.Context, output: list_options.Output = "table") -> None:
    """Show the settings that kubelet takes from the runtime.

    Example: pycrictl runtime-config
    """
    app: AppContext = ctx.obj
    chosen = Format(output, formats=OUTPUT_FORMATS)
    with app.open_client("runtime") as client:
        answer = client.call("RuntimeConfig", cri_pb2.RuntimeConfigRequest())
    if not chosen.is_table:
        chosen.write_message(answer, app.env.stdout)
        return
    table = list_views.runtime_config_table(answer)
    if table is not None:
        render.write_table(table, app.env.stdout)


def update_runtime_config(
    ctx: typer.Context,
    pod_cidr: Annotated[
        str | None,
        typer.Option("--pod-cidr", "-p", metavar="CIDR", help="Address range of the node's pods."),
    ] = None,
) -> None:
    """Update the runtime's configuration.

    Example: pycrictl update-runtime-config --pod-cidr 10.1.0.0/16
    """
    app: AppContext = ctx.obj
    if pod_cidr is None:
        raise MissingArgument("nothing to update", hint="give --pod-cidr")
    if not pod_cidr and not app.persona.is_crictl:
        raise UsageError("--pod-cidr is empty", hint="is a script's variable not set?")
    with app.open_client("runtime") as client:
        control.update_runtime_config(client, pod_cidr=pod_cidr)
    app.persona.inform(app.env, "the runtime's configuration was updated")


def events(
    ctx: typer.Context,
    output: Annotated[str, options.formats(DOCUMENT_FORMATS)] = "json",
    template: list_options.Template = "",
) -> None:
    """Show container events as they happen.

    The exit status is 0 if the runtime ends the stream, and 130 after Ctrl-C.

    Example: pycrictl events -o go-template --template '{{.containerEventType}}'
    """
    app: AppContext = ctx.obj
    chosen = Format(output, template=template, formats=DOCUMENT_FORMATS)
    if template and not chosen.is_template:
        raise UsageError("--template needs --output go-template")
    has_failed = False
    with app.open_client("runtime") as client:
        for event in client.stream("GetContainerEvents", cri_pb2.GetEventsRequest()):
            try:
                chosen.write_message(event, app.env.stdout)
            except TemplateError as error:
                has_failed |= app.persona.has_failed(app.env, event.container_id, error.message)
            app.env.stdout.flush()
    app.env.note("the runtime ended the stream of events")
    if has_failed:
        raise typer.Exit(ExitCode.FAILURE)
