"""``pycrictl ps``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pycrictl.cli import complete, list_options, options
from pycrictl.cli.context import AppContext
from pycrictl.cri.lists import containers
from pycrictl.show import headings, list_views
from pycrictl.show.list_format import ListFormat, Views

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pycrictl._proto import cri_pb2
    from pycrictl.show.render import Table


def ps(
    ctx: typer.Context,
    all_: list_options.AllStates = False,
    container_id: Annotated[
        str,
        typer.Option(
            "--id",
            metavar="CONTAINER",
            autocompletion=complete.containers,
            help="Only the container with this ID or name.",
        ),
    ] = "",
    image: list_options.OfImage = "",
    labels: list_options.Labels = None,
    last: list_options.Last = 0,
    latest: list_options.Latest = False,
    name: list_options.Name = "",
    namespace: list_options.Namespace = "",
    no_headers: list_options.NoHeaders = False,
    no_trunc: options.NoTrunc = False,
    output: list_options.ListOutput = "table",
    pod: list_options.PodId = "",
    quiet: options.Quiet = False,
    resolve_image_path: Annotated[
        bool,
        typer.Option("--resolve-image-path", "-r", help="Show image tags instead of IDs."),
    ] = False,
    sort_by: Annotated[str, list_options.sort_by(headings.CONTAINERS)] = "",
    state: list_options.ContainerState = None,
    verbose: options.Verbose = False,
    watch: list_options.Watch = False,
) -> None:
    """List containers, running ones by default.

    Example: pycrictl ps -a -o custom-columns=NAME:.metadata.name,ID:.id
    """
    app: AppContext = ctx.obj
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
    needs_images = bool(image) or resolve_image_path
    with app.open_clients(needs_images=needs_images) as (client, images):

        def table(found: Sequence[cri_pb2.Container], wide: bool) -> Table:
            return list_views.containers_table(
                found,
                now=app.env.wall_clock(),
                no_trunc=no_trunc,
                image_names=containers.first_tags(images, found) if resolve_image_path else None,
                wide=wide,
            )

        views = Views(
            table=table,
            block=lambda container: list_views.container_block(container, now=app.env.wall_clock()),
        )
        list_options.show_list(
            app,
            lambda: containers.list_containers(client, images, query),
            chosen,
            views,
            watch=watch,
            if_empty=lambda: list_options.note_missing(
                app, client, ("pod", pod), ("container", container_id)
            ),
        )
