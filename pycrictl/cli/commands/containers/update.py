"""``pycrictl update``."""

from __future__ import annotations

from typing import Annotated, Any

from pycrictl.cli import crictl, options
from pycrictl.cli.context import AppContext
from pycrictl.cli.declare import Option
from pycrictl.cli.results import Results
from pycrictl.errors import UsageError

_LIMIT: dict[str, Any] = {**options.INTEGER, "show_default": False}
_SCORE: dict[str, Any] = {**options.value_of(crictl.score, "INT"), "show_default": False}


def update(
    app: AppContext,
    containers: options.ContainerIds = None,
    cpu_count: Annotated[
        int | None, Option("--cpu-count", **_LIMIT, help="Windows only; ignored here.")
    ] = None,
    cpu_maximum: Annotated[
        int | None, Option("--cpu-maximum", **_LIMIT, help="Windows only; ignored here.")
    ] = None,
    cpu_period: Annotated[
        int | None, Option("--cpu-period", **_LIMIT, help="CFS period in microseconds.")
    ] = None,
    cpu_quota: Annotated[
        int | None, Option("--cpu-quota", **_LIMIT, help="CFS quota in microseconds.")
    ] = None,
    cpu_share: Annotated[
        int | None, Option("--cpu-share", **_LIMIT, help="Relative CPU weight (shares).")
    ] = None,
    cpuset_cpus: Annotated[
        str | None, Option("--cpuset-cpus", metavar="LIST", help="CPUs, such as 0-2,7.")
    ] = None,
    cpuset_mems: Annotated[
        str | None, Option("--cpuset-mems", metavar="LIST", help="Memory nodes, such as 0-1.")
    ] = None,
    memory: Annotated[
        int | None, Option("--memory", **_LIMIT, help="Memory limit in bytes.")
    ] = None,
    oom_score_adj: Annotated[
        int | None,
        Option("--oom-score-adj", **_SCORE, help="OOM score adjustment, from -1000 to 1000."),
    ] = None,
) -> None:
    """Change the resource limits of containers.

    Containers are taken one after the other; the first failure ends the command. The ID of each is
    printed.

    Example: pycrictl update --memory 67108864 web
    """
    from pycrictl.cri.lifecycle.control import Resources, check_ids, update_containers
    from pycrictl.cri.lists import lookup

    words = check_ids(containers or (), "container")
    resources = Resources(
        cpu_period=cpu_period,
        cpu_quota=cpu_quota,
        cpu_shares=cpu_share,
        memory_limit_in_bytes=memory,
        oom_score_adj=oom_score_adj,
        cpuset_cpus=cpuset_cpus or None,
        cpuset_mems=cpuset_mems or None,
    )
    if oom_score_adj is not None and not -1000 <= oom_score_adj <= 1000:
        raise UsageError("--oom-score-adj must be from -1000 to 1000")
    if resources.is_empty and not crictl.is_called():
        if "" in (cpuset_cpus, cpuset_mems):
            raise UsageError("every limit is empty", hint="is a script's variable not set?")
        raise UsageError("nothing to update", hint="give a limit, such as --memory")
    is_for_windows = cpu_count is not None or cpu_maximum is not None
    if is_for_windows and not crictl.is_called():
        app.env.warn("--cpu-count and --cpu-maximum are for Windows and are ignored")
    with app.open_client("runtime") as client:
        found = lookup.targets(client, words, "container")
        Results(app.env).say(update_containers(client, found, resources))
