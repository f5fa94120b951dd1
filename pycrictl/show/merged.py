"""Several hosts' output as one: a table with a NODE column, documents by host, a list or a display.

Hosts send records (``show.records``) of what they would write, and plain lines, which are shown
behind ``HOST |`` as they come. Text from hosts is escaped here, even if the hosts have escaped it.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from pycrictl.base.units import escape
from pycrictl.node.logs.logtime import TIMESTAMP, timestamp_ns
from pycrictl.show import render
from pycrictl.show.displays import phrases
from pycrictl.show.records import End, Event, Events, Lines, Record
from pycrictl.show.render import CONTROL, Table, colours_are_wanted

if TYPE_CHECKING:
    from pycrictl.base.environ import Environment
    from pycrictl.show.displays.host_pulls import HostPulls

IMAGE_NAME: Final = ("IMAGE", "TAG")
MISSING: Final = "MISSING ON"
_WIDE: Final = "USER"

Records = Mapping[str, Sequence[Record]]
"""Records by host, in the order of hosts."""

NODE: Final = "NODE"
_COLOURS: Final = (36, 32, 33, 35, 34, 96, 92, 93, 95, 94)

_UNORDERED_BYTES: Final = 8 * 1024 * 1024
"""How much memory lines of logs may take until they are ordered."""

_LINE_BYTES: Final = 200  # of memory for a line, besides its text
_STAMP: Final = re.compile(rb"(%s) " % TIMESTAMP)


class Merged:
    """Shows the output of several hosts.

    Args:
        hosts: their labels, in the order of tables.

    Attributes:
        failed: how each command that did not succeed ended, by host.
    """

    def __init__(self, env: Environment, hosts: Sequence[str]) -> None:
        self._env, self._hosts = env, hosts
        self.failed: dict[str, str] = {}
        self._records: dict[str, list[Record]] = {host: [] for host in hosts}
        self._ended: dict[str, str] = {}
        self._reasons: dict[str, str] = {}  # the last error of each host
        self._width = max(map(phrases.width, hosts))
        self._is_coloured = colours_are_wanted(env.environ, is_terminal=env.stdout_is_terminal)
        self._pulls: HostPulls | None = None
        self._held: list[tuple[str, Lines]] = []

    def show(self, event: tuple[str, Event] | None) -> None:
        """Show what a host has sent, and what is due."""
        match event:
            case (host, Lines() as printed):
                self._show_lines(host, printed)
            case (host, End() as end):
                self._show_end(host, end)
            case (host, Record() as record) if record.kind == "progress":
                self._show_progress(host, record)
            case (host, Record() as record):
                self._records[host].append(record)
        if self._pulls is not None:
            self._pulls.tick(time.monotonic())

    def _show_lines(self, host: str, printed: Lines) -> None:
        if self._pulls is not None:  # below the display
            self._held.append((host, printed))
        is_error, out = printed.is_error, self._env.stdout
        texts = [line.decode(errors="replace") for line in printed.lines]
        if is_error:
            out = self._env.stderr
            told = [text for text in texts if text and not text.startswith("hint: ")]
            if told:
                self._reasons[host] = told[-1].removeprefix("pycrictl: ")
        if self._pulls is not None:
            return
        label = f"{phrases.fill(host, self._width)} |"
        if self._is_coloured:
            label = f"\x1b[{_COLOURS[self._hosts.index(host) % len(_COLOURS)]}m{label}\x1b[0m"
        is_bare = bool(self._records[host])  # empty lines between tables
        shown = [re.sub(CONTROL, lambda c: escape(c[0]), text) for text in texts]
        out.write("".join(f"{label} {text}\n" for text in shown if text or not is_bare))
        out.flush()

    def _show_end(self, host: str, end: End) -> None:
        if end.status or end.error:
            self.failed[host] = "not reached" if end.error else f"status {end.status}"
        reason = end.error or (self._reasons.get(host, self.failed[host]) if end.status else "")
        self._ended[host] = reason
        if self._pulls is not None:
            self._pulls.end(host, reason)
        if end.error:
            self._env.error(f"{host}: {end.error}")

    def __enter__(self) -> Merged:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._pulls is not None:
            self._pulls.close()
            self._pulls = None
        for host, printed in self._held:
            self._show_lines(host, printed)
        if kind is None:
            self._write()

    def _show_progress(self, host: str, record: Record) -> None:
        content, form = record.content, record.form
        if form == "json":
            out = self._env.stderr if record.target == "stderr" else self._env.stdout
            out.write(json.dumps({"host": host, **content}) + "\n")
            out.flush()
            return
        if "sums" not in content:
            return
        if self._pulls is None:
            from pycrictl.show.displays.host_pulls import HostPulls  # noqa: PLC0415 - only for it

            self._pulls = HostPulls(self._env, self._hosts, is_drawn=form == "bar")
            for ended, failure in self._ended.items():
                self._pulls.end(ended, failure)
        self._pulls.report(host, content)

    def _write(self) -> None:
        """Write the tables, IDs, documents or findings of all hosts, merged into one output."""
        out = self._env.stdout
        records = {host: sent for host, sent in self._records.items() if sent}
        first = next((sent[0] for sent in records.values()), None)
        if first is None:
            return
        documents = {host: sent[0].content for host, sent in records.items()}
        columns = self._env.columns
        if first.kind == "table":
            for table, record in merged_tables(records):
                if columns and record.is_fitted:
                    render.write_fitted(table, out, columns, header=record.has_header)
                else:
                    render.write_table(table, out, header=record.has_header)
        elif first.kind == "ids":
            for host, ids in documents.items():
                render.write_lines((f"{host} {record}" for record in ids), out)
        elif first.kind in ("pods", "node"):
            from pycrictl.show import diagnosis_text  # noqa: PLC0415 - needs protobuf

            if first.kind == "pods":
                pods = diagnosis_text.pods_of_hosts(documents)
                diagnosis_text.write_pods(pods, out, columns, is_coloured=self._is_coloured)
            else:
                diagnosis_text.write_nodes(documents, out, columns, is_coloured=self._is_coloured)
        else:
            if any(len(sent) > 1 for sent in records.values()):
                documents = {h: [record.content for record in sent] for h, sent in records.items()}
            write = render.write_yaml if first.form == "yaml" else render.write_json
            write(documents, out)


def in_order(events: Events, *, strips: bool, follows: bool, patience_s: float = 0.5) -> Events:
    """Order lines of logs by the times that they begin with, as far as they have arrived.

    Args:
        strips: whether the times are removed.
        follows: whether the logs are followed: a line then waits ``patience_s`` for earlier ones
            of other hosts. Otherwise lines wait until all hosts have ended, or too many lines wait.
    """
    waiting: list[tuple[float, str, bytes]] = []
    last_ns: dict[str, float] = {}  # a line without a time stays behind the one before it
    waiting_bytes, due_s = 0, float("inf")
    for event in events:
        host, printed = event or ("", None)
        if not isinstance(printed, Lines) or printed.is_error:
            yield event
        else:
            due_s = min(due_s, time.monotonic() + patience_s) if follows else due_s
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


def merged_tables(records: Records) -> list[tuple[Table, Record]]:
    """Return a table for each kind that hosts have sent, with NODE as first column.

    If hosts have sorted their rows by a key, all rows are sorted by that key. Each table comes with
    the first record of its kind.
    """
    by_header: dict[tuple[str, ...], list[tuple[str, Record]]] = {}
    for host, sent in records.items():
        for record in sent:
            if record.kind == "table":
                by_header.setdefault((*record.content["header"],), []).append((host, record))
    return [(_merged(sent), sent[0][1]) for sent in by_header.values()]


def _merged(pairs: Sequence[tuple[str, Record]]) -> Table:
    rows: list[tuple[Any, tuple[str, ...]]] = []
    for host, record in pairs:
        content = record.content
        for row, key in zip(content["rows"], content["order"], strict=True):
            rows.append((key, (host, *row)))
    table = Table(**pairs[0][1].content)
    if any(key for key, _ in rows):
        rows.sort(key=lambda row: row[0] or [], reverse=table.is_descending)
    header, cells = (NODE, *table.header), [row for _, row in rows]
    if {*IMAGE_NAME, _WIDE} <= {*header} and len(pairs) > 1:
        header = (*header, MISSING)
        cells = _with_missing(header, cells, [host for host, _ in pairs])
    return table._replace(
        header=header,
        rows=cells,
        whole=(NODE, *table.whole),
        order=(),
    )


def _with_missing(
    header: Sequence[str], rows: Sequence[tuple[str, ...]], hosts: Sequence[str]
) -> list[tuple[str, ...]]:
    """Return the rows of images with the hosts that lack each."""
    names = [tuple(row[header.index(name)] for name in IMAGE_NAME) for row in rows]
    holders = {(row[0], name) for row, name in zip(rows, names, strict=True)}
    lacking = [[host for host in hosts if (host, name) not in holders] for name in names]
    return [(*row, ",".join(lack) or "-") for row, lack in zip(rows, lacking, strict=True)]
