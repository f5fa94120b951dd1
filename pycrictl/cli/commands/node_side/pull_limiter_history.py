"""``pycrictl pull-limiter history``."""

from __future__ import annotations

from pathlib import Path

from pycrictl import noderoot
from pycrictl.cli.context import AppContext
from pycrictl.errors import ConfigError, ConnectError, UsageError
from pycrictl.proxy import admin
from pycrictl.proxy.figures.history import STATE_FOLDER, newest
from pycrictl.proxy.figures.summary import summary_of
from pycrictl.show import headings, history_table
from pycrictl.show.custom_columns import SortKey
from pycrictl.show.inspect_format import InspectFormat
from pycrictl.units import quote


def folder(admin_path: str, timeout_s: float) -> str:
    """Return where the proxy keeps its history; the usual place if none is running."""
    try:
        found = str(admin.ask(admin_path, "history", timeout_s=timeout_s)["folder"])
    except ConnectError:
        return STATE_FOLDER
    if not found:
        raise UsageError(
            "the proxy keeps no history", hint="it does as the service, or with --state-dir"
        )
    return found


def write(
    app: AppContext,
    folder: str,
    *,
    chosen: InspectFormat,
    since_s: float | None,
    image: str,
    only_failed: bool,
    sort_by: str,
    header: bool,
) -> None:
    """Write the pulls that are meant, and what they have in common.

    Args:
        app: the run of the program.
        folder: of the history.
        chosen: the output format.
        since_s: how long ago the first of them may have ended; None for any time.
        image: a part of its name.
        only_failed: leave out those that brought an image.
        sort_by: a heading or a path to sort by; empty for the time at which they ended.
        header: whether the table has headings and a sum.

    Raises:
        ConfigError: the history cannot be read.
    """
    try:
        records = newest(Path(noderoot.given(folder)))
    except OSError as exc:
        reason = (exc.strerror or str(exc)).lower()
        raise ConfigError(f"cannot read the history in {quote(folder)}: {reason}") from None
    earliest_s = None if since_s is None else app.env.wall_clock() - since_s
    records = [
        record
        for record in records
        if (earliest_s is None or record.ended_s >= earliest_s)
        and image in record.image
        and not (only_failed and record.outcome.is_good)
    ]
    pulls = [record.document() for record in records]
    if sort_by:
        pulls = SortKey(sort_by, headings.PULLS).sorted(pulls, pulls)
    document = {"pulls": pulls, "summary": summary_of(records)}
    if chosen.is_table:
        history_table.write_history(document, app.env.stdout, header=header)
    else:
        chosen.write_document(document, app.env.stdout)
