"""A command on several hosts at once; ``show.merged`` makes one of what they print."""

from __future__ import annotations

import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pycrictl.errors import PycrictlError
from pycrictl.hosts.connection import Ssh
from pycrictl.hosts.frames import Kind
from pycrictl.hosts.session import PIECE_BYTES, Session, status_of
from pycrictl.show.records import parsed
from pycrictl.wire.logtime import TIMESTAMP, timestamp_ns

if TYPE_CHECKING:
    from pycrictl.hosts.names import Host
    from pycrictl.show.merged import Merged

PATIENCE_S: Final = 0.5
"""How long a log line waits for earlier ones of other hosts."""

_TICK_S: Final = 0.2
_LINE_BYTES: Final = 64 * 1024
"""Longer lines are split."""

_QUEUED: Final = 64
"""How many pieces of each host may wait to be shown."""

_RECORDS_BYTES: Final = 32 * 1024 * 1024
"""How much data of one host is kept until all have answered."""

_STAMP: Final = re.compile(rb"(%s) " % TIMESTAMP)


class _Output:
    """What one host has sent and the main thread has not shown yet.

    Each item has the key that orders it among those of all hosts, and when it arrived.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self.items: deque[tuple[float, float, Kind, Any]] = deque()
        self.is_over = False
        self.status = 0
        self.error = ""


class Several:
    """Runs a command on several hosts.

    Args:
        most: how many hosts run it at the same time.
        input_from: a descriptor that is read once for all of them; None for no input.
        strips: None if lines do not begin with times, by which those of all hosts are ordered;
            else whether the times are removed.
    """

    def __init__(
        self,
        ssh: Ssh,
        hosts: Sequence[Host],
        start: Mapping[str, Any],
        *,
        most: int,
        ask: Callable[[], str | None],
        input_from: int | None = None,
        strips: bool | None = None,
    ) -> None:
        self._ssh, self._start, self._ask = ssh, start, ask
        self._outputs = [_Output(host) for host in hosts]
        self._changed = threading.Condition()
        self._slots = threading.Semaphore(len(hosts) if input_from is not None else most)
        self._sessions: dict[str, Session | None] = {}
        self._input_from, self._strips = input_from, strips

    def run(self, merged: Merged) -> dict[str, int | str]:
        """Show what all hosts print; return their exit statuses, or why there is none, by host."""
        targets: list[Callable[[], object]] = [partial(self._follow, o) for o in self._outputs]
        if self._input_from is not None:
            targets.append(self._broadcast)
        for target in targets:
            threading.Thread(target=target, daemon=True).start()
        try:
            for output, kind, content in self._shown(merged.tick):
                host = output.host.label
                if kind is Kind.RECORD:
                    merged.take(host, content)
                elif kind is Kind.EXIT:
                    merged.end(host, output.status, output.error)
                else:
                    merged.lines(host, content, is_error=kind is Kind.ERROR)
        finally:
            for session in self._sessions.values():
                if session is not None:
                    session.close()
        return {one.host.label: one.error or one.status for one in self._outputs}

    def _follow(self, output: _Output) -> None:
        session = None
        with self._slots:
            try:
                session = Session(self._ssh, output.host, self._start, self._ask)
                self._started(output, session)
                self._receive(session, output)
            except PycrictlError as exc:
                output.error = exc.message + (f" ({exc.hint})" if exc.hint else "")
            except Exception as exc:
                output.error = f"internal error: {type(exc).__name__}: {exc}"
            if session is not None:
                session.close()
        self._started(output, None)
        self._put(output, Kind.EXIT, None)

    def _started(self, output: _Output, session: Session | None) -> None:
        with self._changed:
            self._sessions[output.host.label] = session
            self._changed.notify_all()

    def _broadcast(self) -> None:
        assert self._input_from is not None
        with self._changed:
            self._changed.wait_for(lambda: len(self._sessions) == len(self._outputs))
        with suppress(OSError):
            while data := os.read(self._input_from, PIECE_BYTES):
                for session in filter(None, [*self._sessions.values()]):
                    session.put_input(data)
        for session in filter(None, [*self._sessions.values()]):
            session.send(Kind.INPUT_END)

    def _receive(self, session: Session, output: _Output) -> None:
        rest = {Kind.OUTPUT: b"", Kind.ERROR: b"", Kind.RECORD: b""}
        kept = 0
        for kind, content in session.frames():
            if kind is Kind.EXIT:
                output.status = status_of(content)
            elif kind is Kind.RECORD:
                *lines, rest[kind] = (rest[kind] + content).split(b"\n")
                for line in lines:
                    try:
                        record = parsed(line)
                    except (ValueError, TypeError, KeyError, RecursionError):
                        raise PycrictlError("it sends what is no answer") from None
                    kept += 0 if record.passes else len(line)
                    self._put(output, kind, record)
                if kept + len(rest[kind]) > _RECORDS_BYTES:
                    raise PycrictlError(f"it sends more than {_RECORDS_BYTES >> 20} MiB of data")
            elif kind in rest:
                whole, end, rest[kind] = (rest[kind] + content).rpartition(b"\n")
                if len(rest[kind]) > _LINE_BYTES:
                    whole, end, rest[kind] = whole + end + rest[kind], b"\n", b""
                if end:
                    self._put_lines(output, kind, whole)
        for kind in (Kind.OUTPUT, Kind.ERROR):
            if rest[kind]:
                self._put_lines(output, kind, rest[kind])

    def _put_lines(self, output: _Output, kind: Kind, text: bytes) -> None:
        lines = text.split(b"\n")
        if self._strips is None or kind is Kind.ERROR:
            self._put(output, kind, lines)
            return
        for line in lines:
            key = 0.0
            if match := _STAMP.match(line):
                with suppress(ValueError):
                    key = timestamp_ns(match[1])
                line = line[match.end() :] if self._strips else line
            self._put(output, kind, [line], key)

    def _put(self, output: _Output, kind: Kind, content: Any, key: float = 0.0) -> None:
        with self._changed:
            self._changed.wait_for(lambda: len(output.items) < _QUEUED or kind is Kind.EXIT)
            output.items.append((key, time.monotonic(), kind, content))
            output.is_over = kind is Kind.EXIT
            self._changed.notify_all()

    def _shown(self, tick: Callable[[], object]) -> Iterator[tuple[_Output, Kind, Any]]:
        """Yield what hosts have sent, in order, until all are done; call ``tick`` all the time."""
        left = [*self._outputs]
        while left:
            with self._changed:
                ready = [output for output in left if output.items]
                output = min(ready, key=lambda each: each.items[0][:2]) if ready else None
                if output is not None and self._strips is not None and output.items[0][0]:
                    is_fresh = output.items[0][1] > time.monotonic() - PATIENCE_S
                    if is_fresh and any(not each.items for each in left):
                        output = None
                if output is None:
                    self._changed.wait(_TICK_S)
                else:
                    _, _, kind, content = output.items.popleft()
                    self._changed.notify_all()
            if output is not None:
                if kind is Kind.EXIT:
                    left.remove(output)
                yield output, kind, content
            tick()
