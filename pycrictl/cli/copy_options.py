"""The options that the commands that copy share."""

from __future__ import annotations

from typing import Annotated

from pycrictl.cli import options
from pycrictl.cli.declare import Argument, Option

Source = Annotated[
    str,
    Argument(metavar="SRC", help="What to copy; - for an archive on stdin.", show_default=False),
]
Destination = Annotated[
    str,
    Argument(
        metavar="DST", help="Where to copy it; - for an archive on stdout.", show_default=False
    ),
]
Archive = Annotated[
    bool, Option("--archive", "-a", help="Keep owners, times, and set-id and sticky bits.")
]
FollowLink = Annotated[
    bool, Option("--follow-link", "-L", help="If SRC is a link, copy its target.")
]
MaxSize = Annotated[
    int | None,
    Option("--max-size", **options.SIZE, help="Refuse to copy more, such as 10Gi."),
]
NoClobber = Annotated[bool, Option("--no-clobber", help="Do not replace existing files.")]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Print nothing but errors.")]
