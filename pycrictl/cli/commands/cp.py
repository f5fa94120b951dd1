"""``pycrictl cp``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated, Literal

import typer

from pycrictl.cli import complete, copying, options, stream_options
from pycrictl.cli.context import AppContext
from pycrictl.copy.methods import Method, on_this_node
from pycrictl.copy.rules import spec
from pycrictl.copy.tree.walk import Watch


@options.with_records
def cp(
    ctx: typer.Context,
    *,
    paths: Annotated[list[str] | None, copying.copy_ends(complete.container_paths)] = None,
    form: copying.CopyForm,
    of_container: options.OfContainer = None,
    max_entries: Annotated[
        int,
        typer.Option(
            "--max-entries",
            parser=options.natural,
            metavar="N",
            help="Refuse to copy more files, directories and links than this; 0: no limit.",
        ),
    ] = 1_000_000,
    namespace: options.InNamespace = None,
    method: Annotated[
        Literal["auto", "rpc", "node"],
        typer.Option(
            "--method",
            help="Use the runtime's RPCs, or this node's file systems.",
        ),
    ] = "auto",
    tls: stream_options.TlsOptions,
) -> None:
    """Copy files to or from a running container.

    One side is CONTAINER:PATH: an ID, the beginning of one, a name or POD/NAME, and a path
    from its root, which may have wildcards in quotes. The other is a local path. DIR/. stands for
    the contents of DIR. Several sources go into a directory. Nothing appears at the destination
    before everything has arrived. The exit status is also 1 if something was left out.

    Example: pycrictl cp -a web:/etc/nginx ./nginx
    """
    app: AppContext = ctx.obj
    sources, destination = copying.split_ends(ctx, paths)

    @contextmanager
    def opened(named: spec.ContainerPath, _watch: Watch) -> Iterator[Iterable[Method]]:
        name = "/".join(filter(None, (named.pod, named.container)))
        name = options.qualified(name, container=of_container, namespace=namespace)
        pod, _, container = name.rpartition("/")
        named = named._replace(pod=pod, container=container)
        with app.open_client("runtime") as client:
            yield on_this_node(client, named, method, tls.files(app.persona))

    request, way = spec.parse(sources, destination), app.copies_elsewhere or opened
    raise typer.Exit(copying.carry_out(app, request, form, way, max_entries=max_entries))
