"""``kubectl why``."""

from __future__ import annotations

from typing import Final

import typer

from pycrictl.cli import list_options, options
from pycrictl.cli.completion import cluster_names
from pycrictl.cli.context import AppContext
from pycrictl.errors import UsageError
from pycrictl.kubectl.pod_selection import Asked
from pycrictl.kubectl.program import Kubectl
from pycrictl.kubectl.why import look
from pycrictl.show.formats import Format

WATCH_PAUSE_S: Final = 5.0


def why(
    ctx: typer.Context,
    names: cluster_names.Workloads = None,
    namespace: cluster_names.Namespace = None,
    all_namespaces: cluster_names.AllNamespaces = False,
    selector: cluster_names.Selector = None,
    output: list_options.InspectOutput = "table",
    watch: list_options.WatchSurvey = False,
) -> None:
    """Show why pods are not running.

    The first line is the most likely cause, the others are evidence. If several pods are selected,
    each pod with a problem has a line, most severe first. Queries their status, events, image pulls
    and last log lines, and names sources that are not available. Exits with status 0 if no pod has
    a problem, else 1.

    Example: kubectl why web
    """
    app: AppContext = ctx.obj
    asked = Asked(
        tuple(options.named(name, "pod") for name in names or ()),
        options.named(selector, "label selector"),
        options.named(namespace, "namespace"),
        all_namespaces,
    )
    chosen = Format(output)
    if watch and not chosen.is_table:
        raise UsageError("--watch works only with the table")
    kubectl = Kubectl(app.handed_on, app.env.note)
    asked.check()
    list_options.show_survey(
        app,
        chosen,
        lambda: look(kubectl, asked, app.env.wall_clock()),
        watch_pause_s=WATCH_PAUSE_S if watch else None,
        is_named=bool(asked.names),
    )
