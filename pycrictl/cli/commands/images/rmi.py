"""``pycrictl rmi``."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated

import typer

from pycrictl.cli.context import app_context
from pycrictl.cli.results import Results
from pycrictl.errors import UsageError


def rmi(
    ctx: typer.Context,
    images: Annotated[
        list[str] | None,
        typer.Argument(metavar="IMAGE...", help="Names, digests or IDs.", show_default=False),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Remove all images.")] = False,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune",
            "-q",
            help="Remove images that are not pinned and not used by containers or pod sandboxes.",
        ),
    ] = False,
) -> None:
    """Remove images.

    They are removed in parallel; if one fails, the others are removed all the same. An image is
    removed with all its tags.

    Example: pycrictl rmi --prune
    """
    from pycrictl.cri.calls.redact import redact_text
    from pycrictl.cri.lifecycle.control import check_ids
    from pycrictl.cri.lifecycle.image_removal import find_images, remove_images, unused_images
    from pycrictl.cri.lists import fetch

    if all_ and prune:
        raise UsageError("--all and --prune cannot be combined")
    targets = () if not images and (all_ or prune) else check_ids(images or (), "image")
    app = app_context(ctx)
    results = Results(app.env)
    with ExitStack() as stack:
        client = stack.enter_context(app.open_client("image"))
        if all_:
            targets += tuple(image.id for image in fetch.images(client))
        elif prune:
            runtime = client
            if app.config.runtime_endpoint != app.config.image_endpoint:
                runtime = stack.enter_context(app.open_client("runtime"))
            targets += unused_images(runtime, client, fetch.images(client))
        found = find_images(client, targets)
        for entry in found:
            if tags := ", ".join(entry.other_tags):
                app.env.warn(f"{redact_text(entry.target)} is removed with all its tags: {tags}")
        for removal in remove_images(client, found):
            results.say(f"Deleted: {name}" for name in removal.names)
            if removal.error is not None:
                results.fail(removal.error)
    if not targets:
        app.env.note("no images to remove")
    results.finish()
