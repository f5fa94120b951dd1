"""``pycrictl images``."""

from __future__ import annotations

from typing import Annotated

import typer

from pycrictl.cli import options
from pycrictl.cli.context import app_context


def images(
    ctx: typer.Context,
    repository: Annotated[
        str,
        typer.Argument(
            metavar="[REPOSITORY[:TAG]]",
            help="Only images of this name, or whose ID begins so.",
            show_default=False,
        ),
    ] = "",
    digests: Annotated[bool, typer.Option("--digests", help="Show digests.")] = False,
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            "-f",
            metavar="NAME=VALUE",
            help="dangling=true|false, reference=REGEX, before=IMAGE or since=IMAGE; repeatable.",
        ),
    ] = None,
    no_trunc: options.NoTrunc = False,
    output: options.Output = "table",
    pinned: Annotated[bool, typer.Option("--pinned", help="Show which images are pinned.")] = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """List the images on the node.

    Example: pycrictl images --digests --filter reference=busybox
    """
    from pycrictl.cri.images import list_images, parse_filters
    from pycrictl.show import documents, render, rows

    options.check_output(output, "json", "yaml", "table")
    conditions = parse_filters(options.split_list(filters))
    app = app_context(ctx)
    with app.open_client("image") as client:
        found = list_images(client, repository, conditions)
    out = app.env.stdout
    if output == "json":
        render.write_list_json("images", found, out)
    elif output == "yaml":
        render.write_document_yaml(documents.list_document("images", found), out)
    elif quiet:
        render.write_lines((image.id for image in found), out)
    elif verbose:
        render.write_blocks(map(rows.image_block, found), out)
    else:
        table = rows.images_table(found, digests=digests, pinned=pinned, no_trunc=no_trunc)
        render.write_table(table, out)
