"""``kubectl container-cp``."""

from __future__ import annotations

from typing import Annotated

from pycrictl.cli import options
from pycrictl.cli.context import AppContext, Exit
from pycrictl.cli.declare import Argument, Option


def container_cp(
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
    container: Annotated[
        str,
        Option(
            "--container", "-c", metavar="CONTAINER", help="Container (default: the pod's own)."
        ),
    ] = "",
    namespace: Annotated[
        str,
        Option(
            "--namespace", "-n", metavar="NAMESPACE", help="Namespace (default: kubectl's own)."
        ),
    ] = "",
    archive: Annotated[
        bool,
        Option("--archive", "-a", help="Keep owners, times, and set-id and sticky bits."),
    ] = False,
    follow_link: Annotated[
        bool, Option("--follow-link", "-L", help="If SRC is a link, copy its target.")
    ] = False,
    max_size: Annotated[
        int | None,
        Option("--max-size", **options.SIZE, help="Refuse to copy more, such as 10Gi."),
    ] = None,
    no_clobber: Annotated[
        bool, Option("--no-clobber", help="Do not replace existing files.")
    ] = False,
    progress: options.Progress = "auto",
    quiet: Annotated[bool, Option("--quiet", "-q", help="Print nothing but errors.")] = False,
    resume: Annotated[
        bool, Option("--resume", help="Take up the same copy where a killed program left it.")
    ] = False,
    retries: Annotated[
        int | None,
        Option(
            "--retries",
            **options.NATURAL,
            help="Open a broken connection so often in a row without progress (default: for 15"
            " minutes).",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Copy files to or from a container in a cluster.

    One side is POD:PATH or NAMESPACE/POD:PATH, with an absolute path. The other is a local path.
    DIR/. stands for the contents of DIR. Nothing appears at the destination before everything has
    arrived and its checksum is right. A connection that breaks is opened again, and the copy goes
    on where it was. The container needs no tar. The exit status is also 1 if something was left
    out.

    Options of kubectl's connection, such as --context, are handed on to kubectl.

    Example: kubectl container-cp -n shop web:/var/lib/data ./data
    """
    from functools import partial

    from pycrictl.cli import copying
    from pycrictl.copy.copier import CopyOptions
    from pycrictl.copy.rules import spec
    from pycrictl.copy.rules.policy import Rules
    from pycrictl.kubectl.copies.command import InCluster, opened

    request = spec.parse(source, destination, form="POD:PATH or NAMESPACE/POD:PATH")
    rules = Rules(archive=archive, no_clobber=no_clobber, max_size_bytes=max_size)
    how = CopyOptions(rules=rules, follow=follow_link)
    where = InCluster(tuple(app.handed_on), namespace, container, retries, resume)
    copier = partial(opened, where, how, app.env.environ)
    raise Exit(copying.carry_out(app, request, how, copier, quiet=quiet, progress=progress))
