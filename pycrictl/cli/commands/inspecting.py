"""Details: ``inspect``, ``inspectp`` and ``inspecti``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any

import typer

from pycrictl.base.errors import NothingSelected
from pycrictl.cli import complete, list_options, options
from pycrictl.cli.context import AppContext, Results
from pycrictl.runtime.cri.calls.client import CriClient
from pycrictl.runtime.cri.inspection import statuses
from pycrictl.runtime.cri.inspection.statuses import StatusKind
from pycrictl.runtime.cri.lists import queries
from pycrictl.runtime.cri.lists.images import list_images, parse_filters
from pycrictl.runtime.cri.lists.lookup import Lookup
from pycrictl.runtime.cri.lists.queries import list_pods
from pycrictl.show import inspect_views
from pycrictl.show.formats import Format
from pycrictl.show.protodata import Document
from pycrictl.show.render import Block


@options.with_records
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
    *,
    all_: list_options.AllStates = False,
    selection: list_options.ContainerSelection,
    namespace: list_options.Namespace = "",
    output: list_options.InspectOutput = "json",
    quiet: list_options.NoInfo = False,
    state: list_options.ContainerState = None,
    template: list_options.Template = "",
) -> None:
    """Show the details of containers.

    If one cannot be shown, the others are still shown.

    Example: pycrictl inspect --name web -o go-template --template '{{.info.pid}}'
    """
    app: AppContext = ctx.obj
    chosen = Format(output, template=template)
    query = selection.query(app, state, all_states=all_, namespace=namespace)
    words = options.all_named(ids, "container")
    block = partial(inspect_views.container_status_block, now=app.env.wall_clock())
    views = inspect_views.container_document, block
    with app.open_clients(needs_images=bool(selection.image)) as (client, images):
        listed = (
            []
            if words
            else queries.list_containers(client, images, query, labels_only=app.persona.is_crictl)
        )
        if not words and not listed:
            hint = "without IDs, running containers are selected; see --all and --state"
            raise NothingSelected("no container is selected", hint=hint)
        ids = [container.id for container in listed]
        _show(app, client, "container", words, ids, chosen, views, quiet=quiet)


@options.with_records
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
    *,
    selection: list_options.PodSelection,
    output: list_options.InspectOutput = "json",
    quiet: list_options.NoInfo = False,
    template: list_options.Template = "",
) -> None:
    """Show the details of pod sandboxes.

    If one cannot be shown, the others are still shown.

    Example: pycrictl inspectp --name '^web$' --state ready
    """
    app: AppContext = ctx.obj
    chosen = Format(output, template=template)
    query = selection.query(app)
    words = options.all_named(ids, "pod")
    views = inspect_views.pod_document, inspect_views.pod_status_block
    with app.open_client("runtime") as client:
        ids = [] if words else [pod.id for pod in list_pods(client, query)]
        _show(app, client, "pod", words, ids, chosen, views, quiet=quiet)


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

    If one cannot be shown, the others are still shown.

    Example: pycrictl inspecti --output yaml docker.io/library/busybox:1.36
    """
    app: AppContext = ctx.obj
    chosen = Format(output, template=template)
    conditions = parse_filters(options.split_list(filters), is_exact=app.persona.is_crictl)
    words = options.all_named(images, "image")
    views = inspect_views.image_document, inspect_views.image_status_block
    with app.open_client("image") as client:
        ids = [] if words else [image.id for image in list_images(client, name, conditions)]
        _show(app, client, "image", words, ids, chosen, views, quiet=quiet)


def _show(
    app: AppContext,
    client: CriClient,
    kind: StatusKind,
    words: Sequence[str],
    listed: Sequence[str],
    chosen: Format,
    views: tuple[Callable[[Any], Document], Callable[[Any], Block]],
    *,
    quiet: bool,
) -> None:
    """Show what was named, or listed if nothing was; report each that fails."""
    results = Results(app)
    names = list(words or listed)
    if words and kind != "image":
        lookup = Lookup(client)
        refs = [lookup.target(word, kind) for word in words]
        for ref in refs:
            if ref.error is not None:
                results.fail(ref.error)
        names = [ref.id for ref in refs if ref.error is None]
    read = statuses.read(
        client, kind, names, verbose=not quiet, is_listed=not words, failed=results.fail
    )
    if answers := list(read):
        chosen.write_answers(answers, *views, app.env.stdout, is_list=len(words) > 1)
    elif not results.has_failed:
        raise NothingSelected(f"no {kind} is selected")
    results.finish()
