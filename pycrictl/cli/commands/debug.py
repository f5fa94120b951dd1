"""``pycrictl debug``."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from pycrictl.base import noderoot
from pycrictl.base.errors import FailedPrecondition, PycrictlError, UsageError
from pycrictl.cli import options
from pycrictl.cli.context import AppContext
from pycrictl.copy.on_node import locate_here
from pycrictl.node import namespaces as nsenter
from pycrictl.runtime.cri.lists.lookup import Lookup


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
) -> None:
    """Run a shell beside a container that has none.

    The shell is a static busybox in the container's network, PID, IPC and UTS namespaces, with a
    root directory of its own; the container's files are below /container. Nothing is left in the
    container. Only root on the node can run it. The exit status is the command's.

    Example: pycrictl debug web
    """
    app: AppContext = ctx.obj
    options.named(container, "container")
    if noderoot.directory() != "/":
        raise UsageError("debug runs on the node itself, not with --host-root")
    program = busybox or shutil.which("busybox")
    if not program:
        raise PycrictlError(
            "this host has no busybox", hint="install busybox-static, or name one with --busybox"
        )
    nsenter.check_static(Path(program))
    with app.open_client("runtime") as client:
        word = options.qualified(container, container=of_container, namespace=namespace)
        target = Lookup(client).resolve(word, "container")
        try:
            process = locate_here(client, target.id)
        except FailedPrecondition as error:
            error.hint = "its namespaces exist only while it is running"
            raise
    raise typer.Exit(nsenter.run(process.pid, str(Path(program).absolute()), command or ["sh"]))
