"""``pycrictl top``: the node, polled at intervals, even while the runtime does not answer.

With several hosts, each runs it and sends its boards (``show.records``); a host that is lost is
tried again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

import typer

from pycrictl._proto import cri_pb2
from pycrictl.base.environ import is_dumb, terminal_size
from pycrictl.base.errors import ConnectError, PycrictlError, UsageError
from pycrictl.base.units import escape, plural
from pycrictl.cli import list_options, options
from pycrictl.cli.admin_socket import DEFAULT, AdminSocket
from pycrictl.cli.board import Board, lines_of, lost_row, ordered, rows_in, rows_of
from pycrictl.cli.commands.diagnosing import Connection, connected
from pycrictl.cli.context import AppContext
from pycrictl.diagnosis.survey import Sources, Survey
from pycrictl.pulls.messages import pulls_in_line
from pycrictl.pulls.sources.node_watch import Pulls, RuntimePulls, from_proxy
from pycrictl.pulls.state import PullState
from pycrictl.runtime.cri.calls.client import CriClient
from pycrictl.show import render
from pycrictl.show.records import Lines, Record, records_of
from pycrictl.show.render import Tone, painted

if TYPE_CHECKING:
    from pycrictl.show.records import Events


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

    The screen is refreshed until Ctrl-C. For scripts and tickets, --once prints it once as text.

    Example: pycrictl top --once
    """
    app: AppContext = ctx.obj
    env, records = app.env, records_of(app.env.stdout)
    is_once = once or output == "json"
    if not is_once and records is None and (not env.stdout_is_terminal or is_dumb(env.environ)):
        raise UsageError("top needs a terminal", hint="'pycrictl top --once' prints it as text")
    if app.top_elsewhere is not None:
        _show(app, HostBoards(*app.top_elsewhere).board, interval)
        return
    connect = partial(connected, app, admin_socket, no_kube=no_kube)
    poller = BoardPoller(connect, os.uname().nodename, wall_s=env.wall_clock)
    try:
        poller.open()  # connection errors are reported as by any other command
        if not is_once and records is None:
            _show(app, poller.poll, interval)
        while not is_once and records is not None:
            records.put("board", poller.poll().document())
            time.sleep(interval)
        if is_once:
            _print(app, poller.poll(), is_json=output == "json")
    finally:
        poller.close()


def _show(app: AppContext, poll: Callable[[], Board], interval_s: float) -> None:
    """Show the board until Ctrl-C; rows that do not fit on the screen are counted."""

    def write(board: Board, out: TextIO) -> None:
        _write(app, board, out, terminal_size(app.env.stdout, app.env.environ)[0])

    with app.until_interrupted() as viewer:
        viewer.follow(poll, write, pause_s=interval_s)


def _print(app: AppContext, board: Board, *, is_json: bool) -> None:
    if board.problem:
        raise ConnectError(board.problem)
    if is_json:
        render.write_json(board.document(), app.env.stdout)
    else:
        _write(app, board, app.env.stdout, app.env.columns or 200)


def _write(app: AppContext, board: Board, out: TextIO, columns: int) -> None:
    for line in lines_of(board, columns):
        tone: Tone = "bad" if app.is_coloured and line.startswith("!") else ""
        out.write(f"{painted(escape(line), tone)}\n")


class BoardPoller:
    """Polls a node; ``retry_s`` is the pause after a failure to read its pulls."""

    def __init__(
        self,
        connect: Callable[[], AbstractContextManager[Connection]],
        node: str,
        *,
        wall_s: Callable[[], float] = time.time,
        retry_s: float = 30.0,
    ) -> None:
        self._connect = connect
        self._retry_s, self._retry_at = retry_s, 0.0
        self._wall_s = wall_s
        self._stack = ExitStack()
        self._survey: Survey | None = None
        self._of_runtime: RuntimePulls | None = None
        self._pulls: list[PullState] = []
        self._board = Board(node, "", wall_s())

    def poll(self) -> Board:
        """Return the current board; if the runtime does not answer, the last one and the reason."""
        try:
            if self._survey is None:
                self.open()
            self._board = self._polled()
        except (PycrictlError, OSError) as exc:
            self.close()
            text = exc.message if isinstance(exc, PycrictlError) else str(exc)
            since_s = self._board.since_s or self._board.at_s
            self._board = replace(self._board, problem=text, since_s=since_s, at_s=self._wall_s())
        return self._board

    def open(self) -> None:
        client, images, sources = self._stack.enter_context(self._connect())
        answer = client.call("Version", cri_pb2.VersionRequest())
        runtime = f"{answer.runtime_name} {answer.runtime_version.removeprefix('v')}"
        self._board = replace(self._board, runtime=runtime)
        find_pulls = partial(self._find_pulls, client, sources)
        self._survey = Survey(client, images, sources, find_pulls, wall_s=self._wall_s)

    def close(self) -> None:
        self._survey = self._of_runtime = None
        self._stack.close()

    def _polled(self) -> Board:
        assert self._survey is not None
        self._pulls = []
        overview = self._survey.pods()
        free = [disk.free_share for disk in overview.disks if disk.use == "images"]
        return replace(
            self._board,
            at_s=self._wall_s(),
            pods=len(overview.reports),
            rows=ordered(rows_of(overview.reports, self._pulls)),
            disk_free=free[0] if free else None,
            problem="",
            since_s=0.0,
        )

    def _find_pulls(
        self, client: CriClient, sources: Sources, absent: Sequence[str]
    ) -> Callable[[str], Pulls]:
        if sources.ask_proxy is not None:
            with suppress(PycrictlError):  # it may be restarting: containerd shows its pulls
                status = sources.ask_proxy()
                self._pulls = pulls_in_line(status)
                return lambda owner: from_proxy(status, owner)
        if time.monotonic() < self._retry_at:
            return lambda _: Pulls()
        try:
            if self._of_runtime is None:
                self._of_runtime = RuntimePulls(client, sources.pods)
            pulls = self._of_runtime.poll(absent)
        except PycrictlError:  # neither containerd nor CRI-O, or no access to it
            self._of_runtime, self._retry_at = None, time.monotonic() + self._retry_s
            return lambda _: Pulls()
        self._pulls = [
            pull if pull.image else replace(pull, image=name) for name, pull in pulls.items()
        ]
        return lambda _: Pulls(node=pulls)


class HostBoards:
    """The last board of each host, or why there is none.

    Args:
        run: yields what hosts send; tries a lost host again after ``retry_s``.
    """

    def __init__(self, hosts: Sequence[str], run: Callable[..., Events]) -> None:
        self._hosts = hosts
        self._boards: dict[str, Mapping[str, Any]] = {}
        self._lost = dict.fromkeys(hosts, "connecting")
        threading.Thread(target=self._follow, args=(run(retry_s=3.0),), daemon=True).start()

    def board(self) -> Board:
        boards = {host: self._boards.get(host, {}) for host in self._hosts}
        rows = [row for host, board in boards.items() for row in rows_in(board, host)]
        for host, board in boards.items():
            if reason := self._lost.get(host) or str(board.get("problem") or ""):
                rows.append(lost_row(host, reason))
        pods = sum(int(board.get("pods") or 0) for board in boards.values())
        name = plural(len(self._hosts), "host")
        return Board(name, "", time.time(), pods=pods, rows=ordered(rows))

    def _follow(self, events: Events) -> None:
        said: dict[str, str] = {}  # the last error of each host
        for host, event in filter(None, events):
            if isinstance(event, Lines):
                for line in event.lines if event.is_error else ():
                    if not line.startswith(b"hint: "):
                        said[host] = line.decode(errors="replace").removeprefix("pycrictl: ")
            elif not isinstance(event, Record):
                self._lost[host] = event.error or said.pop(host, "the command has ended")
            else:
                try:
                    rows_in(event.content, host)
                except (ValueError, TypeError, KeyError) as exc:
                    self._lost[host] = f"its answer is not valid: {exc}"
                else:
                    self._boards[host] = event.content
                    self._lost.pop(host, None)
