"""``pycrictl ps``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pycrictl.cli import listing, options
from pycrictl.cli.context import app_context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pycrictl._proto import cri_pb2
    from pycrictl.show.render import Table


def ps(
    ctx: typer.Context,
    all_: listing.AllStates = False,
    container_id: Annotated[
        str, typer.Option("--id", metavar="CONTAINER-ID", help="Only the container of this ID.")
    ] = "",
    image: listing.OfImage = "",
    labels: listing.Labels = None,
    last: listing.Last = 0,
    latest: listing.Latest = False,
    name: listing.Name = "",
    namespace: listing.Namespace = "",
    no_headers: listing.NoHeaders = False,
    no_trunc: options.NoTrunc = False,
    output: listing.ListOutput = "table",
    pod: listing.PodId = "",
    quiet: options.Quiet = False,
    resolve_image_path: Annotated[
        bool,
        typer.Option("--resolve-image-path", "-r", help="Show tags of images in place of IDs."),
    ] = False,
    sort_by: listing.SortBy = "",
    state: listing.ContainerState = "",
    verbose: options.Verbose = False,
    watch: listing.Watch = False,
) -> None:
    """List containers, by default those that run.

    Example: pycrictl ps -a -o custom-columns=NAME:.metadata.name,ID:.id
    """
    from pycrictl.cri.lists import containers
    from pycrictl.show import rows
    from pycrictl.show.lists import ListFormat, Views

    chosen = ListFormat(
        output,
        name="containers",
        quiet=quiet,
        verbose=verbose,
        sort_by=sort_by,
        header=not no_headers,
    )
    query = containers.container_query(
        all_states=all_,
        container_id=container_id,
        image=image,
        labels=options.split_pairs(labels, "--label"),
        last=last,
        latest=latest,
        name=name,
        namespace=namespace,
        pod=pod,
        state=state,
    )
    app = app_context(ctx)
    needs_images = bool(image) or resolve_image_path
    with listing.both_clients(app, needs_images=needs_images) as (client, images):

        def table(found: Sequence[cri_pb2.Container], wide: bool) -> Table:
            return rows.containers_table(
                found,
                now=app.env.wall_clock(),
                no_trunc=no_trunc,
                image_names=containers.first_tags(images, found) if resolve_image_path else None,
                wide=wide,
            )

        views = Views(
            table=table,
            block=lambda container: rows.container_block(container, now=app.env.wall_clock()),
        )
        listing.show_list(
            app,
            lambda: containers.list_containers(client, images, query),
            chosen,
            views,
            watch=watch,
        )
