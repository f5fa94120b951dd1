"""A command on several hosts at once; ``show.merged`` makes one of what they print."""

from __future__ import annotations

import math
import os
import queue
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
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
"""How many pieces of output may wait to be shown."""

_RECORDS_BYTES: Final = 32 * 1024 * 1024
"""How much data of one host is kept until all have answered."""

_STAMP: Final = re.compile(rb"(%s) " % TIMESTAMP)


class Several:
    """Runs a command on several hosts, each in a thread.

    Args:
        start: what each host is told to run, with its secret word for records.
        most: how many hosts run it at the same time.
        stdin: a file that every host reads; empty for no input.
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
        stdin: str = "",
        strips: bool | None = None,
        patience_s: float = math.inf,
        again_s: float | None = None,
    ) -> None:
        self._ssh, self._hosts, self._start, self._stdin = ssh, hosts, start, stdin
        self._strips, self._patience_s, self._again_s = strips, patience_s, again_s
        # Lines of all hosts are compared, so all must run.
        self._most = most if strips is None else len(hosts)
        self._queue: queue.Queue[tuple[str, Event]] = queue.Queue(_QUEUED)
        self._running = {host.label for host in hosts}
        self._waiting: dict[str, deque[tuple[float, float, bytes]]] = {
            host.label: deque() for host in hosts
        }
        self._are_shown = {label: threading.Semaphore() for label in self._waiting}

    def events(self) -> Iterator[tuple[str, Event] | None]:
        """Yield what all hosts send, with their labels; None if nothing has come for a moment."""
        pool = ThreadPoolExecutor(self._most)
        for host in self._hosts:
            pool.submit(self._run, host)
        while self._running:
            try:
                label, event = self._queue.get(timeout=_TICK_S)
            except queue.Empty:
                yield None
            else:
                if isinstance(event, Lines) and self._strips is not None and not event.is_error:
                    self._hold(label, event.lines)
                else:
                    yield label, event
                if isinstance(event, End) and self._again_s is None:
                    self._running.discard(label)
            yield from self._in_order()

    def _run(self, host: Host) -> None:
        """Run the command on a host; queue what it sends, and its end."""
        while True:
            status, error = 1, "internal error"
            try:
                status, error = self._status(host), ""
            except (HostError, PycrictlError) as exc:
                error = exc.message + (f" ({exc.hint})" if exc.hint else "")
            finally:
                self._queue.put((host.label, End(status, error)))
            if self._again_s is None:
                break
            time.sleep(self._again_s)

    def _status(self, host: Host) -> int:
        way, start = self._ssh.reach(host), self._start(host)
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
        if lines:
            if self._strips is not None and not is_error:  # not before the last ones are shown
                self._are_shown[host].acquire()
            self._queue.put((host, Lines(lines, is_error)))

    def _hold(self, host: str, lines: Sequence[bytes]) -> None:
        """Keep lines with times until no earlier ones of other hosts are to be expected."""
        for line in lines:
            time_ns = 0.0
            if match := _STAMP.match(line):
                with suppress(ValueError):
                    time_ns = timestamp_ns(match[1])
                line = line[match.end() :] if self._strips else line
            self._waiting[host].append((time_ns, time.monotonic(), line))

    def _in_order(self) -> Iterator[tuple[str, Lines]]:
        while ready := {host: lines[0] for host, lines in self._waiting.items() if lines}:
            host = min(ready, key=ready.__getitem__)
            time_ns, arrived_s, line = ready[host]
            is_fresh = arrived_s > time.monotonic() - self._patience_s
            if time_ns and is_fresh and self._running - ready.keys():
                return
            self._waiting[host].popleft()
            if not self._waiting[host]:
                self._are_shown[host].release()
            yield host, Lines([line])
