"""What the screen of a node shows: its rows as plain data, and as lines of any width. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Final, Literal, NamedTuple

from pycrictl.base import foreign
from pycrictl.base.units import age_in_words, format_bytes, ordinal, plural, quote, readable
from pycrictl.diagnosis.facts import Container, PodFacts
from pycrictl.diagnosis.findings import Finding, plain
from pycrictl.diagnosis.pod import Report
from pycrictl.diagnosis.troubles import exit_words, last_reason
from pycrictl.pulls.state import PullState
from pycrictl.pulls.words import document, far, stall, standing
from pycrictl.show.displays.phrases import clean, clock, cut, cut_middle, cut_name, fill, width


class State(StrEnum):
    SICK = "sick"
    PULLING = "pulling"
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


_ORDER: Final = {state: number for number, state in enumerate(State)}

Measure = Literal["cpu", "memory", "restarts", "name"]
MEASURES: Final[tuple[Measure, ...]] = ("cpu", "memory", "restarts", "name")
"""Sort keys of healthy rows."""

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

_FIRST: Final = (-1_000_000, 0)
"""The severity of a host that is not there."""

_OF_NOTHING: Final = frozenset({"pulling", "queued", "maybe-pulling", "unknown", "init-running"})


class Usage(NamedTuple):
    cores: float | None = None
    memory_bytes: int | None = None


class Limit(NamedTuple):
    limit: int
    running: int
    waiting: int


NOTHING: Final = Usage()


@dataclass(frozen=True, slots=True)
class BoardRow:
    """A container (perhaps not created yet), a pod, or a pull that belongs to neither.

    ``pod`` is NAMESPACE/NAME, or empty if unknown; ``container`` is empty for the pod itself, and
    ``id`` until the container exists. ``severity_key`` orders sick rows, the smallest first. The
    row waits for ``pull``, which is None for another host's.
    """

    pod: str
    container: str
    id: str
    image: str
    state: State
    what: str
    detail: str = ""
    severity_key: tuple[int, int] = (0, 0)
    restarts: int = 0
    usage: Usage = NOTHING
    pull: PullState | None = None
    node: str = ""

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.node, self.pod, self.container, "" if self.container else self.image

    @property
    def name(self) -> str:
        """The pod, or the last part of the image, behind the node if there are several."""
        name = self.pod or self.image.rpartition("/")[2]
        return f"{self.node} {name}".rstrip() if self.node else name

    def document(self) -> dict[str, Any]:
        fields = asdict(replace(self, pull=None))
        del fields["severity_key"], fields["usage"], fields["node"]
        pull = document(self.pull) if self.pull is not None else None
        usage = {"cpu": self.usage.cores, "memory": self.usage.memory_bytes}
        return {**fields, **usage, "pull": pull, "severity": self.severity_key}


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
    limit: Limit | None = None
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
            "limit": plain(self.limit),
            "pods": self.pods,
            "counts": {state.value: self.count(state) for state in State},
            "rows": [row.document() for row in self.rows],
        }


def rows_of(
    reports: Iterable[Report[PodFacts]], usage: Mapping[str, Usage], pulls: Sequence[PullState] = ()
) -> list[BoardRow]:
    rows: list[BoardRow] = []
    for report in reports:
        rows += _rows_of_pod(report, usage)
    own = [(row.pod, row.pull) for row in rows if row.pull is not None]
    shown = {(pod, pull.image) for pod, pull in own}
    for pull in pulls:
        # containerd does not name the pod of a pull.
        is_shown = (pull.pod, pull.image) in shown or any(pull is awaited for _, awaited in own)
        if not is_shown:
            rows.append(_pull_row(pull.pod, "", pull.image, pull))
    return rows


def ordered(rows: Iterable[BoardRow], by: Measure = "cpu") -> tuple[BoardRow, ...]:
    def place(row: BoardRow) -> tuple[Any, ...]:
        pull = row.pull or PullState()
        own: Any = {
            "cpu": -(row.usage.cores or 0.0),
            "memory": -(row.usage.memory_bytes or 0),
            "restarts": -row.restarts,
            "name": 0,
        }[by]
        is_lasting = row.state in (State.RUNNING, State.ENDED)
        first = row.severity_key if row.state is State.SICK else (own if is_lasting else 0,)
        way = pull.place if row.state is State.WAITING else -(pull.sums.share or 0.0)
        return _ORDER[row.state], first, way, row.pod, row.container

    return tuple(sorted(rows, key=place))


def rows_in(document: Mapping[str, Any], node: str) -> list[BoardRow]:
    """Read the rows of a host's board; ValueError, TypeError or KeyError if it is none."""
    rows = []
    for entry in document.get("rows") or ():
        first, second = entry["severity"]
        memory = foreign.strict(entry["memory"], foreign.whole)
        row = BoardRow(
            pod=str(entry["pod"]),
            container=str(entry["container"]),
            id=str(entry["id"]),
            image=str(entry["image"]),
            state=State(entry["state"]),
            what=str(entry["what"]),
            detail=str(entry["detail"]),
            severity_key=(int(first), int(second)),
            restarts=int(entry["restarts"]),
            usage=Usage(foreign.number(entry["cpu"]), memory),
            node=node,
        )
        rows.append(row)
    return rows


def lost_row(node: str, reason: str) -> BoardRow:
    """Return the line of a host that is not there, before all others."""
    return BoardRow(
        "", "", "", "", State.SICK, "no connection", reason, severity_key=_FIRST, node=node
    )


def matching(rows: Iterable[BoardRow], text: str) -> tuple[BoardRow, ...]:
    wanted = text.casefold()
    return tuple(
        row
        for row in rows
        if wanted
        in f"{row.node} {row.pod} {row.container} {row.image} {row.state} {row.what}".casefold()
    )


def _rows_of_pod(report: Report[PodFacts], usage: Mapping[str, Usage]) -> list[BoardRow]:
    facts, cause = report.facts, report.cause
    rows = [
        replace(_row(facts, container, report), usage=usage.get(container.id, NOTHING))
        for container in facts.containers
    ]
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
    base = BoardRow(
        pod, container.name, container.id, container.image, State.RUNNING, "",
        restarts=container.restarts,
    )  # fmt: skip
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
        state, what, detail = State.WAITING, "in line", standing(pull)
    else:
        state, what, detail = State.PULLING, "pulling", far(pull)
    return BoardRow(pod, container, "", image, state, what, detail, pull=pull)


def _words(facts: PodFacts, cause: Finding) -> tuple[str, str, str]:
    """Return the trouble in a word or two, its most important detail, and the image.

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

KEYS: Final = "? help  q quit  l logs  e exec  w why  i inspect  p layers  s sort  / filter"
HELP: Final = """\
up, down   choose a row (also page up, page down, home, end)
l          follow its log; Ctrl-C returns
e          open a shell in it
enter, w   show why it is in this state
i          show its details
p          watch the layers of its pull; Ctrl-C returns
s          sort healthy rows by CPU, memory, restarts or name
/          show only rows with a text; escape shows all
?          show the keys
q          quit; Ctrl-Z suspends
"""
_NARROW: Final = 50
_BAR_CHARS: Final = 20
_BLOCKS: Final = " ▏▎▍▌▋▊▉"


class Layout(NamedTuple):
    columns: int
    pod: int
    container: int


def layout_of(rows: Sequence[BoardRow], columns: int) -> Layout:
    """Return column widths that fit a screen; a narrow one has no column for containers."""
    pod = max((width(row.name) for row in rows if row.pod or row.node), default=0)
    container = max((width(row.container) for row in rows), default=0)
    if columns < _NARROW:
        return Layout(columns, min(pod, max(columns // 2, 8)), 0)
    pod = min(pod, max(columns * 32 // 100, 16))
    return Layout(columns, pod, min(container, max(columns * 14 // 100, 8)))


def row_line(row: BoardRow, layout: Layout) -> str:
    mark = "!" if row.state is State.SICK else " "
    name = clean(row.name)
    head = f"{mark} {fill(cut_middle(name, layout.pod), layout.pod)}  "
    if layout.container:
        head += f"{fill(cut_middle(clean(row.container), layout.container), layout.container)}  "
    return cut(head + _rest(row, layout.columns - width(head)), layout.columns)


def _rest(row: BoardRow, room: int) -> str:
    pull = row.pull
    if row.state is State.PULLING and pull is not None:
        return _pulling(pull, room)
    if row.state is State.RUNNING:
        return f"{row.what:<18} {_figures(row, room - 19)}".rstrip()
    if row.state is State.WAITING and pull is not None:
        ahead = pull.behind.rpartition("/")[2] if ":" in pull.behind else pull.behind  # an image
        behind = f", behind {ahead}" if ahead else ""
        soon_s = pull.starts_in_s
        starts = "" if soon_s is None else f", starts in {clock(soon_s)}"
        return clean(f"in line: {ordinal(pull.place)}{behind}{starts}")
    told = f"{clean(row.what)}   {clean(row.detail)}".rstrip()
    if row.state is State.SICK and row.image and not row.id:
        return f"{told}   {cut_name(clean(row.image), max(room - width(told) - 3, 0))}"
    return told


def _pulling(pull: PullState, room: int) -> str:
    sums = pull.sums
    if sums.percent is None:
        return clean(f"pulling   {far(pull)}")
    rate = f"{format_bytes(sums.rate)}/s" if sums.rate is not None else ""
    if sums.is_unpacking or sums.stalled_s:
        rate = "unpacking" if sums.is_unpacking else stall(sums.stalled_s)
    left = clock(sums.eta_whole_s) if sums.eta_whole_s is not None else ""
    right = f"{sums.percent:3} %  {rate:>12}  {left:>6}".rstrip()
    size = min(max(room - len("pulling  ") - len(right) - 2, 0), _BAR_CHARS)
    drawn = f"{bar(sums.percent / 100, size)}  " if size >= 4 else ""
    return f"pulling  {drawn}{right}"


def bar(share: float, size: int) -> str:
    eighths = int(min(max(share, 0.0), 1.0) * size * 8)
    drawn = "█" * (eighths // 8) + (_BLOCKS[eighths % 8] if eighths % 8 else "")
    return drawn.ljust(size)


def _figures(row: BoardRow, room: int) -> str:
    cores, memory = row.usage
    cpu = f"cpu {cores:.1f}" if cores is not None else "cpu -"
    size = format_bytes(memory) if memory is not None else "-"
    figures = f"{cpu:<9} {size:>10}"
    restarts = f"   restarts {row.restarts}"
    return figures + restarts if len(figures + restarts) <= room else figures


def head_lines(board: Board, columns: int) -> list[str]:
    """Return the two lines above the rows, and a third one if the runtime does not answer."""
    clock = time.strftime("%H:%M:%S", time.localtime(board.at_s))
    parts = [board.node, board.runtime]
    if board.disk_free is not None:
        parts.append(f"images {100 * board.disk_free:.0f} % free")
    if (limit := board.limit) is not None:
        most = f"limit {limit.limit}: " if limit.limit else "no limit: "
        taken = f"{limit.running}/{limit.limit} taken" if limit.limit else f"{limit.running} pull"
        parts.append(f"{most}{taken}, {limit.waiting} wait")
    left = "  ".join(clean(part) for part in parts if part)
    room = max(columns - len(clock) - 1, 0)
    first = f"{fill(cut(left, room), room)} {clock}" if room > len(board.node) else left
    counts = [f"{board.count(state)} {state}" for state in State if board.count(state)]
    lines = [first, f"PODS {board.pods}   {'  '.join(counts)}".rstrip()]
    if board.problem:
        since = time.strftime("%H:%M:%S", time.localtime(board.since_s)) if board.since_s else ""
        lines.append(f"! {f'last seen at {since}: ' if since else ''}{clean(board.problem)}")
    return [cut(line, columns) for line in lines]


def lines_of(board: Board, columns: int) -> Iterable[str]:
    layout = layout_of(board.rows, columns)
    yield from head_lines(board, columns)
    yield from (row_line(row, layout) for row in board.rows)
