"""Details: ``inspect``, ``inspectp`` and ``inspecti``."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from pycrictl.cli import complete, crictl, list_options, options
from pycrictl.cli.context import AppContext
from pycrictl.cri.inspection import statuses
from pycrictl.cri.lists import lookup, queries
from pycrictl.cri.lists.images import list_images, parse_filters
from pycrictl.cri.lists.queries import list_pods, pod_query
from pycrictl.show import inspect_views
from pycrictl.show.formats import Format


def inspect(
    ctx: typer.Context,
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONTAINER]...",
            autocompletion=complete.containers,
            help="IDs or names (default: what the options select).",
        ),
    ] = None,
    all_: list_options.AllStates = False,
    image: list_options.OfImage = "",
    labels: list_options.Labels = None,
    last: list_options.Last = 0,
    latest: list_options.Latest = False,
    name: list_options.Name = "",
    namespace: list_options.Namespace = "",
    output: list_options.InspectOutput = "json",
    pod: list_options.PodId = "",
    quiet: list_options.NoInfo = False,
    state: list_options.ContainerState = None,
    template: list_options.Template = "",
) -> None:
    """Show the details of containers.

    Prints nothing if any of them fails.

    Example: pycrictl inspect --name web -o go-template --template '{{.info.pid}}'
    """
    app: AppContext = ctx.obj
    chosen = Format(output, template=template)
    query = queries.container_query(
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
    targets = statuses.checked(ids or (), "container")

    with app.open_clients(needs_images=bool(image)) as (client, images):
        if targets:
            targets = lookup.ids(client, targets, "container")
        else:
            found = queries.list_containers(client, images, query)
            if not found:
                hint = "without IDs, running containers are selected; see --all and --state"
                raise list_options.nothing_selected(client, pod, hint)
            targets = [container.id for container in found]
        seen = statuses.read(client, "container", targets, verbose=not quiet, is_listed=not ids)
        answers = statuses.at_least_one(seen, "container")
        block = partial(inspect_views.container_status_block, now=app.env.wall_clock())
        chosen.write_answers(answers, inspect_views.container_document, block, app.env.stdout)


def inspectp(
    ctx: typer.Context,
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[POD]...",
            autocompletion=complete.pods,
            help="IDs or names (default: what the options select).",
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

    Prints nothing if any of them fails.

    Example: pycrictl inspectp --name '^web$' --state ready
    """
    app: AppContext = ctx.obj
    chosen = Format(output, template=template)
    query = pod_query(
        labels=options.split_pairs(labels, "--label"),
        last=last,
        latest=latest,
        name=name,
        namespace=namespace,
        state=state,
    )
    targets = statuses.checked(ids or (), "pod")
    with app.open_client("runtime") as client:
        if targets:
            targets = lookup.ids(client, targets, "pod")
        else:
            targets = [pod.id for pod in list_pods(client, query)]
        seen = statuses.read(client, "pod", targets, verbose=not quiet, is_listed=not ids)
        answers, block = statuses.at_least_one(seen, "pod"), inspect_views.pod_status_block
        chosen.write_answers(answers, inspect_views.pod_document, block, app.env.stdout)


def inspecti(
    ctx: typer.Context,
    images: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[IMAGE]...",
            autocompletion=complete.images,
            help="References or IDs (default: what the options select).",
        ),
    ] = None,
    filters: list_options.ImageFilters = None,
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="Only images with this name.")
    ] = "",
    output: list_options.InspectOutput = "json",
    quiet: list_options.NoInfo = False,
    template: list_options.Template = "",
) -> None:
    """Show the details of images.

    Prints nothing if any of them fails.

    Example: pycrictl inspecti --output yaml docker.io/library/busybox:1.36
    """
    app: AppContext = ctx.obj
    chosen = Format(output, template=template)
    conditions = parse_filters(options.split_list(filters), is_exact=crictl.is_called())
    targets = statuses.checked(images or (), "image")
    with app.open_client("image") as client:
        if not targets:
            targets = [image.id for image in list_images(client, name, conditions)]
        seen = statuses.read(client, "image", targets, verbose=not quiet, is_listed=not images)
        answers, block = statuses.at_least_one(seen, "image"), inspect_views.image_status_block
        chosen.write_answers(answers, inspect_views.image_document, block, app.env.stdout)
