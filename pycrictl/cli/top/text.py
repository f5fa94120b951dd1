"""The screen of a node as lines of text, for any width. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from pycrictl.base.units import format_bytes, ordinal
from pycrictl.cli.top.board import Board, BoardRow, State
from pycrictl.pulls.state import PullState
from pycrictl.pulls.words import far, stall
from pycrictl.show.displays.phrases import clean, clock, cut, cut_middle, cut_name, fill, width

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
