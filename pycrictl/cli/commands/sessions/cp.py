"""``pycrictl cp``."""

from __future__ import annotations

from typing import Annotated

from pycrictl.cli import options, stream_options
from pycrictl.cli.context import AppContext, Exit
from pycrictl.cli.declare import Argument, Option


def cp(
    app: AppContext,
    source: Annotated[
        str,
        Argument(
            metavar="SRC", help="What to copy; - for an archive on stdin.", show_default=False
        ),
    ],
    destination: Annotated[
        str,
        Argument(
            metavar="DST", help="Where to copy it; - for an archive on stdout.", show_default=False
        ),
    ],
    archive: Annotated[
        bool,
        Option("--archive", "-a", help="Keep owners, times, and set-id and sticky bits."),
    ] = False,
    follow_link: Annotated[
        bool, Option("--follow-link", "-L", help="If SRC is a link, copy its target.")
    ] = False,
    in_place: Annotated[
        bool,
        Option("--in-place", help="Write into a single file that is mounted at DST."),
    ] = False,
    max_entries: Annotated[
        int,
        Option(
            "--max-entries",
            **options.NATURAL,
            help="Refuse to copy more files, directories and links; 0 for no limit.",
        ),
    ] = 1_000_000,
    max_size: Annotated[
        int | None,
        Option("--max-size", **options.SIZE, help="Refuse to copy more, such as 10Gi."),
    ] = None,
    method: Annotated[
        str,
        Option(
            "--method",
            metavar="auto|rpc|node|exec",
            help="Use the runtime's RPCs, this node's file systems, or tar in the container.",
        ),
    ] = "auto",
    no_clobber: Annotated[
        bool, Option("--no-clobber", help="Do not replace existing files.")
    ] = False,
    progress: options.Progress = "auto",
    quiet: Annotated[bool, Option("--quiet", "-q", help="Print nothing but errors.")] = False,
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
            archive=archive,
            no_clobber=no_clobber,
            in_place=in_place,
            max_size_bytes=max_size,
            max_entries=max_entries,
        ),
        method=method,
        follow=follow_link,
        choice=stream_options.check_transport(transport),
        tls=stream_options.tls_files(ca=tls_ca, cert=tls_cert, key=tls_key, name=tls_name),
    )
    raise Exit(copying.copy(app, source, destination, how, quiet=quiet, progress=progress))
