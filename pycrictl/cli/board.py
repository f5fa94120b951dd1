"""What the screen of a node shows: its rows as plain data, and as lines of any width. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Final

from pycrictl.base.units import age_in_words, plural, quote, readable
from pycrictl.diagnosis.error_causes import exit_words, last_reason
from pycrictl.diagnosis.facts import Container, PodFacts
from pycrictl.diagnosis.findings import Finding
from pycrictl.diagnosis.pod import Report
from pycrictl.pulls.state import PullState
from pycrictl.pulls.words import document, far, standing
from pycrictl.show.displays.phrases import clean, cut, cut_middle, cut_name, fill, width


class State(StrEnum):
    SICK = "sick"
    PULLING = "pulling"
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


_ORDER: Final = {state: number for number, state in enumerate(State)}

_WORDS: Final = {
    "crash-loop": "crashing",
    "liveness": "killed by probe",
    "probe": "not ready",
    "start-error": "cannot start",
    "config": "cannot be made",
    "not-found": "no such image",
    "unauthorized": "image refused",
    "rate-limited": "registry busy",
    "x509": "bad certificate",
    "cni": "no network",
    "volume": "no volume",
    "sandbox-image": "no pause image",
    "post-start": "hook fails",
    "runtime-class": "no such runtime",
}
"""Words for kinds of causes whose names say too little."""

_TEXTS: Final = ("pod", "container", "id", "image", "what", "detail")
"""The fields of a row that are texts."""

_OF_NOTHING: Final = frozenset({"pulling", "queued", "maybe-pulling", "unknown", "init-running"})


@dataclass(frozen=True, slots=True)
class BoardRow:
    """A container (perhaps not created yet), a pod, or a pull that belongs to neither.

    ``pod`` is NAMESPACE/NAME, or empty if unknown; ``container`` is empty for the pod itself, and
    ``id`` until the container exists. ``severity_key`` sorts rows with problems, smallest first.
    ``pull`` is what the row waits for. Rows from another host (``node``) have none.
    """

    pod: str
    container: str
    id: str
    image: str
    state: State
    what: str
    detail: str = ""
    severity_key: tuple[int, int] = (0, 0)
    pull: PullState | None = None
    node: str = ""

    @property
    def name(self) -> str:
        """The pod, or the last part of the image; with several nodes, after the node's name."""
        name = self.pod or self.image.rpartition("/")[2]
        return f"{self.node} {name}".rstrip() if self.node else name

    def document(self) -> dict[str, Any]:
        fields = asdict(replace(self, pull=None))
        del fields["severity_key"], fields["node"]
        pull = document(self.pull) if self.pull is not None else None
        return {**fields, "pull": pull, "severity": self.severity_key}


@dataclass(frozen=True, slots=True)
class Board:
    """Everything on the screen.

    ``disk_free`` is the free share of the image file system. ``problem`` is the reason why the
    runtime does not answer; the other data is then from ``since_s``, when it last answered.
    """

    node: str
    runtime: str
    at_s: float
    pods: int = 0
    rows: tuple[BoardRow, ...] = ()
    disk_free: float | None = None
    problem: str = ""
    since_s: float = 0.0

    def count(self, state: State) -> int:
        return sum(row.state is state for row in self.rows)

    def document(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "runtime": self.runtime,
            "at_s": self.at_s,
            "problem": self.problem or None,
            "disk_free": self.disk_free,
            "pods": self.pods,
            "counts": {state.value: self.count(state) for state in State},
            "rows": [row.document() for row in self.rows],
        }


def rows_of(reports: Iterable[Report[PodFacts]], pulls: Sequence[PullState] = ()) -> list[BoardRow]:
    rows = [row for report in reports for row in _rows_of_pod(report)]
    own = [(row.pod, row.pull) for row in rows if row.pull is not None]
    shown = {(pod, pull.image) for pod, pull in own}
    for pull in pulls:
        # containerd does not name the pod of a pull.
        is_shown = (pull.pod, pull.image) in shown or any(pull is awaited for _, awaited in own)
        if not is_shown:
            rows.append(_pull_row(pull.pod, "", pull.image, pull))
    return rows


def ordered(rows: Iterable[BoardRow]) -> tuple[BoardRow, ...]:
    """Sort sick rows by severity, pulls by progress, waiting ones by place, and others by name."""

    def sort_key(row: BoardRow) -> tuple[Any, ...]:
        pull = row.pull or PullState()
        severity = row.severity_key if row.state is State.SICK else (0,)
        progress = pull.place if row.state is State.WAITING else -(pull.sums.share or 0.0)
        return _ORDER[row.state], severity, progress, row.pod, row.container

    return tuple(sorted(rows, key=sort_key))


def rows_in(board: Mapping[str, Any], node: str) -> list[BoardRow]:
    """Read the rows of a host's board; raise ValueError, TypeError or KeyError if invalid."""
    rows = []
    for entry in board.get("rows") or ():
        weight, rank = entry["severity"]
        texts: dict[str, Any] = {name: str(entry[name]) for name in _TEXTS}
        key, state = (int(weight), int(rank)), State(entry["state"])
        rows.append(BoardRow(**texts, state=state, severity_key=key, node=node))
    return rows


def lost_row(node: str, reason: str) -> BoardRow:
    """Return the row of an unreachable host, which is placed before all others."""
    before_all = (-1_000_000, 0)
    row = BoardRow("", "", "", "", State.SICK, "no connection", reason, severity_key=before_all)
    return replace(row, node=node)


def _rows_of_pod(report: Report[PodFacts]) -> list[BoardRow]:
    facts, cause = report.facts, report.cause
    rows = [_row(facts, container, report) for container in facts.containers]
    is_told = any(row.state in (State.SICK, State.PULLING, State.WAITING) for row in rows)
    if not rows or (report.is_sick and not is_told):
        rows.insert(0, _pod_row(facts, cause, report.is_sick))
    return rows


def _pod_row(facts: PodFacts, cause: Finding, is_sick: bool) -> BoardRow:
    pulls = [image for image in facts.images if image.pull is not None]
    if pulls and pulls[0].pull is not None:
        return _pull_row(facts.full_name, "", pulls[0].reference, pulls[0].pull)
    if not is_sick:
        return BoardRow(facts.full_name, "", "", "", State.ENDED, "no containers")
    what, detail, image = _words(facts, cause)
    severity_key = -cause.weight, -cause.rank
    return BoardRow(facts.full_name, "", "", image, State.SICK, what, detail, severity_key)


def _row(facts: PodFacts, container: Container, report: Report[PodFacts]) -> BoardRow:
    pod = facts.full_name
    base = BoardRow(pod, container.name, container.id, container.image, State.RUNNING, "")
    image = next((image for image in facts.images if image.reference == container.image), None)
    if not container.state and image is not None and image.pull is not None:
        return _pull_row(pod, container.name, container.image, image.pull)
    own = [
        finding
        for finding in report.findings
        if finding.container == container.name and finding.kind not in _OF_NOTHING
    ]
    if not container.state and not own and report.is_sick:
        own = [finding for finding in report.findings if finding.kind not in _OF_NOTHING][:1]
        if not own:
            return replace(base, state=State.WAITING, what="to be started")
    if own and report.is_sick:
        what, detail, _ = _words(facts, own[0])
        if container.state == "exited" or container.has_crashed_before:
            detail = _crash(container, facts.now_s)
            if own[0].kind == "crash-loop":
                what += f", {plural(container.restarts, 'restart')}"
        severity_key = -own[0].weight, -own[0].rank
        return replace(base, state=State.SICK, what=what, detail=detail, severity_key=severity_key)
    if container.state == "running":
        what = f"running {age_in_words(max(facts.now_s - container.started_s, 0.0))}"
        return replace(base, what=what)
    if container.state == "exited":
        ago = age_in_words(max(facts.now_s - container.finished_s, 0.0))
        return replace(base, state=State.ENDED, what="ended", detail=f"{ago} ago")
    return replace(base, state=State.WAITING, what=container.state or "to be started")


def _pull_row(pod: str, container: str, image: str, pull: PullState) -> BoardRow:
    if pull.place:
        return BoardRow(
            pod, container, "", image, State.WAITING, "waiting", standing(pull), pull=pull
        )
    return BoardRow(pod, container, "", image, State.PULLING, "pulling", far(pull), pull=pull)


def _words(facts: PodFacts, cause: Finding) -> tuple[str, str, str]:
    """Return the cause in a word or two, its most important detail, and the image.

    The image is empty unless it could not be pulled; the row shows it after the detail.
    """
    what = _WORDS.get(cause.kind, cause.kind.replace("-", " "))
    for image in facts.images:
        if image.failure and quote(image.reference) in cause.text:
            is_told = cause.kind == "not-found"
            reason = "" if is_told else last_reason(image.failure) or image.failure
            return what, readable(reason), image.reference
    detail = cause.text.removeprefix("is not running, and ").removeprefix("is not running: ")
    return what, detail.removeprefix("is waiting: "), ""


def _crash(container: Container, now_s: float) -> str:
    parts = [f"exit {container.exit_code}{exit_words(container.exit_code)}"]
    if container.finished_s and container.state == "exited":
        parts.append(f"{age_in_words(max(now_s - container.finished_s, 0.0))} ago")
    last = f': "{container.lines[-1].strip()}"' if container.lines else ""
    return ", ".join(parts) + last


# As text


def _head_lines(board: Board, columns: int) -> list[str]:
    """Return the two lines above the rows, and a third one if the runtime does not answer."""
    clock = time.strftime("%H:%M:%S", time.localtime(board.at_s))
    parts = [board.node, board.runtime]
    if board.disk_free is not None:
        parts.append(f"images {100 * board.disk_free:.0f} % free")
    left = "  ".join(clean(part) for part in parts if part)
    room = max(columns - len(clock) - 1, 0)
    first = f"{fill(cut(left, room), room)} {clock}" if room > len(board.node) else left
    counts = [f"{board.count(state)} {state}" for state in State if board.count(state)]
    lines = [first, f"PODS {board.pods}   {'  '.join(counts)}".rstrip()]
    if board.problem:
        since = time.strftime("%H:%M:%S", time.localtime(board.since_s)) if board.since_s else ""
        lines.append(f"! {f'last seen at {since}: ' if since else ''}{clean(board.problem)}")
    return [cut(line, columns) for line in lines]


def lines_of(board: Board, columns: int) -> Iterator[str]:
    """Yield the lines of the screen, none wider than ``columns``; rows with a problem begin with !.

    Long names are cut in the middle.
    """
    yield from _head_lines(board, columns)
    pod_width = max((width(row.name) for row in board.rows if row.pod or row.node), default=0)
    pod_width = min(pod_width, max(columns * 32 // 100, 16))
    container_width = max((width(row.container) for row in board.rows), default=0)
    container_width = min(container_width, max(columns * 14 // 100, 8))
    for row in board.rows:
        pod = fill(cut_middle(clean(row.name), pod_width), pod_width)
        container = fill(cut_middle(clean(row.container), container_width), container_width)
        line = f"{'!' if row.state is State.SICK else ' '} {pod}  {container}  "
        line += f"{clean(row.what)}   {clean(row.detail)}".rstrip()
        if row.state is State.SICK and row.image and not row.id:
            line += f"   {cut_name(clean(row.image), max(columns - width(line) - 3, 0))}"
        yield cut(line, columns)
