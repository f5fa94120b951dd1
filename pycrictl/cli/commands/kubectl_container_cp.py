"""``kubectl container-cp``."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from pycrictl.cli import options
from pycrictl.cli.cluster_options import Namespace
from pycrictl.cli.commands import cp
from pycrictl.cli.context import AppContext
from pycrictl.cluster.kubectl.copies import in_cluster
from pycrictl.copy.rules import spec


@options.with_records
def container_cp(
    ctx: typer.Context,
    *,
    paths: Annotated[list[str] | None, cp.copy_ends()] = None,
    container: Annotated[
        str,
        typer.Option(
            "--container",
            "-c",
            metavar="CONTAINER",
            help="Container (default: the pod's default container).",
        ),
    ] = "",
    namespace: Namespace = None,
    form: cp.CopyForm,
) -> None:
    """Copy files to or from a container in a cluster.

    One side is POD:PATH or NAMESPACE/POD:PATH, with an absolute path, which may have wildcards in
    quotes. The other is a local path. DIR/. stands for the contents of DIR. Several sources go into
    a directory. Nothing appears at the destination before everything has arrived and its checksum
    is right. If the connection breaks, the copy reconnects and continues. The container needs no
    tar. The exit status is also 1 if something was left out.

    Example: kubectl container-cp -n shop web:/var/lib/data ./data
    """
    app: AppContext = ctx.obj
    sources, destination = cp.split_ends(ctx, paths)
    # In kubectl cp, relative paths are relative to the container's working directory.
    request = spec.parse(
        sources, destination, form="POD:PATH or NAMESPACE/POD:PATH", adds_slash=False
    )
    opened = partial(
        in_cluster,
        options=app.handed_on,
        namespace=namespace or "",
        container=container,
    )
    raise typer.Exit(cp.carry_out(app, request, form, opened))
