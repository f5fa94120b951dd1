"""A command on several hosts at once; ``show.merged`` makes one of what they print."""

from __future__ import annotations

import os
import queue
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pycrictl.base.errors import PycrictlError
from pycrictl.hosts.connection import Ssh
from pycrictl.hosts.session import PIECE_BYTES, HostError, Process, started
from pycrictl.node.logs.logtime import TIMESTAMP, timestamp_ns
from pycrictl.show.records import End, Event, Lines, Record, parsed

if TYPE_CHECKING:
    from pycrictl.hosts.names import Host

_TICK_S: Final = 0.1
_QUEUED: Final = 64
"""How many pieces of output may wait to be shown, so that none is read faster than that."""

_RECORDS_BYTES: Final = 32 * 1024 * 1024
"""How much data of one host is kept until all have answered."""

_UNORDERED_BYTES: Final = 8 * 1024 * 1024
"""How much memory lines of logs may take until they are ordered."""

_LINE_BYTES: Final = 200  # of a line itself
_STAMP: Final = re.compile(rb"(%s) " % TIMESTAMP)

Events = Iterator[tuple[str, Event] | None]
"""What hosts send, with their labels; None if it is time to draw."""


def events_of(
    ssh: Ssh,
    hosts: Sequence[Host],
    start: Callable[[Host], Mapping[str, Any]],
    most: int,
    *,
    stdin: str = os.devnull,
    retry_s: float | None = None,
) -> Events:
    """Run a command on several hosts, each in a thread, until all have ended.

    The caller's thread shows everything: signals interrupt it, even if an output is not read.

    Args:
        start: what each host is told to run, with its secret word for records.
        most: how many run at the same time.
        stdin: a file that every host reads.
        retry_s: begin again so long after an end, forever.
    """
    events: queue.Queue[tuple[str, Event]] = queue.Queue(_QUEUED)

    def run(host: Host) -> None:
        while True:
            end = End(1, "internal error")
            try:
                way, told = ssh.reach(host), start(host)
                with Path(stdin).open("rb") as file:  # each host reads at a place of its own
                    process = started(way, told, file.fileno())
                with closing(process):
                    for event in _received(process, told["records"].encode()):
                        events.put((host.label, event))
                end = End(process.result(), "")
            except (HostError, PycrictlError) as exc:
                end = End(1, exc.message + (f" ({exc.hint})" if exc.hint else ""))
            finally:
                events.put((host.label, end))
            if retry_s is None:
                return
            time.sleep(retry_s)

    pool = ThreadPoolExecutor(most)
    for host in hosts:
        pool.submit(run, host)
    running = len(hosts)
    while running:
        try:
            label, event = events.get(timeout=_TICK_S)
        except queue.Empty:
            yield None
        else:
            yield label, event
            running -= isinstance(event, End) and retry_s is None


def _received(process: Process, word: bytes) -> Iterator[Lines | Record]:
    """Yield lines and records; a record follows the secret word."""
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
            if is_record:
                yield Lines(texts, is_error)
                texts = []
                try:
                    record = parsed(content)
                except (ValueError, TypeError, KeyError, RecursionError):
                    raise HostError("its answer is not valid") from None
                kept_bytes += 0 if record.passes else len(content)
                yield record
        if texts:
            yield Lines(texts, is_error)
        if kept_bytes + len(last) > _RECORDS_BYTES:
            raise HostError(f"it sends more than {_RECORDS_BYTES >> 20} MiB of data")


def in_order(events: Events, *, strips: bool, patience_s: float = float("inf")) -> Events:
    """Order lines of logs by the times that they begin with, as far as they have arrived.

    Args:
        strips: whether the times are removed.
        patience_s: how long lines wait for earlier ones, unless there are too many of them.
    """
    waiting: list[tuple[float, str, bytes]] = []
    last_ns: dict[str, float] = {}  # a line without a time stays behind the one before it
    waiting_bytes, due_s = 0, float("inf")
    for event in events:
        host, printed = event or ("", None)
        if not isinstance(printed, Lines) or printed.is_error:
            yield event
        else:
            due_s = min(due_s, time.monotonic() + patience_s)
            for line in printed.lines:
                if match := _STAMP.match(line):
                    with suppress(ValueError):
                        last_ns[host] = timestamp_ns(match[1])
                    line = line[match.end() :] if strips else line
                waiting.append((last_ns.get(host, 0.0), host, line))
                waiting_bytes += len(line) + _LINE_BYTES
        if waiting_bytes > _UNORDERED_BYTES or time.monotonic() >= due_s:
            yield from _sorted(waiting)
            waiting, waiting_bytes, due_s = [], 0, float("inf")
    yield from _sorted(waiting)


def _sorted(lines: list[tuple[float, str, bytes]]) -> Events:
    return ((host, Lines([line])) for _, host, line in sorted(lines, key=itemgetter(0)))
