"""``pycrictl pods``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pycrictl.cli import complete, list_options, options
from pycrictl.cli.context import AppContext
from pycrictl.cri.inspection.status import pod_addresses
from pycrictl.cri.lists.pods import list_pods, pod_query
from pycrictl.show import headings, list_views
from pycrictl.show.list_format import ListFormat, Views

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pycrictl._proto import cri_pb2
    from pycrictl.show.render import Table


def pods(
    ctx: typer.Context,
    pod_id: Annotated[
        str,
        typer.Option(
            "--id",
            metavar="POD",
            autocompletion=complete.pods,
            help="Only the pod sandbox with this ID or name.",
        ),
    ] = "",
    labels: list_options.Labels = None,
    last: list_options.Last = 0,
    latest: list_options.Latest = False,
    name: list_options.Name = "",
    namespace: list_options.Namespace = "",
    no_headers: list_options.NoHeaders = False,
    no_trunc: options.NoTrunc = False,
    output: list_options.ListOutput = "table",
    quiet: options.Quiet = False,
    sort_by: Annotated[str, list_options.sort_by(headings.PODS)] = "",
    state: list_options.PodState = None,
    verbose: options.Verbose = False,
    watch: list_options.Watch = False,
) -> None:
    """List pod sandboxes.

    Example: pycrictl pods --namespace '^kube-system$' --state ready
    """
    app: AppContext = ctx.obj
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
    with app.open_client("runtime") as client:

        def table(found: Sequence[cri_pb2.PodSandbox], wide: bool) -> Table:
            return list_views.pods_table(
                found,
                now=app.env.wall_clock(),
                no_trunc=no_trunc,
                addresses=pod_addresses(client, found) if wide else None,
            )

        views = Views(table=table, block=list_views.pod_block)
        list_options.show_list(
            app,
            lambda: list_pods(client, query),
            chosen,
            views,
            watch=watch,
            if_empty=lambda: list_options.note_missing(app, client, ("pod", pod_id)),
        )
