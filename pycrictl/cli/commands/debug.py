"""``pycrictl debug``."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from pycrictl import noderoot, nsenter
from pycrictl.cli import complete
from pycrictl.cli.context import AppContext
from pycrictl.copy.node.on_node import locate_here
from pycrictl.cri.lists.lookup import Lookup
from pycrictl.errors import PycrictlError, UsageError


def debug(
    ctx: typer.Context,
    container: Annotated[
        str,
        typer.Argument(
            metavar="CONTAINER",
            autocompletion=complete.running_containers,
            help="ID or name of a running container.",
            show_default=False,
        ),
    ],
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[COMMAND]...",
            help="An applet of busybox and its arguments (default: sh).",
            show_default=False,
        ),
    ] = None,
    busybox: Annotated[
        str,
        typer.Option(
            "--busybox",
            metavar="FILE",
            autocompletion=complete.files,
            help="A static busybox (default: the host's).",
        ),
    ] = "",
) -> None:
    """Run a shell beside a container that has none.

    The shell is a static busybox in the container's network, PID, IPC and UTS namespaces, with a
    root of its own; the container's files are below /container. Nothing is left in the container.
    Root on the node only. The exit status is the command's.

    Example: pycrictl debug web
    """
    app: AppContext = ctx.obj
    if not container:
        raise UsageError("the container ID is empty")
    if noderoot.directory() != "/":
        raise UsageError("debug runs on the node itself, not with --host-root")
    program = Path(busybox or shutil.which("busybox") or "")
    if not str(program) or program == Path():
        raise PycrictlError(
            "this host has no busybox",
            hint="install busybox-static, or name a static one with --busybox",
        )
    nsenter.check_static(program)
    with app.open_client("runtime") as client:
        target = Lookup(client).found(container, "container")
        process = locate_here(client, target.id)
    app.env.stdout.flush()
    with tempfile.TemporaryDirectory(prefix="pycrictl-debug-") as scratch:
        words = command or ["sh"]
        code = nsenter.run(process.pid, program, words, Path(scratch))
    raise typer.Exit(code)
