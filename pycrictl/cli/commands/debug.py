"""``pycrictl debug``."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Final

import typer

from pycrictl._proto import cri_pb2
from pycrictl.base import noderoot
from pycrictl.base.errors import FailedPrecondition, PycrictlError, UsageError
from pycrictl.base.foreign import mapping, parsed, text, texts
from pycrictl.base.units import quote
from pycrictl.cli import complete, options
from pycrictl.cli.context import AppContext
from pycrictl.cli.pulling import CredentialOptions, pull_image
from pycrictl.copy.on_node import locate_here
from pycrictl.node import namespaces as nsenter
from pycrictl.node.namespaces import Tools
from pycrictl.runtime.containerd import own_leases
from pycrictl.runtime.containerd.daemon import settings_of
from pycrictl.runtime.containerd.grpc_client import ContainerdClient
from pycrictl.runtime.cri.lists.lookup import Lookup
from pycrictl.show.displays import Mode

_MAX_VARIABLE_CHARS: Final = 128 * 1024
"""The limit of execve(2) for one variable."""


def debug(
    ctx: typer.Context,
    container: options.RunningContainer,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[COMMAND]...", help="A program and its arguments (default: sh)."),
    ] = None,
    busybox: Annotated[
        str, options.file_option("--busybox", help="A static busybox (default: the host's).")
    ] = "",
    of_container: options.OfContainer = None,
    namespace: options.InNamespace = None,
    tools: Annotated[
        str,
        typer.Option(
            "--tools",
            metavar="IMAGE",
            autocompletion=complete.images,
            help="Use the programs of this image, which is pulled if it is absent.",
        ),
    ] = "",
    progress: options.Progress = "auto",
) -> None:
    """Run a shell beside a container that has none.

    The shell is a static busybox, or that of an image of --tools, in the container's network, PID,
    IPC and UTS namespaces, with a root of its own; the container's files are below /container.
    Nothing is left in the container. Root on the node only. The exit status is the command's.

    Example: pycrictl debug web
    """
    app: AppContext = ctx.obj
    options.named(container, "container")
    if noderoot.directory() != "/":
        raise UsageError("debug runs on the node itself, not with --host-root")
    if tools and busybox:
        raise UsageError("--tools and --busybox cannot be combined")
    program = None if tools else _find_busybox(busybox)
    with app.open_client("runtime") as client:
        word = options.qualified(container, container=of_container, namespace=namespace)
        target = Lookup(client).found(word, "container")
        try:
            process = locate_here(client, target.id)
        except FailedPrecondition as error:
            error.hint = "its namespaces exist only while it is running"
            raise
    with nullcontext(program) if program else _image(app, tools, progress) as root:
        raise typer.Exit(nsenter.run(process.pid, root, command or ["sh"]))


def _find_busybox(named: str) -> Tools:
    program = named or shutil.which("busybox")
    if not program:
        raise PycrictlError(
            "this host has no busybox",
            hint="install busybox-static, or name one with --busybox, or an image with --tools",
        )
    nsenter.check_static(Path(program))
    return Tools({"PATH": "/bin"}, busybox=str(Path(program).absolute()))


@contextmanager
def _image(app: AppContext, image: str, progress: Mode) -> Iterator[Tools]:
    """Pull an image if it is absent, and yield its layers, held by a view until the end."""
    with app.open_client("runtime") as runtime:
        containerd = ContainerdClient(runtime.path, timeout_s=runtime.timeout_s)
        containerd.version()  # raises if it is another runtime
        own_leases.sweep(containerd)
    wanted = cri_pb2.ImageSpec(image=image)
    with app.open_client("image") as client:
        request = cri_pb2.ImageStatusRequest(image=wanted, verbose=True)
        answer = client.call("ImageStatus", request)
        if not answer.image.id:
            outlet = app.outlet(progress, stdout="result")
            pull = cri_pb2.PullImageRequest(image=wanted)
            keyring = CredentialOptions().keyring(app)
            pull_image(client, pull, outlet, timeout_s=0.0, keyring=keyring, persona=app.persona)
            answer = client.call("ImageStatus", request)
    info = parsed(answer.info.get("info", ""))
    if not (chain_id := text(info.get("chainID"))):
        raise PycrictlError(f"the runtime does not report where image {quote(image)} is unpacked")
    environ = dict(
        entry.split("=", 1)
        for entry in texts(mapping(info, "imageSpec", "config").get("Env"), _MAX_VARIABLE_CHARS)
        if "=" in entry
    )
    snapshotter = settings_of(containerd).snapshotter
    with own_leases.view(containerd, snapshotter, chain_id) as directories:
        yield Tools(environ, layers=[str(directory) for directory in directories])
