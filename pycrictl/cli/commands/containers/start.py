"""``pycrictl start``."""

from __future__ import annotations

import typer

from pycrictl.cli import options
from pycrictl.cli.context import app_context
from pycrictl.cli.results import Results


def start(ctx: typer.Context, containers: options.ContainerIds = None) -> None:
    """Start created containers.

    Containers are taken one after the other; the first failure ends the command. The ID of each is
    printed.

    Example: pycrictl start $(pycrictl ps -aq --state created)
    """
    from pycrictl.cri.lifecycle.control import check_ids, start_containers

    ids = check_ids(containers or (), "container")
    app = app_context(ctx)
    with app.open_client("runtime") as client:
        Results(app.env).say(start_containers(client, ids))
