"""``pycrictl start``."""

from __future__ import annotations

from typing import Annotated

import typer

from pycrictl.cli import complete, options
from pycrictl.cli.context import AppContext
from pycrictl.cli.results import Results
from pycrictl.cri.lifecycle.control import check_ids, start_containers
from pycrictl.cri.lists import lookup


def start(
    ctx: typer.Context,
    containers: Annotated[list[str] | None, options.containers(complete.created_containers)] = None,
) -> None:
    """Start created containers.

    Containers are taken one after the other; the first failure ends the command. The ID of each is
    printed.

    Example: pycrictl start $(pycrictl ps -aq --state created)
    """
    app: AppContext = ctx.obj
    words = check_ids(containers or (), "container")
    with app.open_client("runtime") as client:
        found = lookup.targets(client, words, "container")
        Results(app.env).say(start_containers(client, found))
