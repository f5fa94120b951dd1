"""A command on several hosts at once; ``show.merged`` makes one of what they print."""

from __future__ import annotations

import os
import re
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from pycrictl.base.errors import PycrictlError
from pycrictl.hosts.connection import HostError, Ssh, failure
from pycrictl.hosts.session import LOST_STATUS, Process, feed, words_of
from pycrictl.node.logs.logtime import TIMESTAMP, timestamp_ns
from pycrictl.show.records import Record, parsed

if TYPE_CHECKING:
    from pycrictl.hosts.names import Host

PATIENCE_S: Final = 0.5
"""How long a log line waits for earlier ones of other hosts."""

_TICK_S: Final = 0.1
_PIECE_BYTES: Final = 64 * 1024
"""Of standard input; longer lines of output are split."""

_WAITING: Final = 1000
"""How many log lines of a host may wait before it is not read any more."""

_RECORDS_BYTES: Final = 32 * 1024 * 1024
"""How much data of one host is kept until all have answered."""

_STAMP: Final = re.compile(rb"(%s) " % TIMESTAMP)


class Shown(Protocol):
    """Takes what hosts print, named by their labels."""

    def take(self, host: str, record: Record) -> None: ...
    def lines(self, host: str, lines: Sequence[bytes], *, is_error: bool) -> None: ...
    def end(self, host: str, status: int, error: str) -> None: ...
    def tick(self) -> None:
        """Do what is due; called all the time."""


class _Run:
    """The command on one host; ``word`` is in front of its records."""

    def __init__(self, host: Host, process: Process, word: bytes) -> None:
        self.host, self.process, self._word = host, process, word
        self.left = {process.stdout, process.stderr}
        self.waiting: deque[tuple[float, float, bytes]] = deque()
        self._rest = dict.fromkeys(self.left, b"")
        self._kept = 0

    def receive(self, descriptor: int) -> list[bytes | Record]:
        """Return the lines and records that an output has at present."""
        data = self.process.read(descriptor)
        *lines, rest = (self._rest[descriptor] + (data or b"")).split(b"\n")
        if data is None:
            self.left.discard(descriptor)
        if rest and (data is None or (len(rest) > _PIECE_BYTES and self._word not in rest)):
            lines, rest = [*lines, rest], b""
        self._rest[descriptor] = rest
        found: list[bytes | Record] = []
        for line in lines:
            text, word, record = line.partition(self._word)
            if not word or descriptor == self.process.stderr:
                found.append(line)
                continue
            found += [text] if text else []
            try:
                found.append(one := parsed(record))
            except (ValueError, TypeError, KeyError, RecursionError):
                raise HostError("its answer is not valid") from None
            self._kept += 0 if one.passes else len(record)
        if self._kept + len(rest) > _RECORDS_BYTES:
            raise HostError(f"it sends more than {_RECORDS_BYTES >> 20} MiB of data")
        return found


class Several:
    """Runs a command on several hosts.

    Args:
        start: what each host is told to run, with its secret word for records.
        most: how many hosts run it at the same time.
        input_from: a descriptor that is read once for all of them; None for no input.
        strips: None if lines do not begin with times, by which those of all hosts are ordered;
            else whether the times are removed.
        again_s: begin again so long after an end, until ``close``.
    """

    def __init__(
        self,
        ssh: Ssh,
        hosts: Sequence[Host],
        start: Callable[[Host], Mapping[str, Any]],
        *,
        most: int,
        input_from: int | None = None,
        strips: bool | None = None,
        again_s: float | None = None,
    ) -> None:
        self._ssh, self._start = ssh, start
        self._most = most if input_from is None else len(hosts)
        self._pool = ThreadPoolExecutor(self._most)
        self._input_from, self._strips, self._again_s = input_from, strips, again_s
        self._due = deque((0.0, host) for host in hosts)
        self._reached: dict[Future[dict[str, Any]], Host] = {}
        self._runs: list[_Run] = []
        self._ends: dict[str, int | str] = {host.label: "interrupted" for host in hosts}
        self._is_over = False

    def run(self, shown: Shown) -> dict[str, int | str]:
        """Show what all hosts print; return their exit statuses, or why there is none, by host."""
        try:
            while (self._due or self._reached or self._runs) and not self._is_over:
                self._begin(shown)
                self._receive(shown)
                self._show_waiting(shown)
                shown.tick()
        finally:
            self._pool.shutdown(wait=False, cancel_futures=True)
            for each in self._runs:
                each.process.close()
        return self._ends

    def close(self) -> None:
        self._is_over = True

    def _begin(self, shown: Shown) -> None:
        """Connect to hosts whose turn it is, and start the command where that is done."""
        now_s = time.monotonic()
        while self._due and self._due[0][0] <= now_s and self._count < self._most:
            _, host = self._due.popleft()
            self._reached[self._pool.submit(self._ssh.reach, host)] = host
        for future in [each for each in self._reached if each.done()]:
            host = self._reached.pop(future)
            try:
                start = self._start(host)
                words = words_of(future.result(), start, is_terminal=False)
                process = Process(words, None if self._input_from is None else -1)
                self._runs.append(_Run(host, process, start["records"].encode()))
            except PycrictlError as exc:
                self._end(shown, host, 0, exc.message + (f" ({exc.hint})" if exc.hint else ""))
        if self._input_from is not None and not self._due and not self._reached:
            pieces = iter(partial(os.read, self._input_from, _PIECE_BYTES), b"")
            arguments = (pieces, [each.process for each in self._runs])
            threading.Thread(target=feed, args=arguments, daemon=True).start()
            self._input_from = None

    @property
    def _count(self) -> int:
        return len(self._reached) + len(self._runs)

    def _receive(self, shown: Shown) -> None:
        """Take what there is of hosts that are not ahead of the others."""
        with selectors.PollSelector() as selector:
            for each in self._runs:
                if len(each.waiting) < _WAITING:
                    for descriptor in each.left:
                        selector.register(descriptor, selectors.EVENT_READ, each)
            ready = selector.select(0.005 if self._reached else _TICK_S)
        for key, _ in ready:
            one: _Run = key.data
            if one not in self._runs:  # its other output has just ended it
                continue
            try:
                self._show(shown, one, one.receive(key.fd), is_error=key.fd == one.process.stderr)
            except HostError as exc:
                self._finish(shown, one, exc.message)
            if not one.left and not one.waiting:
                self._finish(shown, one, "")

    def _show(
        self, shown: Shown, one: _Run, found: Sequence[bytes | Record], *, is_error: bool
    ) -> None:
        lines: list[bytes] = []
        for each in found:
            if isinstance(each, Record):
                shown.take(one.host.label, each)
            elif self._strips is None or is_error:
                lines.append(each)
            else:
                key = 0.0
                if match := _STAMP.match(each):
                    with suppress(ValueError):
                        key = timestamp_ns(match[1])
                    each = each[match.end() :] if self._strips else each
                one.waiting.append((key, time.monotonic(), each))
        if lines:
            shown.lines(one.host.label, lines, is_error=is_error)

    def _show_waiting(self, shown: Shown) -> None:
        """Show lines in the order of their times, when no earlier ones are to be expected."""
        while ready := [each for each in self._runs if each.waiting]:
            one = min(ready, key=lambda each: each.waiting[0][:2])
            key, arrived_s, line = one.waiting[0]
            is_fresh = arrived_s > time.monotonic() - PATIENCE_S
            if key and is_fresh and (self._due or self._reached or len(ready) < len(self._runs)):
                return
            one.waiting.popleft()
            shown.lines(one.host.label, [line], is_error=False)
            if not one.left and not one.waiting:
                self._finish(shown, one, "")

    def _finish(self, shown: Shown, one: _Run, error: str) -> None:
        if one not in self._runs:
            return
        self._runs.remove(one)
        status = one.process.close()
        if not error and not one.process.is_begun:
            error = failure(one.process.text).message
            self._ssh.forget(one.host)
        elif status == LOST_STATUS and not error and self._ssh.is_lost(one.host):
            error = "the connection has ended"
        self._end(shown, one.host, status, error)

    def _end(self, shown: Shown, host: Host, status: int, error: str) -> None:
        self._ends[host.label] = error or status
        shown.end(host.label, status, error)
        if self._again_s is not None:
            self._due.append((time.monotonic() + self._again_s, host))
