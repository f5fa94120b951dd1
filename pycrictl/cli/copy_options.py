"""Options shared by the commands that copy."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pycrictl.cli import complete, options


def source(completer: complete.Completer) -> Any:
    return typer.Argument(
        metavar="SRC",
        help="What to copy; - for an archive on stdin.",
        show_default=False,
        autocompletion=completer,
    )


def destination(completer: complete.Completer) -> Any:
    return typer.Argument(
        metavar="DST",
        help="Where to copy it; - for an archive on stdout.",
        show_default=False,
        autocompletion=completer,
    )


Archive = Annotated[
    bool, typer.Option("--archive", "-a", help="Keep owners, times, and set-id and sticky bits.")
]
FollowLink = Annotated[
    bool, typer.Option("--follow-link", "-L", help="If SRC is a link, copy its target.")
]
MaxSize = Annotated[
    int | None,
    typer.Option(
        "--max-size",
        parser=options.size,
        metavar="SIZE",
        help="Refuse to copy more than this, such as 10Gi.",
    ),
]
NoClobber = Annotated[bool, typer.Option("--no-clobber", help="Do not replace existing files.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
