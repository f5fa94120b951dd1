"""``pycrictl runtime-config``."""

from __future__ import annotations

import typer

from pycrictl.cli.context import app_context


def runtime_config(ctx: typer.Context) -> None:
    """Show the settings that kubelet takes from the runtime.

    Example: pycrictl runtime-config
    """
    from pycrictl._proto import cri_pb2
    from pycrictl.show import list_views, render

    app = app_context(ctx)
    with app.open_client("runtime") as client:
        answer = client.call("RuntimeConfig", cri_pb2.RuntimeConfigRequest())
    table = list_views.runtime_config_table(answer)
    if table is not None:
        render.write_table(table, app.env.stdout)
