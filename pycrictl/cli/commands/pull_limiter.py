"""``pycrictl pull-limiter``: the limit, the queue, and the last pulls."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pycrictl.base import noderoot
from pycrictl.base.config import socket_path
from pycrictl.base.errors import ConfigError, ConnectError, UsageError, reason_of
from pycrictl.base.foreign import moment
from pycrictl.base.units import escape, quote
from pycrictl.cli import list_options, options
from pycrictl.cli.admin_socket import DEFAULT, AdminSocket
from pycrictl.cli.context import AppContext
from pycrictl.diagnosis.error_causes import pull_words
from pycrictl.proxy import admin
from pycrictl.proxy.pulls.pull_calls import CallOutcome
from pycrictl.proxy.telemetry.history_file import STATE_FOLDER, newest
from pycrictl.pulls.sources.failures import cause
from pycrictl.show import limiter_tables
from pycrictl.show.formats import OUTPUT_FORMATS, Format


def pull_limiter(
    ctx: typer.Context,
    action: Annotated[
        str | None, typer.Argument(metavar="COMMAND", help="One of the commands below.")
    ] = None,
) -> None:
    """Show or set a running proxy's limit on image pulls; show its last pulls.

    Example: pycrictl pull-limiter status
    """
    problem = "no command is given" if action is None else f"there is no command {quote(action)}"
    raise UsageError(problem, hint="status, set N, cancel IMAGE|POD or history")


def status(
    ctx: typer.Context,
    admin_socket: AdminSocket = DEFAULT,
    output: list_options.Output = "table",
) -> None:
    """Show the limit, the pulls in progress, the queue, and kubelet's own limit.

    Example: pycrictl pull-limiter status
    """
    app: AppContext = ctx.obj
    chosen = Format(output, formats=OUTPUT_FORMATS)
    document = _ask(app, admin_socket, "status")
    if not chosen.is_table:
        chosen.write_document(document, app.env.stdout)
        return
    if not app.config.debug:
        for failure in document["failures"]:
            words = pull_words(failure["error"], failure["image"])
            failure["error"] = cause(failure["error"]) if words is None else words.text
    limiter_tables.write_status(document, app.env.stdout)


def set_limit(
    ctx: typer.Context,
    limit: Annotated[
        int,
        typer.Argument(
            metavar="N", parser=options.natural, help="Pull at most N images at once; 0: no limit."
        ),
    ],
    admin_socket: AdminSocket = DEFAULT,
) -> None:
    """Change the limit at once, until the proxy is reloaded or restarted.

    Example: pycrictl pull-limiter set 2
    """
    app: AppContext = ctx.obj
    answer = _ask(app, admin_socket, "set-limit", limit=limit)
    app.env.stdout.write(f"limit {answer['before']} -> {answer['limit']}\n")


def cancel(
    ctx: typer.Context,
    target: Annotated[str, typer.Argument(metavar="IMAGE|POD", help="The waiting pulls to drop.")],
    admin_socket: AdminSocket = DEFAULT,
) -> None:
    """Drop queued pulls of an image or a pod.

    The kubelet retries later.

    Example: pycrictl pull-limiter cancel default/training
    """
    app: AppContext = ctx.obj
    for call in _ask(app, admin_socket, "cancel", target=target)["cancelled"]:
        pod = f" ({call['pod']})" if call["pod"] else ""
        app.env.stdout.write(escape(f"cancelled: {call['image']}{pod}") + "\n")


def history(
    ctx: typer.Context,
    admin_socket: AdminSocket = DEFAULT,
    output: list_options.Output = "table",
    since: Annotated[
        float | None,
        options.duration_option(
            "--since", help="Only pulls that ended within the last DURATION, such as 24h."
        ),
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only failed pulls.")] = False,
) -> None:
    """Show the last 10,000 pulls, including those of earlier runs of the proxy.

    Example: pycrictl pull-limiter history --since 24h --failed
    """
    app: AppContext = ctx.obj
    chosen = Format(output, formats=OUTPUT_FORMATS)
    folder = _history_folder(app, admin_socket)
    try:
        records = newest(Path(noderoot.given(folder)))
    except OSError as exc:
        reason = reason_of(exc)
        raise ConfigError(f"cannot read the history in {quote(folder)}: {reason}") from None
    earliest_s = None if since is None else app.env.wall_clock() - since
    document = {
        "pulls": [
            record
            for record in records
            if (earliest_s is None or moment(record["ended"]) >= earliest_s)
            and not (failed and record["outcome"] in (CallOutcome.PULLED, CallOutcome.PRESENT))
        ]
    }
    if chosen.is_table:
        limiter_tables.write_history(document, app.env.stdout)
    else:
        chosen.write_document(document, app.env.stdout)


def _ask(app: AppContext, admin_socket: str, command: str, **fields: Any) -> dict[str, Any]:
    path = noderoot.given(socket_path(admin_socket, "admin-socket"))
    return admin.ask(path, command, timeout_s=max(app.config.timeout_s, 10.0), **fields)


def _history_folder(app: AppContext, admin_socket: str) -> str:
    """Return the folder of the proxy's history; the default one if no proxy is running."""
    try:
        folder = str(_ask(app, admin_socket, "sockets")["history"])
    except ConnectError:
        return STATE_FOLDER
    if not folder:
        raise UsageError(
            "the proxy keeps no history", hint="it keeps one as a service, or with --state-dir"
        )
    return folder
