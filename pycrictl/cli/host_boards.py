"""The boards of several hosts as one, for ``top``; a host that is lost is tried again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pycrictl.base.units import plural
from pycrictl.cli.board import Board, BoardRow, lost_row, ordered, rows_in
from pycrictl.hosts.connection import Ssh
from pycrictl.hosts.names import Host
from pycrictl.hosts.several import Several
from pycrictl.show.records import End, Event, Lines, Record

if TYPE_CHECKING:
    from pycrictl.hosts.session import Fields

RETRY_S = 3.0


class HostBoards:
    """The last board of each host, or why there is none.

    Args:
        start: what a host is told to run.
    """

    def __init__(self, ssh: Ssh, hosts: Sequence[Host], start: Callable[[Host], Fields]) -> None:
        self._labels = [host.label for host in hosts]
        self._several = Several(ssh, hosts, start, self._keep, again_s=RETRY_S)
        self._boards: dict[str, Mapping[str, Any]] = {}
        self._lost = dict.fromkeys(self._labels, "connecting")
        self._said: dict[str, str] = {}

    def open(self) -> None:
        most = len(self._labels)
        threading.Thread(target=self._several.run, args=(most,), daemon=True).start()

    def look(self) -> Board:
        rows: list[BoardRow] = []
        pods = 0
        for host in self._labels:
            board = self._boards.get(host, {})
            pods += int(board.get("pods") or 0)
            rows += rows_in(board, host)
            if reason := self._lost.get(host) or str(board.get("problem") or ""):
                rows.append(lost_row(host, reason))
        name = plural(len(self._labels), "host")
        return Board(name, "", time.time(), pods=pods, rows=ordered(rows))

    def _keep(self, event: tuple[str, Event] | None) -> None:
        match event:
            case (host, Lines() as printed):
                for line in printed.lines:
                    if printed.is_error and not line.startswith(b"hint: "):
                        text = line.decode(errors="replace")
                        self._said[host] = text.removeprefix("pycrictl: ")
            case (host, End() as end):
                self._lost[host] = end.error or self._said.pop(host, "the command has ended")
            case (host, Record() as record):
                try:
                    rows_in(record.content, host)
                except (ValueError, TypeError, KeyError) as exc:
                    self._lost[host] = f"its answer is not valid: {exc}"
                else:
                    self._boards[host] = record.content
                    self._lost.pop(host, None)
