"""``pycrictl top``."""

from __future__ import annotations

import io
import os
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pycrictl._proto import cri_pb2
from pycrictl.base import noderoot
from pycrictl.base.environ import is_dumb, is_utf8
from pycrictl.base.errors import ConnectError, UsageError
from pycrictl.base.units import escape
from pycrictl.cli import list_options, options
from pycrictl.cli.admin_socket import DEFAULT, AdminSocket, proxy_of
from pycrictl.cli.context import AppContext
from pycrictl.cli.top.board import BoardRow, record_of
from pycrictl.cli.top.board_poller import BoardPoller, NodeClients
from pycrictl.cli.top.text import lines_of
from pycrictl.diagnosis.pod import document as pod_document
from pycrictl.diagnosis.survey import Sources, Survey
from pycrictl.kube.node_pods import NodePods
from pycrictl.node import journal
from pycrictl.show import diagnosis_text, render
from pycrictl.show.protodata import message_document
from pycrictl.show.records import records_of
from pycrictl.show.render import Tone, painted

if TYPE_CHECKING:
    from pycrictl.cli.host_boards import HostBoards

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
    if app.boards_elsewhere is not None:
        _run_elsewhere(app, app.boards_elsewhere, interval)
        return
    connect = partial(_connect, app, admin_socket, no_kube=no_kube)
    poller = BoardPoller(connect, os.uname().nodename, wall_s=app.env.wall_clock)
    poller.open()  # connection errors are reported as by any other command
    try:
        if records is not None and not is_text:
            while True:
                records.put("board", record_of(poller.look()))
                time.sleep(interval)
        if is_text:
            _print(app, poller, is_json=output == "json")
        else:
            _run(app, poller, interval)
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
    utf8 = is_utf8(app.env.stdout, app.env.environ)
    for line in lines_of(board, columns, is_utf8=utf8):
        tone: Tone = "bad" if app.is_coloured and line.startswith("!") else ""
        app.env.stdout.write(f"{painted(escape(line), tone)}\n")


def _run(app: AppContext, poller: BoardPoller, interval_s: float) -> None:
    # Half of this program's memory and a tenth of a second, which only this screen needs.
    from pycrictl.cli.top.screen import Actions, TopApp, own_words, play  # noqa: PLC0415 - textual

    actions = Actions(
        look=poller.look,
        why=partial(_why, app, poller),
        inspect=partial(_inspect, app, poller),
        beside=lambda _: [*own_words(), *app.global_words()],
    )
    utf8 = is_utf8(app.env.stdout, app.env.environ)
    play(TopApp(actions, interval_s=interval_s, is_utf8=utf8))


def _run_elsewhere(app: AppContext, boards: HostBoards, interval_s: float) -> None:
    from pycrictl.cli.top.screen import Actions, TopApp, play  # noqa: PLC0415 - textual

    actions = Actions(
        look=boards.look,
        why=lambda row: boards.output(row, "why", row.pod),
        inspect=lambda row: boards.output(row, "inspect", row.id),
        beside=boards.beside,
    )
    boards.open()
    utf8 = is_utf8(app.env.stdout, app.env.environ)
    play(TopApp(actions, interval_s=interval_s, is_utf8=utf8))


def _why(app: AppContext, poller: BoardPoller, row: BoardRow) -> str:
    connection = poller.connected
    out = io.StringIO()
    facts = Survey(connection.client, connection.images, connection.sources).look_at(row.pod)
    diagnosis_text.write_pod(pod_document(facts), out, app.env.columns)
    return out.getvalue()


def _inspect(app: AppContext, poller: BoardPoller, row: BoardRow) -> str:
    out = io.StringIO()
    request = cri_pb2.ContainerStatusRequest(container_id=row.id, verbose=False)
    answer = poller.connected.client.call("ContainerStatus", request)
    render.write_json(message_document(answer.status), out, is_ordered=True)
    return out.getvalue()
