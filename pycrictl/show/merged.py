"""What several hosts print, as one: a table with NODE, a document by host, one list, one display.

Hosts send records (``show.records``) of what they would write, and plain lines, which are shown
behind ``HOST |`` as they come. Text of hosts is escaped here, whatever they did.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pycrictl.base.units import escape
from pycrictl.show import render
from pycrictl.show.displays import phrases
from pycrictl.show.records import End, Event, Lines, Record
from pycrictl.show.render import CONTROL, Screen, Table, Tone, colours_are_wanted

if TYPE_CHECKING:
    from pycrictl.base.environ import Environment
    from pycrictl.show.displays.host_pulls import HostPulls

IMAGE_NAME: Final = ("IMAGE", "TAG")
MISSING: Final = "MISSING ON"
_WIDE: Final = "IN USE"

Records = Mapping[str, Sequence[Record]]
"""Records by host, in the order of hosts."""

NODE: Final = "NODE"
_COLOURS: Final = (36, 32, 33, 35, 34, 96, 92, 93, 95, 94)
_WIDEST: Final = 10_000


class Merged:
    """Shows the output of several hosts.

    Args:
        hosts: their labels, in the order of tables.

    Attributes:
        failed: how commands that did not succeed have ended, by host.
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
        """Write what hosts have sent as data: each kind as one."""
        out = self._env.stdout
        records = {host: sent for host, sent in self._records.items() if sent}
        first = next((sent[0] for sent in records.values()), None)
        if first is None:
            return
        documents = {host: sent[0].content for host, sent in records.items()}
        columns = self._env.columns
        if first.kind == "table":
            for table in merged_tables(records, shows_missing=len(records) > 1):
                self._write_table(table)
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

    def _write_table(self, table: MergedTable) -> None:
        out, columns = self._env.stdout, self._env.columns
        narrow = render.fitted_lines(table.table, _WIDEST) if columns else []
        # Other tables than those made for a terminal are not cut, but fit more often if narrow.
        if columns and (table.is_fitted or max(map(phrases.width, narrow)) <= columns):
            screen = Screen(columns, self._is_coloured)
            render.write_fitted(table.table, out, screen, header=table.has_header)
        else:
            render.write_table(table.table, out, header=table.has_header)


class MergedTable(NamedTuple):
    table: Table
    has_header: bool
    is_fitted: bool


def merged_tables(records: Records, *, shows_missing: bool) -> list[MergedTable]:
    """Return one table for each kind of table that hosts have sent, with NODE as first column.

    Rows that hosts have sorted by a key are sorted by it together.
    """
    by_header: dict[tuple[str, ...], list[tuple[str, Record]]] = {}
    for host, sent in records.items():
        for record in sent:
            if record.kind == "table":
                by_header.setdefault((*record.content["header"],), []).append((host, record))
    return [_merged(header, sent, shows_missing) for header, sent in by_header.items()]


def _merged(
    header: tuple[str, ...], pairs: Sequence[tuple[str, Record]], shows_missing: bool
) -> MergedTable:
    rows: list[tuple[Any, tuple[str, ...], Tone]] = []
    for host, record in pairs:
        content = record.content
        for row, tone, key in zip(content["rows"], content["tones"], content["order"], strict=True):
            rows.append((key, (host, *row), tone))
    _, first = pairs[0]
    table = Table(**first.content)
    if any(key for key, _, _ in rows):
        rows.sort(key=lambda row: row[0] or [], reverse=table.is_descending)
    cells = [row for _, row, _ in rows]
    if shows_missing and not first.is_fitted and {*IMAGE_NAME} <= {*header} and _WIDE in header:
        header, cells = (
            (*header, MISSING),
            _with_missing(header, cells, [host for host, _ in pairs]),
        )
    merged = table._replace(
        header=(NODE, *header),
        rows=cells,
        whole=(NODE, *table.whole),
        optional=(*table.optional,),
        tones=[tone for _, _, tone in rows] if any(tone for _, _, tone in rows) else (),
        order=(),
    )
    return MergedTable(merged, first.has_header, first.is_fitted)


def _with_missing(
    header: Sequence[str], rows: Sequence[tuple[str, ...]], hosts: Sequence[str]
) -> list[tuple[str, ...]]:
    """Return the rows of images with the hosts that lack each."""
    places = [header.index(name) + 1 for name in IMAGE_NAME]
    holders: dict[tuple[str, ...], set[str]] = {}
    for row in rows:
        holders.setdefault(tuple(row[place] for place in places), set()).add(row[0])
    found = []
    for row in rows:
        lacking = [h for h in hosts if h not in holders[tuple(row[place] for place in places)]]
        found.append((*row, ",".join(lacking) or "-"))
    return found
