"""``pycrictl save``, ``load`` and ``tag``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import closing, nullcontext
from functools import partial
from typing import Annotated, BinaryIO, Literal

import typer

from pycrictl.base.errors import ArchiveError, Interrupted, UsageError, reason_of
from pycrictl.base.replacing import replacing
from pycrictl.base.units import escape, quote
from pycrictl.cli import complete, options
from pycrictl.cli.context import AppContext
from pycrictl.pulls.archives import with_skopeo
from pycrictl.pulls.archives.archive import PLATFORM, checked_name, opened, title
from pycrictl.pulls.archives.loading import Load
from pycrictl.pulls.archives.saving import ALL_PLATFORMS, find_image, find_target, saved
from pycrictl.pulls.tracker import Tracker
from pycrictl.runtime.containerd.daemon import settings_of
from pycrictl.runtime.containerd.grpc_client import ContainerdClient
from pycrictl.runtime.containerd.store import own_platform
from pycrictl.runtime.cri.calls.client import CriClient
from pycrictl.runtime.cri.lists import fetch
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
        typer.Option("--format", help="An OCI image layout, or for versions of Docker before 25."),
    ] = "oci",
    platform: Annotated[
        str,
        typer.Option(
            "--platform",
            metavar="OS/ARCH[/VARIANT]|all",
            help="Save the image for this platform (default: the node's).",
            show_default=False,
        ),
    ] = "",
) -> None:
    """Save images as an archive.

    The archive is an OCI image layout, which docker, podman, skopeo, ctr and kind can load.

    Example: pycrictl save docker.io/library/busybox:1.36 -o /tmp/busybox.tar
    """
    app: AppContext = ctx.obj
    if output == "-" and app.env.stdout_is_terminal:
        raise UsageError("an archive is not written to a terminal", hint="give a file with -o")
    if platform not in ("", ALL_PLATFORMS) and not PLATFORM.fullmatch(platform):
        raise UsageError(
            f"--platform {quote(platform)} is not a platform", hint="such as linux/arm64, or all"
        )
    if platform == ALL_PLATFORMS and format_ == "docker":
        raise UsageError("Docker's format holds one platform", hint="name it, or save as oci")
    with app.open_client("image") as client:
        chosen = [find_image(client, image) for image in images]
        try:
            if client.is_crio():
                with_skopeo.save(client, chosen, output, format_)
                return
            pieces = saved(
                _containerd(client),
                chosen,
                platform=platform or own_platform(),
                is_docker=format_ == "docker",
            )
            stdout: BinaryIO = app.env.stdout.buffer
            with nullcontext(stdout) if output == "-" else replacing(output) as file:
                file.writelines(pieces)
                file.flush()
        except OSError as exc:
            if output == "-":
                raise
            reason = reason_of(exc)
            raise ArchiveError(f"cannot write {quote(output, 4096)}: {reason}") from None


def load(
    ctx: typer.Context,
    input_: Annotated[
        str,
        options.file_option("--input", "-i", help="Read the archive from FILE; - is stdin."),
    ] = "-",
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="Name of an image that has none.")
    ] = "",
    unpack: Annotated[
        bool, typer.Option("--unpack", help="Unpack at once, not for the first container.")
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
            names = [with_skopeo.load(client, input_, name)]
        else:
            containerd = _containerd(client)
            work = Load(
                containerd,
                title=title(input_),
                snapshotter=settings_of(containerd).snapshotter if unpack else "",
                folder=fetch.image_folder(client),
            )
            # containerd's end comes first: an error of the file would undo what has arrived.
            with opened(input_) as members, closing(containerd):
                outlet = app.outlet(progress, stdout="result")
                names = _shown(outlet, work, partial(work.run, members, name=name))
    for name_loaded in names:
        app.env.stdout.write(f"{escape(name_loaded)}\n")


def _shown(outlet: Outlet, work: Load, run: Callable[[], list[str]]) -> list[str]:
    """Return the result of ``run``, which another thread computes, and show how far it is."""
    result: Future[list[str]] = Future()

    def compute() -> None:
        try:
            result.set_result(run())
        except BaseException as exc:  # raised again by whoever waits for the result
            result.set_exception(exc)

    tracker = Tracker()
    threading.Thread(target=compute, daemon=True).start()
    try:
        with closing(open_display(outlet)) as display:
            while True:
                is_over = bool(wait([result], outlet.interval_s).done)
                tracker.apply(work.state(), now=time.monotonic())
                if not is_over or tracker.pulls:
                    display.show(tracker.view(time.monotonic(), time.time()))
                if is_over:
                    return result.result()
    except KeyboardInterrupt:
        raise Interrupted(
            "the load was stopped; what has arrived is kept for a day, for the next one"
        ) from None


def tag(
    ctx: typer.Context,
    image: Annotated[
        str, typer.Argument(metavar="IMAGE", autocompletion=complete.images, help="Name or ID.")
    ],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Another name for it.")],
) -> None:
    """Give an image another name.

    Example: pycrictl tag docker.io/library/busybox:1.36 registry.example/tools/busybox:1.36
    """
    app: AppContext = ctx.obj
    name = checked_name(new)
    with app.open_client("image") as client:
        known = find_image(client, image)
        if client.is_crio():
            with_skopeo.tag(client, known, name)
        else:
            containerd = _containerd(client)
            containerd.name_image(name, find_target(containerd, known))


def _containerd(client: CriClient) -> ContainerdClient:
    containerd = ContainerdClient(client.path, timeout_s=client.timeout_s)
    containerd.version()  # raises for another runtime
    return containerd
