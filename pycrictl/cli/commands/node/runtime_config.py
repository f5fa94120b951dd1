"""``pycrictl runtime-config``."""

from __future__ import annotations

import typer

from pycrictl._proto import cri_pb2
from pycrictl.cli import options
from pycrictl.cli.context import AppContext
from pycrictl.show import list_views, render
from pycrictl.show.inspect_format import InspectFormat


def runtime_config(ctx: typer.Context, output: options.Output = "table") -> None:
    """Show the settings that kubelet takes from the runtime.

    Example: pycrictl runtime-config
    """
    app: AppContext = ctx.obj
    chosen = InspectFormat(output, formats=options.OUTPUT_FORMATS)
    with app.open_client("runtime") as client:
        answer = client.call("RuntimeConfig", cri_pb2.RuntimeConfigRequest())
    if not chosen.is_table:
        chosen.write_message(answer, app.env.stdout)
        return
    table = list_views.runtime_config_table(answer)
    if table is not None:
        render.write_table(table, app.env.stdout)
