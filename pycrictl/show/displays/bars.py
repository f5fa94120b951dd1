"""Progress bars on a terminal: one for the total, and a pool of lines for what happens now.

The bars are tqdm's. tqdm only formats them; ``Block`` places them, because tqdm's own positions are
lost when a window changes its size, and rows that did not fit never come back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, TextIO

from tqdm.std import tqdm

from pycrictl import environ as surroundings
from pycrictl.progress.tracker import Awaited, Item, Phase, View
from pycrictl.show.displays import per_image, phrases
from pycrictl.show.displays.block import Block
from pycrictl.show.displays.per_image import ACTIVE, ImagePull, by_image
from pycrictl.units import format_bytes

POOL_LINES: Final = 10
"""Most lines above the total."""

NARROW: Final = 40
"""Columns below which there is no place for a bar."""

TINY: Final = 4
"""Rows below which only the total is shown."""

NARROW_DIGEST: Final = 7
WIDEST_METER: Final = 110
SHORTEST_BAR: Final = 5
BYTES_WIDTH: Final = len("1023.9/1023.9 MiB")

REPAINT_S: Final = 2.0
"""How long something foreign (a key pressed, another program's output) may stay amidst the bars."""

RESUMED_S: Final = 10.0
"""How long it is told that a part had arrived before the first look."""

SUMMARY_LINES: Final = 50

_SIGNS: Final = {Phase.DOWNLOADING: "dl", Phase.EXTRACTING: "ext"}
"""Phases beside a percentage where there is no room for the word."""

_ASCII: Final = str.maketrans({"…": "~", "·": "-"})
_RANKS: Final = {
    Phase.EXTRACTING: 0,
    Phase.DOWNLOADING: 0,
    Phase.FAILED: 1,
    Phase.WAITING: 2,
}


class Meter(NamedTuple):
    """A line with a bar: what stands before it, its share, and what stands behind it."""

    left: str
    done: int
    total: int
    right: str


class Bars:
    """Bars that follow the views and the window's size.

    Args:
        stderr: open on a terminal.
        environ: tells the size where the terminal does not know it.
        aggregate: the total line only.
    """

    def __init__(
        self, stderr: TextIO, environ: Mapping[str, str], *, aggregate: bool = False
    ) -> None:
        self._stderr = stderr
        self._environ = environ
        self._aggregate = aggregate
        self._is_utf8 = surroundings.is_utf8(stderr, environ)
        self._block = Block(stderr)
        self._stopwatch = per_image.Stopwatch()
        self._rendered: dict[tuple[Meter | str, int], str] = {}
        self._first_s: float | None = None
        self._painted_s = 0.0
        self._last: View | None = None
        self._has_told_dropped = False
        self._is_closed = False

    def show(self, view: View) -> None:
        """Brings the bars up to ``view`` and the window's present size."""
        if self._first_s is None or not view.items:
            self._first_s = view.now
        self._last = view
        pulls = by_image(view.items)
        self._stopwatch.look(pulls, view.now)
        if view.dropped and not self._has_told_dropped:
            self._has_told_dropped = True
            self.note(per_image.dropped(view))
        columns, rows = size = surroundings.terminal_size(self._stderr, self._environ)
        # The last column stays free: a terminal may wrap as soon as it is filled.
        width = max(columns - 1, 1)
        lines: list[Meter | str] = []
        if view.awaited:
            lines += awaited_lines(view.awaited, max(min(rows - 1, POOL_LINES), 1), width)
        else:
            if not self._aggregate and rows >= TINY:
                lines += pool(pulls, min(rows - 2, POOL_LINES), width)
            is_new = view.now - self._first_s < RESUMED_S
            lines.append(total_line(view, width, tells_resumed=is_new))
        repaints = view.now - self._painted_s >= REPAINT_S
        if repaints:
            self._painted_s = view.now
        self._block.draw(self._render(lines, width), size=size, whole=repaints)

    def note(self, text: str) -> None:
        """Leaves one line above the bars."""
        self._block.print_above(self._encodable(phrases.clean(text)))

    def end(self, images: Collection[str]) -> None:
        """Leaves the last line of each of these images above the bars."""
        if (view := self._last) is None:
            return
        pulls = by_image(view.items)
        for line in self._last_lines([one for one in pulls if one.image in images], view.now):
            self._block.print_above(self._encodable(line))
        left = tuple(item for item in view.items if item.image not in images)
        self._last = replace(view, items=left)
        self._stopwatch.forget(images)

    def close(self, view: View | None = None) -> None:
        """Replaces the bars by one line for each image."""
        lines: list[str] = []
        try:
            view = view or self._last
            if view is not None and not self._is_closed:
                lines = self._summary(view)
        finally:
            self._is_closed = True
            self._block.close([self._encodable(line) for line in lines])

    def _summary(self, view: View) -> list[str]:
        pulls = by_image(view.items)
        self._stopwatch.look(pulls, view.now)
        first_s = view.now if self._first_s is None else self._first_s
        end = []
        if self._aggregate and pulls:
            words = per_image.totals_words(view)
            verb = "in" if all(pull.is_complete for pull in pulls) else "after"
            elapsed = f"{verb} {phrases.duration(view.now - first_s)}"
            end = [_sentence("Total", words.size, words.done, words.failed, elapsed)]
            pulls = [pull for pull in pulls if pull.count(Phase.FAILED)]
        return [*self._last_lines(pulls, view.now), *end]

    def _last_lines(self, pulls: Sequence[ImagePull], now: float) -> list[str]:
        more = []
        if len(pulls) > SUMMARY_LINES:
            more = [f"… and {len(pulls) - SUMMARY_LINES} more images"]
            pulls = sorted(pulls, key=lambda pull: pull.is_complete)[:SUMMARY_LINES]
        elapsed_s = self._stopwatch.elapsed_s
        lines = [f"{pull.name}  {pull.summary(elapsed_s(pull.image, now))}" for pull in pulls]
        return lines + more

    def _render(self, lines: Sequence[Meter | str], width: int) -> list[str]:
        """The lines as text; tqdm is asked only for those that are new."""
        old = self._rendered
        self._rendered = {}
        for line in lines:
            key = line, width
            if (text := old.get(key)) is None:
                text = self._meter(line, width) if isinstance(line, Meter) else line
            self._rendered[key] = text
        return [self._encodable(self._rendered[line, width]) for line in lines]

    def _meter(self, meter: Meter, width: int) -> str:
        return tqdm.format_meter(
            min(max(meter.done / meter.total, 0.0), 1.0),
            1,
            0.0,
            ncols=min(width, WIDEST_METER),
            ascii=not self._is_utf8,
            bar_format=f"{_literal(meter.left)}|{{bar}}|{_literal(meter.right)}",
        )

    def _encodable(self, text: str) -> str:
        return text if self._is_utf8 else text.translate(_ASCII)


def total_line(view: View, width: int, *, tells_resumed: bool = False) -> Meter | str:
    """The line below all others."""
    totals = view.totals
    if not view.items:
        return phrases.cut("Total  nothing is being pulled", width)
    known = per_image.totals_words(view)
    if totals.total <= 0:
        return phrases.cut(_sentence("Total", *known), width)
    percent = f"{phrases.percent(totals.progress, totals.total):>3}%"
    if width < NARROW - 1:
        return phrases.cut(f"{percent.lstrip()} {known.size}", width)
    # As wide as at the end: a redrawn bar must not change its length.
    words = [known.size.rjust(len(phrases.part(totals.total, totals.total)))]
    if known.rate:
        words += known.rate, known.eta.ljust(len("ETA 0:00"))
    words += filter(None, (known.done, known.failed))
    if tells_resumed and totals.resumed > 0:
        words.append(f"resumed {format_bytes(totals.resumed)}")
    left = f"Total {percent}"
    while len(words) > 1 and not _has_room(left, _join(words), width):
        words.pop()
    return _fit(left, [_join(words)], width, totals.progress, totals.total)


def awaited_lines(pulls: Sequence[Awaited], most: int, width: int) -> list[str]:
    """At most ``most`` lines for pulls of which there is only their name, and whom they wait for.

    What does not fit in one line takes two, where there is room for them.
    """
    lines: list[str] = []
    for pull in pulls[:most]:
        name = per_image.awaited_name(pull)
        words, short = per_image.awaited(pull)
        if len(words) > width:
            words = short
        room = width - len(words) - 2
        if phrases.width(name) > room and 2 * len(pulls) <= most:
            lines += phrases.cut_middle(name, width), phrases.cut(words, width)
        else:
            lines.append(phrases.cut(f"{phrases.cut_middle(name, room)}  {words}", width))
    return lines


def pool(pulls: Sequence[ImagePull], slots: int, width: int) -> list[Meter | str]:
    """At most ``slots`` lines for what has not arrived, grouped by image.

    What moves has the first claim to a line, then failures, then what waits, and the images take
    turns. Lines appear in the order of the images and their layers, so that they keep their places.
    At most half of them are headings.
    """
    unfinished = [pull for pull in pulls if not pull.is_complete]
    is_flat = not any(pull.has_layers for pull in unfinished)
    has_headings = slots >= 4 if len(pulls) == 1 else len(unfinished) > 0
    most = slots if is_flat else max(slots // 2, 1)
    shown = sorted(unfinished, key=lambda pull: min(map(_rank, pull.items)))[:most]
    flat = [pull for pull in shown if not pull.has_layers]
    free = slots - (len(shown) if has_headings else len(flat))
    claims: list[tuple[int, int, Item]] = []
    for pull in shown:
        if pull.has_layers:
            open_items = sorted((item for item in pull.items if _rank(item) < 3), key=_rank)
            claims += [(_rank(item), place, item) for place, item in enumerate(open_items)]
    claims.sort(key=lambda claim: claim[:2])
    chosen = {(item.image, item.layer) for _, _, item in claims[: max(free, 0)]}
    is_narrow = width < NARROW - 1
    name_width = max((phrases.width(pull.name) for pull in flat), default=0)
    name_width = min(name_width, width // 2 if is_narrow else width // 3)
    is_shown = {pull.image for pull in shown}
    lines: list[Meter | str] = []
    for pull in pulls:
        if pull.image not in is_shown:
            continue
        if not pull.has_layers:
            lines.append(item_line(pull.items[0], phrases.fill(pull.name, name_width), width))
            continue
        if has_headings:
            lines.append(heading(pull, width))
        for item in pull.items:
            if (item.image, item.layer) in chosen:
                label = phrases.short_digest(item.layer)
                label = label[:NARROW_DIGEST] if is_narrow else "  " * has_headings + label
                lines.append(item_line(item, label, width))
    return lines


def heading(pull: ImagePull, width: int) -> str:
    """An image's name, shortened where it hurts least, and how many of its layers are where."""
    counts = f"  {pull.counts}"
    if width < NARROW - 1 or len(counts) > width // 2:
        counts = ""
    return phrases.cut_middle(pull.name, width - len(counts)) + counts


def item_line(item: Item, label: str, width: int) -> Meter | str:
    """The line of one layer, or of one image whose layers are not told."""
    if item.phase is Phase.FAILED:
        return phrases.cut(f"{label} {per_image.failure(item)}", width)
    done, total = item.progress, item.total
    if item.phase is Phase.EXTRACTING:
        # Compressed bytes say nothing of it: they are all here.
        done, total = item.extracted, item.extracted_total
    word = str(item.phase)
    if item.phase is Phase.WAITING and item.queue_position > 0:
        word = f"queued, {phrases.ordinal(item.queue_position)}"
    has_bar = item.phase in ACTIVE and total > 0
    percent = f"{phrases.percent(done, total):>3}%" if has_bar else ""
    size = phrases.part(done, total)
    if item.phase is Phase.EXTRACTING and not total:
        size = f"{format_bytes(done)} unpacked" if done else format_bytes(item.total)
    elif item.phase is Phase.WAITING and not done:
        size = format_bytes(total) if total else ""
    stall = [per_image.stall(item)] if per_image.is_stalled(item) else []
    if width < NARROW - 1:
        words = [label, _SIGNS[item.phase] if has_bar else word, percent.lstrip(), *stall, size]
        return phrases.join_fitting([text for text in words if text], width)
    left = f"{label} {word:<11}"
    if not has_bar:
        return phrases.cut(_sentence(left, size, *stall), width)
    # What is told beside the bar, from most to least; a stall outweighs the bytes.
    rights = [_join([size.rjust(BYTES_WIDTH), *stall]), _join(stall)]
    return _fit(f"{left} {percent}", rights, width, done, total)


def _rank(item: Item) -> int:
    return _RANKS.get(item.phase, 3)


def _literal(text: str) -> str:
    """``text`` for a format string."""
    return text.replace("{", "{{").replace("}", "}}")


def _sentence(*words: str) -> str:
    return "  ".join(filter(None, words)).rstrip()


def _join(words: Iterable[str]) -> str:
    return "".join(f"  {word}" for word in words)[1:].rstrip()


def _has_room(left: str, right: str, width: int) -> bool:
    return phrases.width(left) + phrases.width(right) + 2 + SHORTEST_BAR <= min(width, WIDEST_METER)


def _fit(left: str, rights: Sequence[str], width: int, done: int, total: int) -> Meter | str:
    """A bar with the first of ``rights`` that leaves room for it, or no bar."""
    for right in rights:
        if _has_room(left, right, width):
            return Meter(left, done, total, right)
    return phrases.cut(left + rights[-1], width)
