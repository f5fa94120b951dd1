"""``pycrictl inspectp``."""

from __future__ import annotations

from typing import Annotated

import typer

from pycrictl.cli import complete, list_options, options
from pycrictl.cli.context import AppContext
from pycrictl.cri.inspection import status
from pycrictl.cri.lists import lookup
from pycrictl.cri.lists.pods import list_pods, pod_query
from pycrictl.show import inspect_views
from pycrictl.show.inspect_format import InspectFormat


def inspectp(
    ctx: typer.Context,
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[POD]...",
            autocompletion=complete.pods,
            help="IDs or names (default: what the options select).",
            show_default=False,
        ),
    ] = None,
    labels: list_options.Labels = None,
    last: list_options.Last = 0,
    latest: list_options.Latest = False,
    name: list_options.Name = "",
    namespace: list_options.Namespace = "",
    output: list_options.InspectOutput = "json",
    quiet: list_options.NoInfo = False,
    state: list_options.PodState = None,
    template: list_options.Template = "",
) -> None:
    """Show the details of pod sandboxes.

    If one of them fails, nothing is shown.

    Example: pycrictl inspectp --name '^web$' --state ready
    """
    app: AppContext = ctx.obj
    chosen = InspectFormat(output, template=template)
    query = pod_query(
        labels=options.split_pairs(labels, "--label"),
        last=last,
        latest=latest,
        name=name,
        namespace=namespace,
        state=state,
    )
    targets = status.checked(ids or (), "pod")
    with app.open_client("runtime") as client:
        if targets:
            targets = lookup.ids(client, targets, "pod")
        else:
            targets = [pod.id for pod in list_pods(client, query)]
        statuses = status.pod_statuses(client, targets, verbose=not quiet, is_listed=not ids)
        chosen.write(
            status.at_least_one(statuses, "pod"),
            inspect_views.pod_document,
            lambda answer: inspect_views.pod_status_block(answer.status, answer.info),
            app.env.stdout,
        )
