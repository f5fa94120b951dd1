"""``pycrictl images``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pycrictl.cli import complete, crictl, list_options, options
from pycrictl.cli.context import AppContext
from pycrictl.cri.lifecycle.image_removal import images_in_use
from pycrictl.cri.lists import fetch
from pycrictl.cri.lists.images import list_images, parse_filters
from pycrictl.errors import PycrictlError, UsageError
from pycrictl.show import headings, list_views
from pycrictl.show.list_format import FORMAT_NAMES, ListFormat, Views

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pycrictl._proto import cri_pb2
    from pycrictl.show.render import Table


def images(
    ctx: typer.Context,
    repository: Annotated[
        str | None,
        typer.Argument(
            metavar="[REPOSITORY[:TAG]]",
            autocompletion=complete.images,
            help="Only images with this name, or whose ID begins with it.",
            show_default=False,
        ),
    ] = None,
    digests: Annotated[bool, typer.Option("--digests", help="Show digests.")] = False,
    filters: list_options.ImageFilters = None,
    no_headers: list_options.NoHeaders = False,
    no_trunc: options.NoTrunc = False,
    output: list_options.ListOutput = "table",
    pinned: Annotated[bool, typer.Option("--pinned", help="Show which images are pinned.")] = False,
    quiet: options.Quiet = False,
    sort_by: Annotated[str, list_options.sort_by(headings.IMAGES)] = "",
    verbose: options.Verbose = False,
    watch: list_options.Watch = False,
) -> None:
    """List the images on the node.

    Example: pycrictl images --digests --filter reference=busybox
    """
    app: AppContext = ctx.obj
    chosen = ListFormat(
        crictl.known_format(output or "table", *FORMAT_NAMES),
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
            app.env.warn(f"which images are in use is unknown: {error.message}")
            return None

    views = Views(table=table, block=list_views.image_block)
    with app.open_client("image") as client:
        list_options.show_list(
            app,
            lambda: list_images(client, repository or "", conditions),
            chosen,
            views,
            watch=watch,
        )
