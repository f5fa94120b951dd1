"""Lists: ``ps``, ``pods`` and ``images``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

import typer

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import PycrictlError
from pycrictl.cli import complete, list_options, options
from pycrictl.cli.context import AppContext
from pycrictl.runtime.cri.calls.client import CriClient
from pycrictl.runtime.cri.inspection import statuses
from pycrictl.runtime.cri.inspection.statuses import pod_addresses
from pycrictl.runtime.cri.lists import queries
from pycrictl.runtime.cri.lists.images import list_images, parse_filters
from pycrictl.runtime.cri.lists.queries import list_pods
from pycrictl.show import list_views
from pycrictl.show.columns import table_of
from pycrictl.show.formats import LIST_FORMATS, Views
from pycrictl.show.list_views import CONTAINERS, IMAGES, PODS, WHOLE, Known
from pycrictl.show.render import Table


@options.with_records
def ps(
    ctx: typer.Context,
    *,
    all_: list_options.AllStates = False,
    container_id: list_options.ContainerId = "",
    selection: list_options.ContainerSelection,
    namespace: list_options.Namespace = "",
    form: list_options.ListForm,
    resolve_image_path: Annotated[
        bool, typer.Option("--resolve-image-path", "-r", help="Show image tags instead of IDs.")
    ] = False,
    sort_by: Annotated[str, list_options.sort_by(CONTAINERS, "created")] = "",
    state: list_options.ContainerState = None,
) -> None:
    """List containers, running ones by default.

    Example: pycrictl ps -a -o custom-columns=NAME:.metadata.name,ID:.id
    """
    app: AppContext = ctx.obj
    chosen = form.format("containers", CONTAINERS, sort_by)
    query = selection.query(
        app, state, all_states=all_, container_id=container_id, namespace=namespace
    )
    needs_images = bool(selection.image) or resolve_image_path
    labels_only = app.persona.is_crictl
    with app.open_clients(needs_images=needs_images) as (client, images):

        def known(listed: Sequence[cri_pb2.Container], kind: str = "") -> Known:
            shows_ends = kind == "screen" or (kind == "wide" and not labels_only)
            return Known(
                app.env.wall_clock(),
                form.no_trunc,
                image_names=queries.first_tags(images, listed) if resolve_image_path else {},
                ends=_ends(client, listed) if shows_ends else {},
                pods={} if labels_only else queries.pods_of(client, listed),
                nothing="" if kind == "screen" else list_views.NONE,
            )

        def table(listed: Sequence[cri_pb2.Container], kind: str) -> Table:
            data = known(listed, kind)
            if kind != "screen":
                wanted = [kind] if labels_only else [kind, "ends" if kind else ""]
                return table_of(CONTAINERS, listed, data, wanted=wanted)
            return table_of(
                list_views.CONTAINERS_ON_SCREEN,
                listed,
                data,
                wanted=["ends"],
                whole=WHOLE,
                optional=("EXIT", "REASON"),
            )

        form.show(
            app,
            lambda: queries.list_containers(client, images, query, labels_only=labels_only),
            chosen,
            Views(
                table, lambda container: list_views.container_block(container, known([container]))
            ),
        )


def _ends(client: CriClient, listed: Sequence[cri_pb2.Container]) -> dict[str, tuple[str, str]]:
    ended = [container.id for container in listed if container.state == cri_pb2.CONTAINER_EXITED]
    ends = {}
    with suppress(PycrictlError):
        for answer in statuses.read(client, "container", ended, is_listed=True):
            status = answer.status
            ends[status.id] = str(status.exit_code), status.reason or list_views.NONE
    return ends


@options.with_records
def pods(
    ctx: typer.Context,
    *,
    pod_id: list_options.SandboxId = "",
    selection: list_options.PodSelection,
    form: list_options.ListForm,
    sort_by: Annotated[str, list_options.sort_by(PODS, "created")] = "",
) -> None:
    """List pod sandboxes.

    Example: pycrictl pods --namespace '^kube-system$' --state ready
    """
    app: AppContext = ctx.obj
    chosen = form.format("items", PODS, sort_by)
    query = selection.query(app, pod_id)
    with app.open_client("runtime") as client:

        def table(listed: Sequence[cri_pb2.PodSandbox], kind: str) -> Table:
            addresses = pod_addresses(client, listed) if kind == "wide" else {}
            known = Known(app.env.wall_clock(), form.no_trunc, addresses=addresses)
            if kind != "screen":
                return table_of(PODS, listed, known, wanted=[kind])
            return table_of(list_views.PODS_ON_SCREEN, listed, known, whole=WHOLE)

        form.show(
            app,
            lambda: list_pods(client, query),
            chosen,
            Views(table, list_views.pod_block),
        )


@options.with_records
def images(
    ctx: typer.Context,
    *,
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
    form: list_options.ListForm,
    pinned: Annotated[bool, typer.Option("--pinned", help="Show which images are pinned.")] = False,
    sort_by: Annotated[str, list_options.sort_by(IMAGES, "size")] = "",
) -> None:
    """List the images on the node.

    Example: pycrictl images --digests --filter reference=busybox
    """
    app: AppContext = ctx.obj
    output = app.persona.known_format(form.output or "table", LIST_FORMATS)
    chosen = form.format("images", IMAGES, sort_by, output)
    options.named(repository, "image")
    conditions = parse_filters(options.split_list(filters), is_exact=app.persona.is_crictl)

    def table(listed: Sequence[cri_pb2.Image], kind: str) -> Table:
        is_wide = kind == "wide"
        known = Known(app.env.wall_clock(), form.no_trunc)
        wanted = {"digests": digests or is_wide, "pinned": pinned or is_wide, "wide": is_wide}
        return table_of(
            list_views.IMAGES_ON_SCREEN if kind == "screen" else IMAGES,
            list_views.image_rows(listed),
            known,
            wanted=[name for name, is_on in wanted.items() if is_on],
            whole=WHOLE,
        )

    with app.open_client("image") as client:
        form.show(
            app,
            lambda: list_images(client, repository or "", conditions),
            chosen,
            Views(table, list_views.image_block),
        )
