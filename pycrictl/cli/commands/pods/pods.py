"""``pycrictl pods``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pycrictl.cli import listing, options
from pycrictl.cli.context import app_context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pycrictl._proto import cri_pb2
    from pycrictl.show.render import Table


def pods(
    ctx: typer.Context,
    pod_id: Annotated[
        str, typer.Option("--id", metavar="POD-ID", help="Only the pod sandbox of this ID.")
    ] = "",
    labels: listing.Labels = None,
    last: listing.Last = 0,
    latest: listing.Latest = False,
    name: listing.Name = "",
    namespace: listing.Namespace = "",
    no_headers: listing.NoHeaders = False,
    no_trunc: options.NoTrunc = False,
    output: listing.ListOutput = "table",
    quiet: options.Quiet = False,
    sort_by: listing.SortBy = "",
    state: listing.PodState = "",
    verbose: options.Verbose = False,
    watch: listing.Watch = False,
) -> None:
    """List pod sandboxes.

    Example: pycrictl pods --namespace '^kube-system$' --state ready
    """
    from pycrictl.cri.inspection.status import pod_addresses
    from pycrictl.cri.lists.pods import list_pods, pod_query
    from pycrictl.show import rows
    from pycrictl.show.lists import ListFormat, Views

    chosen = ListFormat(
        output,
        name="items",
        quiet=quiet,
        verbose=verbose,
        sort_by=sort_by,
        header=not no_headers,
    )
    query = pod_query(
        pod_id=pod_id,
        labels=options.split_pairs(labels, "--label"),
        last=last,
        latest=latest,
        name=name,
        namespace=namespace,
        state=state,
    )
    app = app_context(ctx)
    with app.open_client("runtime") as client:

        def table(found: Sequence[cri_pb2.PodSandbox], wide: bool) -> Table:
            return rows.pods_table(
                found,
                now=app.env.wall_clock(),
                no_trunc=no_trunc,
                addresses=pod_addresses(client, found) if wide else None,
            )

        views = Views(table=table, block=rows.pod_block)
        listing.show_list(app, lambda: list_pods(client, query), chosen, views, watch=watch)
