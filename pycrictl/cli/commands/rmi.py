"""``pycrictl rmi``."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated

import typer

from pycrictl.base.errors import UsageError
from pycrictl.base.units import format_size, plural
from pycrictl.cli import complete, options
from pycrictl.cli.context import AppContext
from pycrictl.cli.results import Results
from pycrictl.runtime.cri.calls.redact import redact_text
from pycrictl.runtime.cri.lifecycle.image_removal import find_images, remove_images, unused_images
from pycrictl.runtime.cri.lists import fetch


def rmi(
    ctx: typer.Context,
    images: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="IMAGE...", autocompletion=complete.images, help="Names, digests or IDs."
        ),
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
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be removed.")
    ] = False,
) -> None:
    """Remove images.

    Removes images in parallel, each with all its tags; a failure does not stop the others. Reports
    on stderr how much --prune frees; layers shared with other images stay, so the actual gain may
    be smaller.

    Example: pycrictl rmi --prune --dry-run
    """
    app: AppContext = ctx.obj
    if all_ and prune:
        raise UsageError("--all and --prune cannot be combined")
    if images and (all_ or prune):
        flag, what = ("--all", "all images") if all_ else ("--prune (-q)", "all unused images")
        if not app.persona.is_lenient:
            hint = f"to remove only the images that are named, leave out {flag}"
            raise UsageError(f"{flag} with images would remove {what} as well", hint=hint)
        app.env.warn(f"{flag} removes {what} in addition to those that are named")
    targets = [] if not images and (all_ or prune) else options.some_named(images, "image")
    results = Results(app)
    with ExitStack() as stack:
        client = stack.enter_context(app.open_client("image"))
        if all_:
            targets += [image.id for image in fetch.images(client)]
        elif prune:
            runtime = stack.enter_context(app.open_runtime_beside(client))
            targets += unused_images(runtime, client, fetch.images(client))
        found = find_images(client, targets)
        for entry in found:
            if tags := ", ".join(entry.other_tags):
                app.env.warn(f"{redact_text(entry.target)} is removed with all its tags: {tags}")
        freed = []
        verb = "Would delete" if dry_run else "Deleted"
        for entry in found if dry_run else remove_images(client, found):
            if entry.error is not None:
                results.fail(entry.error)
            else:
                results.say(f"{verb}: {name}" for name in entry.names)
                freed.append(entry.size_bytes)
    if not targets:
        app.env.note("no images to remove")
    elif dry_run or (prune and not app.persona.is_plain):
        verb = "would free" if dry_run else "freed"
        app.env.note(f"{verb} up to {format_size(sum(freed))}: {plural(len(freed), 'image')}")
    results.finish()
