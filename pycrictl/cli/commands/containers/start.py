"""``pycrictl start``."""

from __future__ import annotations

from pycrictl.cli import options
from pycrictl.cli.context import AppContext
from pycrictl.cli.results import Results


def start(app: AppContext, containers: options.ContainerIds = None) -> None:
    """Start created containers.

    Containers are taken one after the other; the first failure ends the command. The ID of each is
    printed.

    Example: pycrictl start $(pycrictl ps -aq --state created)
    """
    from pycrictl.cri.lifecycle.control import check_ids, start_containers
    from pycrictl.cri.lists import lookup

    words = check_ids(containers or (), "container")
    with app.open_client("runtime") as client:
        found = lookup.targets(client, words, "container")
        Results(app.env).say(start_containers(client, found))
