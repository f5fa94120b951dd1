"""Lists: ``ps``, ``pods`` and ``images``."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from pycrictl._proto import cri_pb2
from pycrictl.cli import complete, crictl, list_options, options
from pycrictl.cli.context import AppContext
from pycrictl.cri.inspection import statuses
from pycrictl.cri.inspection.statuses import pod_addresses
from pycrictl.cri.lifecycle.image_removal import images_in_use
from pycrictl.cri.lists import fetch, queries
from pycrictl.cri.lists.images import list_images, parse_filters
from pycrictl.cri.lists.queries import list_pods, pod_query
from pycrictl.errors import PycrictlError, UsageError
from pycrictl.show import columns, list_views
from pycrictl.show.formats import LIST_FORMATS, ListFormat, Views

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pycrictl.cri.calls.client import CriClient
    from pycrictl.show.render import Table


def ps(
    ctx: typer.Context,
    all_: list_options.AllStates = False,
    container_id: list_options.ContainerId = "",
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
        bool, typer.Option("--resolve-image-path", "-r", help="Show image tags instead of IDs.")
    ] = False,
    sort_by: Annotated[str, list_options.sort_by(columns.CONTAINERS, "created")] = "",
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
    query = queries.container_query(
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

        def table(found: Sequence[cri_pb2.Container], wide: bool, more: bool = False) -> Table:
            shows_more = more or (wide and not crictl.is_called())
            return list_views.containers_table(
                found,
                now=app.env.wall_clock(),
                no_trunc=no_trunc,
                image_names=queries.first_tags(images, found) if resolve_image_path else None,
                wide=wide,
                ends=_ends(client, found) if shows_more else None,
                owners=_owners(client, found) if shows_more else None,
            )

        def on_screen(found: Sequence[cri_pb2.Container]) -> Table:
            return list_views.containers_on_screen(table(found, False, more=True))

        views = Views(
            table=table,
            block=lambda container: list_views.container_block(container, now=app.env.wall_clock()),
            on_screen=None if no_trunc else on_screen,
        )
        list_options.show_list(
            app,
            lambda: queries.list_containers(client, images, query),
            chosen,
            views,
            watch=watch,
            if_empty=lambda: list_options.note_missing(
                app, client, ("pod", pod), ("container", container_id)
            ),
        )


def _ends(
    client: CriClient, found: Sequence[cri_pb2.Container]
) -> dict[str, list_views.ContainerExit]:
    ended = [each.id for each in found if each.state == cri_pb2.CONTAINER_EXITED]
    ends = {}
    with suppress(PycrictlError):
        for answer in statuses.read(client, "container", ended, is_listed=True):
            ends[answer.status.id] = list_views.ContainerExit(
                answer.status.exit_code, answer.status.reason
            )
    return ends


def _owners(client: CriClient, found: Sequence[cri_pb2.Container]) -> dict[str, tuple[str, str]]:
    if all(list_views.POD_NAME_LABEL in each.labels for each in found):
        return {}
    with suppress(PycrictlError):
        return {pod.id: (pod.metadata.namespace, pod.metadata.name) for pod in fetch.pods(client)}
    return {}


def pods(
    ctx: typer.Context,
    pod_id: list_options.SandboxId = "",
    labels: list_options.Labels = None,
    last: list_options.Last = 0,
    latest: list_options.Latest = False,
    name: list_options.Name = "",
    namespace: list_options.Namespace = "",
    no_headers: list_options.NoHeaders = False,
    no_trunc: options.NoTrunc = False,
    output: list_options.ListOutput = "table",
    quiet: options.Quiet = False,
    sort_by: Annotated[str, list_options.sort_by(columns.PODS, "created")] = "",
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

        def on_screen(found: Sequence[cri_pb2.PodSandbox]) -> Table:
            first = ("NAME", "STATE", "NAMESPACE", "CREATED", "ATTEMPT", "POD ID")
            return list_views.on_screen(
                table(found, False), first, by="STATE", tones={"NotReady": "warning"}
            )

        views = Views(table, list_views.pod_block, None if no_trunc else on_screen)
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
    sort_by: Annotated[str, list_options.sort_by(columns.IMAGES, "size")] = "",
    verbose: options.Verbose = False,
    watch: list_options.Watch = False,
) -> None:
    """List the images on the node.

    Example: pycrictl images --digests --filter reference=busybox
    """
    app: AppContext = ctx.obj
    chosen = ListFormat(
        crictl.known_format(output or "table", LIST_FORMATS),
        name="images",
        quiet=quiet,
        verbose=verbose,
        sort_by=sort_by,
        header=not no_headers,
    )
    if repository == "":
        raise UsageError("the name of one image is empty", hint="is a script's variable not set?")
    conditions = parse_filters(options.split_list(filters), is_exact=crictl.is_called())

    def table(found: Sequence[cri_pb2.Image], wide: bool) -> Table:
        return list_views.images_table(
            found,
            digests=digests,
            pinned=pinned,
            no_trunc=no_trunc,
            wide=wide,
            used=in_use() if wide else None,
        )

    def in_use() -> frozenset[str] | None:
        try:
            with app.open_runtime_beside(client) as runtime:
                return images_in_use(runtime, client, fetch.images(client))
        except PycrictlError as error:
            app.env.warn(f"cannot tell which images are in use: {error.message}")
            return None

    def on_screen(found: Sequence[cri_pb2.Image]) -> Table:
        return list_views.on_screen(table(found, False), ("IMAGE", "TAG", "SIZE"))

    views = Views(table, list_views.image_block, None if no_trunc else on_screen)
    with app.open_client("image") as client:
        list_options.show_list(
            app,
            lambda: list_images(client, repository or "", conditions),
            chosen,
            views,
            watch=watch,
        )
