"""``pycrictl top``."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from pycrictl.base import noderoot
from pycrictl.base.environ import is_dumb
from pycrictl.base.errors import ConnectError, UsageError
from pycrictl.base.ownprogram import own_words
from pycrictl.base.units import escape
from pycrictl.cli import list_options, options
from pycrictl.cli.admin_socket import DEFAULT, AdminSocket, proxy_of
from pycrictl.cli.context import AppContext
from pycrictl.cli.top.board import lines_of
from pycrictl.cli.top.board_poller import BoardPoller, NodeClients
from pycrictl.diagnosis.survey import Sources
from pycrictl.kube.node_pods import NodePods
from pycrictl.node import journal
from pycrictl.show import render
from pycrictl.show.records import records_of
from pycrictl.show.render import Tone, painted

ONCE_PAUSE_S = 1.0
"""CPU usage is the difference between two samples."""


def top(
    ctx: typer.Context,
    once: Annotated[bool, typer.Option("--once", help="Print the screen once as text.")] = False,
    output: Annotated[
        Literal["table", "json"], typer.Option("--output", "-o", help="json: print the data once.")
    ] = "table",
    interval: Annotated[
        float, options.seconds_option("--interval", help="Pause between refreshes.")
    ] = 2.0,
    no_kube: list_options.NoKube = False,
    admin_socket: AdminSocket = DEFAULT,
) -> None:
    """Show the node live on one screen: problems first, then pulls, then the rest.

    The key ? lists the keys. --once prints the screen as text, for scripts and tickets.

    Example: pycrictl top --once
    """
    app: AppContext = ctx.obj
    is_text = once or output == "json"
    env = app.env  # textual writes to stderr
    has_terminal = env.stdin_is_terminal and env.stdout_is_terminal and env.stderr_is_terminal
    records = records_of(env.stdout)
    if not is_text and records is None and (not has_terminal or is_dumb(env.environ)):
        raise UsageError("top needs a terminal", hint="'pycrictl top --once' prints it as text")
    why = ["why", *(["--no-kube"] if no_kube else []), f"--admin-socket={admin_socket}"]
    if app.boards_elsewhere is not None:
        from pycrictl.cli.top.screen import TopApp, play  # noqa: PLC0415 - textual

        app.boards_elsewhere.open()
        play(TopApp(app.boards_elsewhere.look, app.boards_elsewhere.beside, why, interval))
        return
    connect = partial(_connect, app, admin_socket, no_kube=no_kube)
    poller = BoardPoller(connect, os.uname().nodename, wall_s=app.env.wall_clock)
    poller.open()  # connection errors are reported as by any other command
    try:
        if records is not None and not is_text:
            while True:
                records.put("board", poller.look().document())
                time.sleep(interval)
        if is_text:
            _print(app, poller, is_json=output == "json")
        else:
            # Half of this program's memory and a tenth of a second, which only this screen needs.
            from pycrictl.cli.top.screen import TopApp, play  # noqa: PLC0415 - textual

            own = [*own_words(), *app.global_words()]
            play(TopApp(poller.look, lambda _: own, why, interval))
    finally:
        poller.close()


def _connect(app: AppContext, admin_socket: str, *, no_kube: bool) -> NodeClients:
    stack = ExitStack()
    client, images = stack.enter_context(app.open_clients(needs_images=True))
    root = Path(noderoot.directory())
    proxy = proxy_of(client, admin_socket)
    sources = Sources(
        None if no_kube else NodePods(root=root),
        partial(journal.read, root=root, timeout_s=journal.TIMEOUT_S),
        proxy.status if proxy is not None else None,
    )
    return NodeClients(client, images, sources, stack.close)


def _print(app: AppContext, poller: BoardPoller, *, is_json: bool) -> None:
    poller.look()
    time.sleep(ONCE_PAUSE_S)
    board = poller.look()
    if board.problem:
        raise ConnectError(board.problem)
    if is_json:
        render.write_json(board.document(), app.env.stdout)
        return
    columns = app.env.columns or 200
    for line in lines_of(board, columns):
        tone: Tone = "bad" if app.is_coloured and line.startswith("!") else ""
        app.env.stdout.write(f"{painted(escape(line), tone)}\n")
