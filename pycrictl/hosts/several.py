"""A command on several hosts at once; ``show.merged`` makes one of what they print."""

from __future__ import annotations

import os
import queue
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pycrictl.base.errors import PycrictlError
from pycrictl.hosts.connection import Ssh
from pycrictl.hosts.session import PIECE_BYTES, HostError, Process, started
from pycrictl.node.logs.logtime import TIMESTAMP, timestamp_ns
from pycrictl.show.records import End, Event, Lines, parsed

if TYPE_CHECKING:
    from pycrictl.hosts.names import Host
    from pycrictl.hosts.session import Fields

_TICK_S: Final = 0.1
_QUEUED: Final = 64
"""How many pieces of output may wait to be shown, so that none is read faster than that."""

_RECORDS_BYTES: Final = 32 * 1024 * 1024
"""How much data of one host is kept until all have answered."""

_STAMP: Final = re.compile(rb"(%s) " % TIMESTAMP)


class Several:
    """Runs a command on several hosts, each in a thread.

    Args:
        start: what each host is told to run, with its secret word for records.
        show: gets what all hosts send, with their labels; None if it is time to draw.
        stdin: a file that every host reads; empty for no input.
        strips: None if lines do not begin with times, by which those of all hosts are ordered;
            else whether the times are removed.
        patience_s: how long a line waits for earlier ones of hosts that are slow; None for ever.
        again_s: begin again so long after an end, forever.
    """

    def __init__(
        self,
        ssh: Ssh,
        hosts: Sequence[Host],
        start: Callable[[Host], Fields],
        show: Callable[[tuple[str, Event] | None], None],
        *,
        stdin: str = "",
        strips: bool | None = None,
        patience_s: float | None = None,
        again_s: float | None = None,
    ) -> None:
        self._ssh, self._hosts, self._start, self._stdin = ssh, hosts, start, stdin
        self._strips, self._again_s = strips, again_s
        self._patience_s = threading.TIMEOUT_MAX if patience_s is None else patience_s
        self._show = show
        self._queue: queue.Queue[tuple[str, Event]] = queue.Queue(_QUEUED)
        self._changed = threading.Condition()
        # Of each host that runs, lines with their times, and when they came.
        self._waiting: dict[str, deque[tuple[float, float, bytes]]] = {}
        self._waiting |= ((host.label, deque()) for host in hosts)

    def run(self, most: int) -> None:
        """Run it on all hosts, on so many at the same time; return when all have ended."""
        if self._strips is not None:  # lines of all hosts are compared, so all must run
            most = len(self._hosts)
        pool = ThreadPoolExecutor(most)
        for host in self._hosts:
            pool.submit(self._run, host)
        running = len(self._hosts)
        while running:
            # This thread shows everything: signals interrupt it, even if an output is not read.
            try:
                label, event = self._queue.get(timeout=_TICK_S)
            except queue.Empty:
                self._show(None)
            else:
                self._show((label, event))
                running -= isinstance(event, End) and self._again_s is None

    def _run(self, host: Host) -> None:
        while True:
            end = End(1, "internal error")
            try:
                end = End(self._status(host), "")
            except (HostError, PycrictlError) as exc:
                end = End(1, exc.message + (f" ({exc.hint})" if exc.hint else ""))
            finally:
                if self._again_s is None:
                    with self._changed:
                        del self._waiting[host.label]
                        self._changed.notify_all()
                self._queue.put((host.label, end))
            if self._again_s is None:
                return
            time.sleep(self._again_s)

    def _status(self, host: Host) -> int:
        way, start = self._ssh.reach(host), self._start(host)
        # Each host reads at a place of its own.
        with Path(self._stdin or os.devnull).open("rb") as file:
            process = started(way, start, file.fileno())
        with closing(process):
            self._receive(host.label, process, start["records"][0].encode())
        return process.result()

    def _receive(self, host: str, process: Process, word: bytes) -> None:
        """Queue lines and records; a record follows the secret word."""
        rest, kept_bytes = {False: b"", True: b""}, 0
        line_ends = ((is_error, b"\n") for is_error, text in rest.items() if text)
        for is_error, data in chain(process.pieces(), line_ends):
            *lines, last = (rest[is_error] + data).split(b"\n")
            if len(last) > PIECE_BYTES and word not in last:
                lines, last = [*lines, last], b""
            rest[is_error] = last
            texts: list[bytes] = []
            for line in lines:
                text, is_record, content = line.partition(word)
                texts += [text] if text or not is_record else []
                if not is_record:
                    continue
                self._queue_lines(host, texts, is_error=is_error)
                texts = []
                try:
                    record = parsed(content)
                except (ValueError, TypeError, KeyError, RecursionError):
                    raise HostError("its answer is not valid") from None
                kept_bytes += 0 if record.passes else len(content)
                self._queue.put((host, record))
            self._queue_lines(host, texts, is_error=is_error)
            if kept_bytes + len(last) > _RECORDS_BYTES:
                raise HostError(f"it sends more than {_RECORDS_BYTES >> 20} MiB of data")

    def _queue_lines(self, host: str, lines: Sequence[bytes], *, is_error: bool) -> None:
        if self._strips is None or is_error:
            if lines:
                self._queue.put((host, Lines(lines, is_error)))
            return
        with self._changed:
            waiting = self._waiting[host]
            for line in lines:
                time_ns = 0.0
                if match := _STAMP.match(line):
                    with suppress(ValueError):
                        time_ns = timestamp_ns(match[1])
                    line = line[match.end() :] if self._strips else line
                waiting.append((time_ns, time.monotonic(), line))
            self._changed.notify_all()
            while waiting:
                self._queue_in_order()
                if waiting:
                    self._changed.wait(self._patience_s)

    def _queue_in_order(self) -> None:
        """Queue lines until earlier ones of other hosts are to be expected."""
        while ready := {host: lines[0] for host, lines in self._waiting.items() if lines}:
            host = min(ready, key=ready.__getitem__)
            time_ns, arrived_s, line = ready[host]
            is_late = time.monotonic() - arrived_s >= self._patience_s
            if time_ns and not is_late and len(ready) < len(self._waiting):
                return
            self._waiting[host].popleft()
            self._queue.put((host, Lines([line])))
            if not self._waiting[host]:
                self._changed.notify_all()
