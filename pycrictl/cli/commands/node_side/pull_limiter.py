"""``pycrictl pull-limiter``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pycrictl.cli import options
from pycrictl.cli.context import AppContext, app_context
from pycrictl.errors import UsageError

if TYPE_CHECKING:
    from typing import TextIO


def pull_limiter(
    ctx: typer.Context,
    action: Annotated[
        str, typer.Argument(metavar="status|set", help="What to do.", show_default=False)
    ] = "",
    limit: Annotated[
        str,
        typer.Argument(
            metavar="[N]", help="With set: pull at most N images at once.", show_default=False
        ),
    ] = "",
    admin_socket: Annotated[
        str,
        typer.Option("--admin-socket", metavar="SOCKET", help="The proxy's admin socket."),
    ] = "unix:///run/pycrictl/admin.sock",
    output: options.Output = "table",
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show it repeatedly, until Ctrl-C.")
    ] = False,
    interval: Annotated[
        float | None,
        typer.Option(
            "--interval",
            **options.INTERVAL,
            help="With --watch: the pause (default: 2).",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show or set a running proxy's limit on parallel image pulls.

    status shows the limit, what is being pulled, who waits for what, and what else limits pulls on
    the node. set changes the limit at once, until the proxy restarts; 0 means no limit.

    Example: pycrictl pull-limiter status --watch
    """
    from pycrictl.config import Setting, socket_path
    from pycrictl.proxy import admin

    options.check_output(output, "json", "yaml", "table")
    app = app_context(ctx)
    path = socket_path(Setting(admin_socket, "flag"), "admin-socket")
    timeout_s = max(app.config.timeout_s.value, 10.0)
    if action == "status" and not limit:
        _show_status(
            app,
            lambda: admin.ask(path, "status", timeout_s=timeout_s),
            output,
            (interval or 2.0) if watch else None,
        )
    elif action == "set":
        try:
            number = int(limit) if limit.isascii() and limit.isdigit() else -1
        except ValueError:
            number = -1
        if number < 0:
            raise UsageError(
                "set needs a number: how many images may be pulled at once (0: no limit)"
            )
        answer = admin.ask(path, "set-limit", timeout_s=timeout_s, limit=number)
        app.env.stdout.write(f"limit {answer['before']} -> {answer['limit']}\n")
    else:
        raise UsageError("say what to do: pull-limiter status, or pull-limiter set N")


def _show_status(
    app: AppContext, ask: Callable[[], dict[str, Any]], output: str, pause_s: float | None
) -> None:
    """Show the status once, or again after each pause until Ctrl-C."""
    from pycrictl.show import limiter_tables, render

    def write(out: TextIO) -> None:
        document = ask()
        if output == "json":
            render.write_document_json(document, out)
        elif output == "yaml":
            render.write_document_yaml(document, out)
        else:
            limiter_tables.write_status(document, out)

    if pause_s is None:
        write(app.env.stdout)
    else:
        with app.until_interrupted() as viewer:
            viewer.repeat(write, pause_s=pause_s)
