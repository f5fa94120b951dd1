"""``pycrictl inspectp``."""

from __future__ import annotations

from typing import Annotated

import typer

from pycrictl.cli import listing, options
from pycrictl.cli.context import app_context


def inspectp(
    ctx: typer.Context,
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[POD-ID]...",
            help="IDs or their beginnings; without any: those that the options select.",
            show_default=False,
        ),
    ] = None,
    labels: listing.Labels = None,
    last: listing.Last = 0,
    latest: listing.Latest = False,
    name: listing.Name = "",
    namespace: listing.Namespace = "",
    output: listing.InspectOutput = "json",
    quiet: listing.NoInfo = False,
    state: listing.PodState = "",
    template: listing.Template = "",
) -> None:
    """Show all that is known of pod sandboxes.

    Nothing is shown when one of them fails.

    Example: pycrictl inspectp --name '^web$' --state ready
    """
    from pycrictl.cri.inspection import status
    from pycrictl.cri.lists.pods import list_pods, pod_query
    from pycrictl.show import inspections
    from pycrictl.show.details import DetailFormat

    chosen = DetailFormat(output, template=template)
    query = pod_query(
        labels=options.split_pairs(labels, "--label"),
        last=last,
        latest=latest,
        name=name,
        namespace=namespace,
        state=state,
    )
    app = app_context(ctx)
    targets = status.checked(ids or (), "pod")
    with app.open_client("runtime") as client:
        if not targets:
            targets = [pod.id for pod in list_pods(client, query)]
        statuses = status.pod_statuses(client, targets, verbose=not quiet, is_listed=not ids)
        chosen.write(
            listing.found_any(statuses, "pod"),
            inspections.pod_document,
            lambda answer: inspections.pod_status_block(answer.status, answer.info),
            app.env.stdout,
        )
