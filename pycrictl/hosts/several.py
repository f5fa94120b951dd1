"""A command on several hosts at once; ``show.merged`` makes one of what they print."""

from __future__ import annotations

import math
import os
import queue
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Final, Protocol

from pycrictl.base.errors import PycrictlError
from pycrictl.hosts.connection import HostError, Ssh
from pycrictl.hosts.session import Process, feed, words_of
from pycrictl.node.logs.logtime import TIMESTAMP, timestamp_ns
from pycrictl.show.records import Record, parsed

if TYPE_CHECKING:
    from pycrictl.hosts.names import Host
    from pycrictl.hosts.session import Fields

_TICK_S: Final = 0.1
_PIECE_BYTES: Final = 64 * 1024
"""Of standard input; longer lines of output are split."""

_QUEUED: Final = 64
"""How many pieces of output may wait to be shown."""

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


class Several:
    """Runs a command on several hosts, each in a thread; what they print is shown by one.

    Args:
        start: what each host is told to run, with its secret word for records.
        most: how many hosts run it at the same time.
        input_from: a descriptor that is read once for all of them; None for no input.
        strips: None if lines do not begin with times, by which those of all hosts are ordered;
            else whether the times are removed.
        patience_s: how long a line waits for earlier ones of hosts that are slow.
        again_s: begin again so long after an end, forever.
    """

    def __init__(
        self,
        ssh: Ssh,
        hosts: Sequence[Host],
        start: Callable[[Host], Fields],
        *,
        most: int,
        input_from: int | None = None,
        strips: bool | None = None,
        patience_s: float = math.inf,
        again_s: float | None = None,
    ) -> None:
        self._ssh, self._hosts, self._start = ssh, hosts, start
        self._most = most if input_from is None else len(hosts)
        self._input_from, self._strips, self._again_s = input_from, strips, again_s
        self._patience_s = patience_s
        self._due = deque(hosts)
        self._begun: list[Process | None] = []
        self._queue: queue.Queue[Callable[[Shown], object]] = queue.Queue(_QUEUED)
        self._ends: dict[str, int | str] = {}
        labels = [host.label for host in hosts]
        self._waiting: dict[str, deque[tuple[float, float, bytes]]] = {h: deque() for h in labels}
        self._are_shown = {label: threading.Semaphore() for label in labels}

    def run(self, shown: Shown) -> dict[str, int | str]:
        """Show what all hosts print; return their exit statuses, or why there is none, by host."""
        for _ in range(min(self._most, len(self._hosts))):
            threading.Thread(target=self._work, daemon=True).start()
        while len(self._ends) < len(self._hosts) or any(self._waiting.values()):
            with suppress(queue.Empty):
                self._queue.get(timeout=_TICK_S)(shown)
            self._show_ordered(shown)
            shown.tick()
        return {host.label: self._ends[host.label] for host in self._hosts}

    def _work(self) -> None:
        with suppress(IndexError):
            while True:
                self._run(self._due.popleft())

    def _run(self, host: Host) -> None:
        """Run the command on a host; queue what it prints, and its end."""
        while True:
            status, error, process, word = 0, "", None, b""
            try:
                way, start = self._ssh.reach(host), self._start(host)
                words, word = words_of(way, start, is_terminal=False), start["records"][0].encode()
                process = Process(words, None if self._input_from is None else -1)
            except PycrictlError as exc:
                error = exc.message + (f" ({exc.hint})" if exc.hint else "")
            self._begin(process)
            if process is not None:
                try:
                    with closing(process):
                        self._receive(host.label, process, word)
                    status = self._ssh.status(host, process.end)
                except HostError as exc:
                    error = exc.message
            self._queue.put(partial(self._end, host.label, status, error))
            if self._again_s is None:
                break
            time.sleep(self._again_s)

    def _begin(self, process: Process | None) -> None:
        """Begin to feed all processes when the last of them has begun, or cannot."""
        self._begun.append(process)
        if self._input_from is not None and len(self._begun) == len(self._hosts):
            pieces = iter(partial(os.read, self._input_from, _PIECE_BYTES), b"")
            arguments = pieces, [each for each in self._begun if each is not None]
            threading.Thread(target=feed, args=arguments, daemon=True).start()

    def _receive(self, host: str, process: Process, word: bytes) -> None:
        """Queue lines and records; a record follows the secret word."""
        rest, kept_bytes = {False: b"", True: b""}, 0
        for is_error, data in process.pieces():
            *lines, last = (rest[is_error] + data).split(b"\n")
            if len(last) > _PIECE_BYTES and word not in last:
                lines, last = [*lines, last], b""
            rest[is_error] = last
            kept_bytes += self._queue_lines(host, lines, word, is_error=is_error)
            if kept_bytes + len(last) > _RECORDS_BYTES:
                raise HostError(f"it sends more than {_RECORDS_BYTES >> 20} MiB of data")
        for is_error, last in rest.items():
            self._queue_lines(host, [last] if last else [], word, is_error=is_error)

    def _queue_lines(
        self, host: str, lines: Sequence[bytes], word: bytes, *, is_error: bool
    ) -> int:
        """Queue lines, and the records in them; return the size of those that are kept."""
        texts: list[bytes] = []
        kept_bytes = 0
        for line in lines:
            text, is_record, content = line.partition(word)
            if is_error or not is_record:
                texts.append(line)
                continue
            self._queue_texts(host, [*texts, text] if text else texts, is_error=False)
            texts = []
            try:
                record = parsed(content)
            except (ValueError, TypeError, KeyError, RecursionError):
                raise HostError("its answer is not valid") from None
            kept_bytes += 0 if record.passes else len(content)
            self._queue.put(methodcaller("take", host, record))
        self._queue_texts(host, texts, is_error=is_error)
        return kept_bytes

    def _queue_texts(self, host: str, texts: Sequence[bytes], *, is_error: bool) -> None:
        if texts and (self._strips is None or is_error):
            self._queue.put(methodcaller("lines", host, texts, is_error=is_error))
        elif texts:  # not before the last ones are shown
            self._are_shown[host].acquire()
            self._queue.put(partial(self._hold, host, texts))

    def _hold(self, host: str, lines: Sequence[bytes], _: Shown) -> None:
        """Keep lines with times until no earlier ones of other hosts are to be expected."""
        for line in lines:
            time_ns = 0.0
            if match := _STAMP.match(line):
                with suppress(ValueError):
                    time_ns = timestamp_ns(match[1])
                line = line[match.end() :] if self._strips else line
            self._waiting[host].append((time_ns, time.monotonic(), line))

    def _show_ordered(self, shown: Shown) -> None:
        while ready := [host for host, lines in self._waiting.items() if lines]:
            host = min(ready, key=lambda each: self._waiting[each][0])
            time_ns, arrived_s, line = self._waiting[host][0]
            is_fresh = arrived_s > time.monotonic() - self._patience_s
            if time_ns and is_fresh and self._waiting.keys() - self._ends.keys() - {*ready}:
                return
            self._waiting[host].popleft()
            shown.lines(host, [line], is_error=False)
            if not self._waiting[host]:
                self._are_shown[host].release()

    def _end(self, host: str, status: int, error: str, shown: Shown) -> None:
        if self._again_s is None:
            self._ends[host] = error or status
        shown.end(host, status, error)
