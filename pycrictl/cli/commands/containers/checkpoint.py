"""``pycrictl checkpoint``."""

from __future__ import annotations

from typing import Annotated

import typer

from pycrictl.cli import complete, options
from pycrictl.cli.context import AppContext
from pycrictl.cli.results import Results
from pycrictl.cri.lifecycle.control import check_ids, checkpoint_containers
from pycrictl.cri.lists import lookup
from pycrictl.errors import UsageError


def checkpoint(
    ctx: typer.Context,
    containers: Annotated[list[str] | None, options.containers(complete.running_containers)] = None,
    export: Annotated[
        str,
        typer.Option(
            "--export",
            "-e",
            metavar="FILE",
            autocompletion=complete.files,
            help="Archive to write on the node.",
        ),
    ] = "",
) -> None:
    """Checkpoint running containers.

    Containers are taken one after the other; the first failure ends the command. The ID of each is
    printed.

    Example: pycrictl checkpoint -e /var/tmp/web.tar web
    """
    app: AppContext = ctx.obj
    words = check_ids(containers or (), "container")
    if not export:
        raise UsageError(
            "--export is missing", hint="name the archive: --export=/path/to/checkpoint.tar"
        )
    if len(words) > 1:
        app.env.warn(f'each checkpoint is written to "{export}": only the last one remains')
    with app.open_client("runtime") as client:
        found = lookup.targets(client, words, "container")
        Results(app.env).say(checkpoint_containers(client, found, path=export))
