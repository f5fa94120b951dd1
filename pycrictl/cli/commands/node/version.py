"""``pycrictl version``."""

from __future__ import annotations

import typer

from pycrictl.cli.context import app_context


def version(ctx: typer.Context) -> None:
    """Show the runtime's name and version.

    Example: pycrictl version
    """
    from pycrictl._proto import cri_pb2
    from pycrictl.cri.inspection import answers
    from pycrictl.show import list_views, render

    app = app_context(ctx)
    with app.open_client("runtime") as client:
        answer = client.call("Version", cri_pb2.VersionRequest(version="v1"))
    answers.check(answer, "Version")
    render.write_lines(list_views.version_lines(answer), app.env.stdout)
