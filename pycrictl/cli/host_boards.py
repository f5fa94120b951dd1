"""The boards of several hosts as one, for ``top``: a session for each, begun again if lost."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

from pycrictl.errors import PycrictlError
from pycrictl.hosts.connection import Ssh
from pycrictl.hosts.frames import Kind
from pycrictl.hosts.names import Host
from pycrictl.hosts.session import Session
from pycrictl.show.records import parsed
from pycrictl.top.board import Board, BoardRow, lost_row, ordered, rows_in
from pycrictl.units import plural

RETRY_S = 3.0
OUTPUT_S = 30.0
"""How long a command for one row may take."""


class HostBoards:
    """The last board of each host, or why there is none.

    Args:
        start: what each host is told to run.
        words: begin a command line of this program with the options for hosts.
    """

    def __init__(
        self,
        ssh: Ssh,
        hosts: Sequence[Host],
        start: Mapping[str, Any],
        ask: Callable[[], str | None],
        words: Sequence[str],
    ) -> None:
        self._ssh, self._hosts, self._start, self._ask = ssh, hosts, start, ask
        self._words = words
        self._boards: dict[str, Mapping[str, Any]] = {}
        self._lost: dict[str, str] = {host.label: "connecting" for host in hosts}
        self._sessions: dict[str, Session] = {}
        self._is_over = threading.Event()

    def open(self) -> None:
        for host in self._hosts:
            threading.Thread(target=self._follow, args=(host,), daemon=True).start()

    def close(self) -> None:
        self._is_over.set()
        for session in [*self._sessions.values()]:
            session.close()

    def look(self) -> Board:
        rows: list[BoardRow] = []
        pods = 0
        for host in (host.label for host in self._hosts):
            board = self._boards.get(host, {})
            pods += int(board.get("pods") or 0)
            rows += rows_in(board, host)
            if reason := self._lost.get(host) or str(board.get("problem") or ""):
                rows.append(lost_row(host, reason))
        name = plural(len(self._hosts), "host")
        return Board(name, "", time.time(), pods=pods, rows=ordered(rows))

    def beside(self, row: BoardRow) -> list[str]:
        """Return the beginning of a command line of this program for the host of a row."""
        return [*self._words, "--host", row.node]

    def output(self, row: BoardRow, *words: str) -> str:
        """Return what a command for the host of a row prints."""
        done = subprocess.run(
            [*self.beside(row), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=OUTPUT_S,
            check=False,
        )
        return done.stdout or done.stderr

    def _follow(self, host: Host) -> None:
        while not self._is_over.is_set():
            try:
                session = Session(self._ssh, host, self._start, self._ask)
                self._sessions[host.label] = session
                with closing(session):
                    self._receive(session, host.label)
            except PycrictlError as exc:
                self._lost[host.label] = exc.message
            except (OSError, ValueError, TypeError, KeyError) as exc:
                self._lost[host.label] = f"it sends what is no answer: {exc}"
            self._is_over.wait(RETRY_S)

    def _receive(self, session: Session, host: str) -> None:
        rest, said = b"", b""
        for kind, content in session.frames():
            if kind is Kind.RECORD:
                *lines, rest = (rest + content).split(b"\n")
                for line in lines:
                    record = parsed(line)
                    if record.kind == "board":
                        rows_in(record.content, host)  # refuse what cannot be shown
                        self._boards[host] = record.content
                        self._lost.pop(host, None)
            elif kind is Kind.ERROR:
                said = (said + content)[-1000:]
        lines = [line for line in said.splitlines() if not line.startswith(b"hint: ")]
        reason = lines[-1].decode(errors="replace") if lines else "the command has ended"
        raise PycrictlError(reason.removeprefix("pycrictl: "))
