"""``pycrictl inspect``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pycrictl.cli import listing, options
from pycrictl.cli.context import app_context

if TYPE_CHECKING:
    from pycrictl._proto import cri_pb2
    from pycrictl.show.render import Block


def inspect(
    ctx: typer.Context,
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONTAINER-ID]...",
            help="IDs or their beginnings; without any: those that the options select.",
            show_default=False,
        ),
    ] = None,
    all_: listing.AllStates = False,
    image: listing.OfImage = "",
    labels: listing.Labels = None,
    last: listing.Last = 0,
    latest: listing.Latest = False,
    name: listing.Name = "",
    namespace: listing.Namespace = "",
    output: listing.InspectOutput = "json",
    pod: listing.PodId = "",
    quiet: listing.NoInfo = False,
    state: listing.ContainerState = "",
    template: listing.Template = "",
) -> None:
    """Show all that is known of containers.

    Nothing is shown when one of them fails.

    Example: pycrictl inspect --name web -o go-template --template '{{.info.pid}}'
    """
    from pycrictl.cri.inspection import status
    from pycrictl.cri.lists import containers
    from pycrictl.show import inspections
    from pycrictl.show.details import DetailFormat

    chosen = DetailFormat(output, template=template)
    query = containers.container_query(
        all_states=all_,
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
    targets = status.checked(ids or (), "container")

    def block(answer: cri_pb2.ContainerStatusResponse) -> Block:
        return inspections.container_status_block(
            answer.status, answer.info, now=app.env.wall_clock()
        )

    with listing.both_clients(app, needs_images=bool(image)) as (client, images):
        if not targets:
            found = containers.list_containers(client, images, query)
            targets = [container.id for container in found]
        statuses = status.container_statuses(client, targets, verbose=not quiet, is_listed=not ids)
        answers = listing.found_any(statuses, "container")
        chosen.write(answers, inspections.container_document, block, app.env.stdout)
