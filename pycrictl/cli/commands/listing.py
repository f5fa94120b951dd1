"""Lists: ``ps``, ``pods`` and ``images``."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pycrictl._proto import cri_pb2
from pycrictl.cli import complete, list_options, options
from pycrictl.cli.context import AppContext
from pycrictl.cli.records import with_records
from pycrictl.cri.inspection import statuses
from pycrictl.cri.inspection.statuses import pod_addresses
from pycrictl.cri.lifecycle.image_removal import images_in_use
from pycrictl.cri.lists import fetch, queries
from pycrictl.cri.lists.images import list_images, parse_filters
from pycrictl.cri.lists.queries import list_pods
from pycrictl.errors import PycrictlError
from pycrictl.show.columns import table_of
from pycrictl.show.formats import LIST_FORMATS, ListFormat, Views
from pycrictl.show.list_views import (
    CONTAINERS,
    IMAGES,
    NONE,
    PODS,
    Known,
    container_block,
    containers_on_screen,
    image_block,
    images_table,
    on_screen,
    pod_block,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pycrictl.cri.calls.client import CriClient
    from pycrictl.show.render import Table, Tone


@with_records
def ps(
    ctx: typer.Context,
    *,
    all_: list_options.AllStates = False,
    container_id: list_options.ContainerId = "",
    selection: list_options.ContainerSelection,
    namespace: list_options.Namespace = "",
    no_headers: list_options.NoHeaders = False,
    no_trunc: options.NoTrunc = False,
    output: list_options.ListOutput = "table",
    quiet: options.Quiet = False,
    resolve_image_path: Annotated[
        bool, typer.Option("--resolve-image-path", "-r", help="Show image tags instead of IDs.")
    ] = False,
    sort_by: Annotated[str, list_options.sort_by(CONTAINERS, "created")] = "",
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
        columns=CONTAINERS,
    )
    query = selection.query(
        app, state, all_states=all_, container_id=container_id, namespace=namespace
    )
    needs_images = bool(selection.image) or resolve_image_path
    labels_only = app.persona.is_literal
    with app.open_clients(needs_images=needs_images) as (client, images):

        def known(found: Sequence[cri_pb2.Container], **data: Any) -> Known:
            pods = {} if labels_only else queries.pods_of(client, found)
            return Known(app.env.wall_clock(), no_trunc, pods=pods, **data)

        def table(found: Sequence[cri_pb2.Container], wide: bool, more: bool = False) -> Table:
            shows_ends = more or (wide and not labels_only)
            data = known(
                found,
                image_names=queries.first_tags(images, found) if resolve_image_path else {},
                ends=_ends(client, found) if shows_ends else {},
            )
            wanted = ("wide" if wide else "", "ends" if shows_ends else "")
            return table_of(CONTAINERS, found, data, wanted=wanted)

        def shown(found: Sequence[cri_pb2.Container]) -> Table:
            return containers_on_screen(table(found, False, more=True))

        views = Views(
            table=table,
            block=lambda container: container_block(container, known([container])),
            on_screen=None if no_trunc else shown,
        )
        list_options.show_list(
            app,
            lambda: queries.list_containers(client, images, query, labels_only=labels_only),
            chosen,
            views,
            watch=watch,
            if_empty=lambda: list_options.note_missing(
                app, client, ("pod", selection.pod), ("container", container_id)
            ),
        )


def _ends(client: CriClient, found: Sequence[cri_pb2.Container]) -> dict[str, tuple[str, str]]:
    ended = [each.id for each in found if each.state == cri_pb2.CONTAINER_EXITED]
    ends = {}
    with suppress(PycrictlError):
        for answer in statuses.read(client, "container", ended, is_listed=True):
            status = answer.status
            ends[status.id] = str(status.exit_code), status.reason or NONE
    return ends


@with_records
def pods(
    ctx: typer.Context,
    *,
    pod_id: list_options.SandboxId = "",
    selection: list_options.PodSelection,
    no_headers: list_options.NoHeaders = False,
    no_trunc: options.NoTrunc = False,
    output: list_options.ListOutput = "table",
    quiet: options.Quiet = False,
    sort_by: Annotated[str, list_options.sort_by(PODS, "created")] = "",
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
        columns=PODS,
    )
    query = selection.query(app, pod_id)
    with app.open_client("runtime") as client:

        def table(found: Sequence[cri_pb2.PodSandbox], wide: bool) -> Table:
            addresses = pod_addresses(client, found) if wide else {}
            known = Known(app.env.wall_clock(), no_trunc, addresses=addresses)
            return table_of(PODS, found, known, wanted=("wide",) if wide else ())

        def shown(found: Sequence[cri_pb2.PodSandbox]) -> Table:
            first = ("NAME", "STATE", "NAMESPACE", "CREATED", "ATTEMPT", "POD ID")
            tones: dict[str, Tone] = {"NotReady": "warning"}
            return on_screen(table(found, False), first, by="STATE", tones=tones)

        views = Views(table, pod_block, None if no_trunc else shown)
        list_options.show_list(
            app,
            lambda: list_pods(client, query),
            chosen,
            views,
            watch=watch,
            if_empty=lambda: list_options.note_missing(app, client, ("pod", pod_id)),
        )


def images(
    ctx: typer.Context,
    repository: Annotated[
        str | None,
        typer.Argument(
            metavar="[REPOSITORY[:TAG]]",
            autocompletion=complete.images,
            help="Only images with this name, or whose ID begins with it.",
        ),
    ] = None,
    digests: Annotated[bool, typer.Option("--digests", help="Show digests.")] = False,
    filters: list_options.ImageFilters = None,
    no_headers: list_options.NoHeaders = False,
    no_trunc: options.NoTrunc = False,
    output: list_options.ListOutput = "table",
    pinned: Annotated[bool, typer.Option("--pinned", help="Show which images are pinned.")] = False,
    quiet: options.Quiet = False,
    sort_by: Annotated[str, list_options.sort_by(IMAGES, "size")] = "",
    verbose: options.Verbose = False,
    watch: list_options.Watch = False,
) -> None:
    """List the images on the node.

    Example: pycrictl images --digests --filter reference=busybox
    """
    app: AppContext = ctx.obj
    chosen = ListFormat(
        app.persona.known_format(output or "table", LIST_FORMATS),
        name="images",
        quiet=quiet,
        verbose=verbose,
        sort_by=sort_by,
        header=not no_headers,
        columns=IMAGES,
    )
    options.named(repository, "image")
    conditions = parse_filters(options.split_list(filters), is_exact=app.persona.is_literal)

    def table(found: Sequence[cri_pb2.Image], wide: bool) -> Table:
        known = Known(app.env.wall_clock(), no_trunc, used=in_use() if wide else None)
        wanted = {"digests": digests or wide, "pinned": pinned or wide, "wide": wide}
        return images_table(found, known, [name for name, is_on in wanted.items() if is_on])

    def in_use() -> frozenset[str] | None:
        try:
            with app.open_runtime_beside(client) as runtime:
                return images_in_use(runtime, client, fetch.images(client))
        except PycrictlError as error:
            app.env.warn(f"cannot tell which images are in use: {error.message}")
            return None

    def shown(found: Sequence[cri_pb2.Image]) -> Table:
        return on_screen(table(found, False), ("IMAGE", "TAG", "SIZE"))

    views = Views(table, image_block, None if no_trunc else shown)
    with app.open_client("image") as client:
        list_options.show_list(
            app,
            lambda: list_images(client, repository or "", conditions),
            chosen,
            views,
            watch=watch,
        )
