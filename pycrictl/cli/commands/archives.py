"""``pycrictl save``, ``load`` and ``tag``."""

from __future__ import annotations

import time
from concurrent.futures import wait
from contextlib import closing, nullcontext
from functools import partial
from typing import Annotated, Literal

import typer

from pycrictl.base.errors import ArchiveError, Interrupted, UsageError, reason_of
from pycrictl.base.replacing import replacing
from pycrictl.base.threads import call_in_thread
from pycrictl.base.units import escape, quote_path
from pycrictl.cli import complete, options
from pycrictl.cli.context import AppContext
from pycrictl.pulls.archives import archive
from pycrictl.pulls.archives.loading import Load
from pycrictl.pulls.tracker import Tracker
from pycrictl.runtime.containerd.daemon import settings_of
from pycrictl.runtime.containerd.grpc_client import ContainerdClient
from pycrictl.runtime.cri.calls.client import CriClient
from pycrictl.runtime.cri.lists import lookup
from pycrictl.show.displays.outlet import Outlet
from pycrictl.show.displays.pull_lines import open_display


def save(
    ctx: typer.Context,
    images: Annotated[
        list[str],
        typer.Argument(metavar="IMAGE...", autocompletion=complete.images, help="Names or IDs."),
    ],
    output: Annotated[
        str, options.file_option("--output", "-o", help="Write the archive to FILE; - is stdout.")
    ] = "-",
    format_: Annotated[
        Literal["oci", "docker"],
        typer.Option("--format", help="An OCI image layout, or a format for Docker before 25."),
    ] = "oci",
    platform: Annotated[
        str,
        typer.Option(
            "--platform", metavar="PLATFORM", help="OS/ARCH[/VARIANT] or all (default: the node's)."
        ),
    ] = "",
) -> None:
    """Save images as an archive.

    The archive is an OCI image layout, which docker, podman, skopeo, ctr and kind can load.

    Example: pycrictl save docker.io/library/busybox:1.36 -o /tmp/busybox.tar
    """
    app: AppContext = ctx.obj
    if output == "-" and app.env.stdout_is_terminal:
        raise UsageError("refusing to write an archive to a terminal", hint="name a file with -o")
    if (platform, format_) == (archive.ALL_PLATFORMS, "docker"):
        raise UsageError("--format docker needs one platform", hint="name one, or use oci")
    with app.open_client("image") as client:
        chosen = [archive.find_image(client, image) for image in images]
        try:
            if client.is_crio():
                archive.save_by_skopeo(client, chosen, output, format_)
                return
            containerd, is_docker = _containerd(client), format_ == "docker"
            pieces = archive.saved(containerd, chosen, platform=platform, is_docker=is_docker)
            stdout = nullcontext(app.env.stdout.buffer)
            with stdout if output == "-" else replacing(output) as file:
                file.writelines(pieces)
                file.flush()
        except OSError as exc:
            if output == "-":
                raise
            raise ArchiveError(f"cannot write {quote_path(output)}: {reason_of(exc)}") from None


def load(
    ctx: typer.Context,
    input_: Annotated[
        str,
        options.file_option("--input", "-i", help="Read the archive from FILE; - is stdin."),
    ] = "-",
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="Name for an image that has none.")
    ] = "",
    unpack: Annotated[
        bool, typer.Option("--unpack", help="Unpack images now, not at their first use.")
    ] = False,
    progress: options.Progress = "auto",
) -> None:
    """Load images from an archive.

    Reads OCI image layouts (a tar file or a folder) and the format of docker save, plain or
    compressed, and prints the names of the images. Layers that are present are not written again.

    Example: pycrictl load -i /tmp/busybox.tar
    """
    app: AppContext = ctx.obj
    if input_ == "-" and app.env.stdin_is_terminal:
        raise UsageError("no archive on stdin", hint="name a file with -i")
    with app.open_client("image") as client:
        if client.is_crio():
            names = [archive.load_by_skopeo(client, input_, name)]
        else:
            containerd = _containerd(client)
            snapshotter = settings_of(containerd).snapshotter if unpack else ""
            work = Load(containerd, archive.title(input_), snapshotter, lookup.image_folder(client))
            try:
                with closing(containerd):
                    names = _run(work, input_, name, app.outlet(progress, stdout="result"))
            except KeyboardInterrupt:
                message = "the load was stopped; the data so far is kept for a day"
                raise Interrupted(f"{message}, for the next load") from None
    app.env.stdout.writelines(f"{escape(loaded)}\n" for loaded in names)


def _run(work: Load, path: str, name: str, outlet: Outlet) -> list[str]:
    """Load an archive in another thread, and show its progress."""
    tracker = Tracker()
    with archive.opened(path) as members, closing(open_display(outlet)) as display:
        result = call_in_thread(partial(work.run, members, name=name))
        while True:
            is_over = bool(wait([result], outlet.interval_s).done)
            tracker.apply(work.state(), now=time.monotonic())
            display.show(tracker.view(time.monotonic(), time.time()))
            if is_over:
                return result.result()


def tag(
    ctx: typer.Context,
    image: Annotated[
        str, typer.Argument(metavar="IMAGE", autocompletion=complete.images, help="Name or ID.")
    ],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The additional name.")],
) -> None:
    """Give an image another name.

    Example: pycrictl tag docker.io/library/busybox:1.36 registry.example/tools/busybox:1.36
    """
    app: AppContext = ctx.obj
    name = archive.checked_name(new)
    with app.open_client("image") as client:
        known = archive.find_image(client, image)
        if client.is_crio():
            archive.tag_by_skopeo(client, known, name)
        else:
            containerd = _containerd(client)
            containerd.name_image(name, archive.find_target(containerd, known))


def _containerd(client: CriClient) -> ContainerdClient:
    containerd = ContainerdClient(client.path, timeout_s=client.timeout_s)
    containerd.version()  # raises for another runtime
    return containerd
