"""``pycrictl pull-limiter``: the limit, the queue, and the last pulls."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pycrictl import noderoot
from pycrictl.cli import list_options, options
from pycrictl.cli.admin_socket import DEFAULT, AdminSocket
from pycrictl.cli.context import AppContext
from pycrictl.config import socket_path
from pycrictl.diagnosis.troubles import pull_words
from pycrictl.errors import ConfigError, ConnectError, UsageError
from pycrictl.progress.failures import cause
from pycrictl.proxy import admin
from pycrictl.proxy.figures.history import STATE_FOLDER, newest, summary_of
from pycrictl.show import limiter_tables
from pycrictl.show.columns import SortKey, sort_paths
from pycrictl.show.formats import Format
from pycrictl.units import escape, quote

if TYPE_CHECKING:
    from typing import TextIO


def pull_limiter(
    ctx: typer.Context,
    action: Annotated[
        Literal["status", "set", "cancel", "history"] | None,
        typer.Argument(metavar="status|set|cancel|history", help="What to do."),
    ] = None,
    what: Annotated[
        str,
        typer.Argument(
            metavar="[N|IMAGE|POD]",
            help="With set: pull at most N images at once. With cancel: the pulls to drop.",
        ),
    ] = "",
    admin_socket: AdminSocket = DEFAULT,
    output: options.Output = "table",
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh until Ctrl-C.")] = False,
    interval: Annotated[
        float | None,
        options.seconds_option(
            "--interval", help="With --watch: seconds between refreshes (default: 2)."
        ),
    ] = None,
    since: Annotated[
        float | None,
        options.duration_option(
            "--since",
            help="With history: only pulls that ended within the last DURATION, such as 24h.",
        ),
    ] = None,
    image: Annotated[
        str,
        typer.Option(
            "--image", metavar="TEXT", help="With history: only images whose name contains TEXT."
        ),
    ] = "",
    failed: Annotated[
        bool, typer.Option("--failed", help="With history: only failed pulls.")
    ] = False,
    sort_by: Annotated[
        str,
        list_options.sort_by(
            limiter_tables.HISTORY,
            "rate",
            help="With history: sort by a column, such as rate; with -, descending.",
        ),
    ] = "",
    no_headers: Annotated[
        bool, typer.Option("--no-headers", help="With history: omit the headings and the summary.")
    ] = False,
) -> None:
    """Show or set a running proxy's limit on image pulls; show its last pulls.

    status shows the limit, the pulls in progress, the queue, and other limits on the node. set
    changes the limit at once, until the proxy is reloaded or restarted; 0 means no limit. cancel
    drops queued pulls of an image or a pod; kubelet retries later. history shows the last 10,000
    pulls, including those of earlier runs of the proxy, and a summary.

    Example: pycrictl pull-limiter status --watch

    Example: pycrictl pull-limiter history --since 24h --failed
    """
    app: AppContext = ctx.obj
    chosen = Format(output, formats=options.OUTPUT_FORMATS)
    path = noderoot.given(socket_path(admin_socket, "admin-socket"))
    timeout_s = max(app.config.timeout_s, 10.0)
    if action != "history" and (since is not None or image or failed or sort_by or no_headers):
        options_ = "--since, --image, --failed, --sort-by and --no-headers"
        raise UsageError(f"{options_} go with pull-limiter history only")
    if action == "status" and not what:
        _show_status(
            app,
            lambda: admin.ask(path, "status", timeout_s=timeout_s),
            chosen,
            (interval or 2.0) if watch else None,
        )
    elif action == "set":
        if not re.fullmatch("[0-9]{1,9}", what):
            raise UsageError(
                "set needs a number: how many images may be pulled at once (0: no limit)"
            )
        answer = admin.ask(path, "set-limit", timeout_s=timeout_s, limit=int(what))
        app.env.stdout.write(f"limit {answer['before']} -> {answer['limit']}\n")
    elif action == "cancel" and what:
        answer = admin.ask(path, "cancel", timeout_s=timeout_s, target=what)
        for call in answer["cancelled"]:
            pod = f" ({call['pod']})" if call["pod"] else ""
            app.env.stdout.write(escape(f"given up: {call['image']}{pod}") + "\n")
    elif action == "history" and not what:
        _write_history(
            app,
            _history_folder(path, timeout_s),
            chosen=chosen,
            since_s=since,
            image=image,
            only_failed=failed,
            sort_by=sort_by,
            header=not no_headers,
        )
    else:
        raise UsageError("no action is given", hint="status, set N, cancel IMAGE|POD or history")


def _show_status(
    app: AppContext, ask: Callable[[], dict[str, Any]], chosen: Format, pause_s: float | None
) -> None:
    def write(out: TextIO) -> None:
        document = ask()
        if chosen.is_table:
            if not app.config.debug:
                for one in document["failures"]:
                    words = pull_words(one["error"], one["image"])
                    one["error"] = cause(one["error"]) if words is None else words.text
            limiter_tables.write_status(document, out)
        else:
            chosen.write_document(document, out)

    if pause_s is None:
        write(app.env.stdout)
    else:
        with app.until_interrupted() as viewer:
            viewer.repeat(write, pause_s=pause_s)


def _history_folder(admin_path: str, timeout_s: float) -> str:
    """Return the folder of the proxy's history; the default one if no proxy is running."""
    try:
        found = str(admin.ask(admin_path, "history", timeout_s=timeout_s)["folder"])
    except ConnectError:
        return STATE_FOLDER
    if not found:
        raise UsageError(
            "the proxy keeps no history", hint="it does as the service, or with --state-dir"
        )
    return found


def _write_history(
    app: AppContext,
    folder: str,
    *,
    chosen: Format,
    since_s: float | None,
    image: str,
    only_failed: bool,
    sort_by: str,
    header: bool,
) -> None:
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
        pulls = SortKey(sort_by, sort_paths(limiter_tables.HISTORY)).sorted(pulls, pulls)
    document = {"pulls": pulls, "summary": summary_of(records)}
    if chosen.is_table:
        limiter_tables.write_history(document, app.env.stdout, header=header)
    else:
        chosen.write_document(document, app.env.stdout)
