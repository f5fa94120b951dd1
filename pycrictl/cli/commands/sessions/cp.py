"""``pycrictl cp``."""

from __future__ import annotations

from typing import Annotated

import typer

from pycrictl.cli import options, stream_options
from pycrictl.cli.context import app_context


def cp(
    ctx: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC", help="What to copy; - for an archive on stdin.", show_default=False
        ),
    ],
    destination: Annotated[
        str,
        typer.Argument(
            metavar="DST", help="Where to copy it; - for an archive on stdout.", show_default=False
        ),
    ],
    archive: Annotated[
        bool,
        typer.Option("--archive", "-a", help="Keep owners, times, and set-id and sticky bits."),
    ] = False,
    follow_link: Annotated[
        bool, typer.Option("--follow-link", "-L", help="If SRC is a link, copy its target.")
    ] = False,
    in_place: Annotated[
        bool,
        typer.Option("--in-place", help="Write into a single file that is mounted at DST."),
    ] = False,
    max_size: Annotated[
        int | None,
        typer.Option("--max-size", **options.SIZE, help="Refuse to copy more, such as 10Gi."),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            metavar="auto|rpc|node|exec",
            help="Use the runtime's RPCs, this node's file systems, or tar in the container.",
        ),
    ] = "auto",
    no_clobber: Annotated[
        bool, typer.Option("--no-clobber", help="Do not replace existing files.")
    ] = False,
    progress: options.Progress = "auto",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
    tls_ca: stream_options.TlsCa = "",
    tls_cert: stream_options.TlsCert = "",
    tls_key: stream_options.TlsKey = "",
    tls_name: stream_options.TlsName = stream_options.TLS_NAME,
    transport: stream_options.StreamTransport = "auto",
) -> None:
    """Copy files to or from a running container.

    One side is CONTAINER:PATH: an ID, the beginning of one, a name or POD/NAME, and an absolute
    path. The other is a local path. DIR/. stands for the contents of DIR. Nothing appears at the
    destination before everything has arrived. The exit status is also 1 if something was left out.

    Example: pycrictl cp -a web:/etc/nginx ./nginx
    """
    from pycrictl.cli import copying
    from pycrictl.copy.copier import CopyOptions
    from pycrictl.copy.rules.policy import Rules

    how = CopyOptions(
        rules=Rules(
            archive=archive, no_clobber=no_clobber, in_place=in_place, max_size_bytes=max_size
        ),
        method=method,
        follow=follow_link,
        choice=stream_options.check_transport(transport),
        tls=stream_options.tls_files(ca=tls_ca, cert=tls_cert, key=tls_key, name=tls_name),
    )
    app = app_context(ctx)
    raise typer.Exit(copying.copy(app, source, destination, how, quiet=quiet, progress=progress))
