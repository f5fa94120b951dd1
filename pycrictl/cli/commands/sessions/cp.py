"""``pycrictl cp``."""

from __future__ import annotations

from typing import Annotated

from pycrictl.cli import copy_options, options, stream_options
from pycrictl.cli.context import AppContext, Exit
from pycrictl.cli.declare import Option


def cp(
    app: AppContext,
    source: copy_options.Source,
    destination: copy_options.Destination,
    archive: copy_options.Archive = False,
    follow_link: copy_options.FollowLink = False,
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
    max_size: copy_options.MaxSize = None,
    method: Annotated[
        str,
        Option(
            "--method",
            metavar="auto|rpc|node|exec",
            help="Use the runtime's RPCs, this node's file systems, or tar in the container.",
        ),
    ] = "auto",
    no_clobber: copy_options.NoClobber = False,
    progress: options.Progress = "auto",
    quiet: copy_options.Quiet = False,
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
