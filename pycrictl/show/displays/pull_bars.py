"""Progress bars of pulls: one for the total, and a pool of lines for unfinished items."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, TextIO

from pycrictl.base.units import format_bytes, format_part
from pycrictl.pulls.state import LayerState, Phase, PullState, View
from pycrictl.show.displays import per_image, phrases
from pycrictl.show.displays.meters import Meter, Meters, fit, join, sentence, total_line
from pycrictl.show.displays.per_image import ACTIVE
from pycrictl.show.render import Tone, painted

POOL_LINES: Final = 10
"""Maximum number of lines above the total."""

TINY: Final = 4
"""With fewer rows than this, only the total is shown."""

BYTES_WIDTH: Final = len("1023.9/1023.9 MiB")

_RANKS: Final = {Phase.EXTRACTING: 0, Phase.DOWNLOADING: 0, Phase.FAILED: 1, Phase.WAITING: 2}


class Bars(Meters):
    def __init__(self, stderr: TextIO, environ: Mapping[str, str]) -> None:
        super().__init__(stderr, environ)
        self._history = per_image.History()

    def show(self, view: View) -> None:
        pulls = self._history.add(view)
        width, rows = self.measure()
        lines: list[Meter | str] = []
        if view.awaited:
            lines += awaited_lines(view, max(min(rows - 1, POOL_LINES), 1), width)
        else:
            if rows >= TINY:
                lines += pool(pulls, min(rows - 2, POOL_LINES), width)
            lines.append(total(view, width))
        self.draw(lines)

    def end(self, images: Collection[str]) -> None:
        """Print the final line of each of these images above the bars.

        Later views omit them; the same name then means another pull.
        """
        self.write(self._last_lines([p for p in self._history.pulls if p.name in images]))
        self._history.forget(images)

    def close(self) -> None:
        lines: list[str] = []
        try:
            lines = self._last_lines(self._history.pulls)
        finally:
            self._history.last = None
            self.replace(lines)

    def _last_lines(self, pulls: Sequence[PullState]) -> list[str]:
        return [
            painted(
                f"{per_image.name(pull)}  {self._history.summary(pull)}",
                "bad" if pull.has_failed else "",
            )
            for pull in pulls
        ]


def total(view: View, width: int) -> Meter | str:
    if not view.pulls:
        return phrases.cut("Total  nothing is being pulled", width)
    return total_line("Total", view.sums, per_image.words_of_sums(view), width)


def awaited_lines(view: View, most: int, width: int) -> list[str]:
    lines: list[str] = []
    for pull in view.awaited[:most]:
        words = per_image.awaited(pull, view.wall_s)
        room = max(width - len(words) - 2, width // 3)
        name = phrases.cut_name(per_image.awaited_name(pull), room)
        lines.append(phrases.cut(f"{name}  {words}", width))
    return lines


def pool(pulls: Sequence[PullState], slots: int, width: int) -> list[Meter | str]:
    """Return at most ``slots`` lines for unfinished items, grouped by image.

    Active items have the first claim to a line, then failed ones, then waiting ones; images take
    turns. Lines follow the order of the images and their layers, which keeps them in place.
    """
    unfinished = [pull for pull in pulls if not pull.is_complete]
    has_headings = slots >= 4 if len(pulls) == 1 else len(unfinished) > 0
    headed = {pull.name for pull in unfinished if pull.has_layers and has_headings}
    claims = [
        (_rank(layer), place, pull.name, layer.name)
        for pull in unfinished
        for place, layer in enumerate(sorted(_open_layers(pull), key=_rank))
    ]
    claims.sort(key=lambda claim: claim[:2])
    room = slots
    if len(claims) + len(headed) > slots > 1:
        room -= 1  # for the line with the number of hidden layers
    chosen: dict[str, set[str]] = {}
    for _, _, name, layer_name in claims:
        lines_needed = 2 if name in headed and name not in chosen else 1
        if lines_needed <= room:
            room -= lines_needed
            chosen.setdefault(name, set()).add(layer_name)
    hidden = len(claims) - sum(map(len, chosen.values()))
    names = {pull.name: per_image.name(pull) for pull in unfinished if pull.name in chosen}
    flat = [
        phrases.width(names[pull.name])
        for pull in unfinished
        if pull.name in names and not pull.has_layers
    ]
    name_width = min(max(flat, default=0), width // 3)
    lines: list[Meter | str] = []
    for pull in pulls:
        if pull.name not in names:
            continue
        name = names[pull.name]
        if not pull.has_layers:
            label = phrases.fill(name, name_width)
            if pull.place:  # no bar to align with others
                room = width - phrases.width(per_image.queue(pull)) - 1
                label = phrases.cut_name(name, max(room, name_width))
            lines.append(layer_line(pull, pull.layers[0], label, width))
            continue
        if has_headings:
            lines.append(heading(pull, width))
        for layer in sorted(pull.layers, key=lambda layer: layer.phase is not Phase.FAILED):
            if layer.name in chosen[pull.name]:
                label = phrases.layer(layer.name, layer.digest)
                if layer.phase is Phase.FAILED:  # an image fails as a whole
                    label = "" if has_headings else phrases.cut_name(name, width // 3)
                lines.append(layer_line(pull, layer, "  " * has_headings + label, width))
    if hidden > 0 and len(lines) < slots:
        lines.append(phrases.cut(f"{'  ' * has_headings}… {hidden} more", width))
    return lines


def _open_layers(pull: PullState) -> list[LayerState]:
    """Return the unfinished layers, after the last failed one if there is one."""
    failed = [layer for layer in pull.layers if layer.phase is Phase.FAILED]
    return [*failed[-1:], *(layer for layer in pull.layers if not layer.is_finished)]


def heading(pull: PullState, width: int) -> str:
    counts = f"  {per_image.counts(pull)}"
    if len(counts) > width // 2:
        counts = ""
    return phrases.cut_name(per_image.name(pull), width - len(counts)) + counts


def layer_line(pull: PullState, layer: LayerState, label: str, width: int) -> Meter | str:
    if layer.phase is Phase.FAILED:
        space = " " if label.strip() else ""
        return painted(phrases.cut(f"{label}{space}{per_image.failure(pull)}", width), "bad")
    done, total = layer.progress, layer.total
    is_about = layer.phase is Phase.EXTRACTING and layer.is_estimated
    if layer.phase is Phase.EXTRACTING:
        # Not the compressed bytes: they have all arrived.
        done, total = layer.extracted, layer.extracted_total
    word = str(layer.phase)
    if layer.phase is Phase.WAITING and pull.place > 0:
        word = per_image.queue(pull)
    has_bar = layer.phase in ACTIVE and total > 0
    percent = f"{phrases.percent(done, total):>3}%" if has_bar else ""
    size = format_part(done, total, is_estimated=is_about)
    if layer.phase is Phase.EXTRACTING and not total:
        arrived = format_bytes(layer.total or layer.progress)
        size = f"{format_bytes(done)} unpacked" if done else arrived
    elif per_image.waits_to_unpack(layer):
        size = f"{format_bytes(total)} to unpack"
    elif layer.phase is Phase.WAITING and not done:
        size = format_bytes(total) if total else ""
    stall = [per_image.stall(layer)] if layer.stalled_s else []
    left = f"{label} {word:<11}"
    if not has_bar:
        text = phrases.cut(sentence(left, size, *stall), width)
        return painted(text, "quiet" if layer.phase is Phase.WAITING else "")
    # Texts beside the bar, the longest first; a stall matters more than the bytes.
    rights = [join([size.rjust(BYTES_WIDTH), *stall]), join(stall)]
    tone: Tone = "warning" if stall else "busy"
    return fit(f"{left} {percent}", rights, width, done, total, tone)


def _rank(layer: LayerState) -> int:
    return _RANKS.get(layer.phase, 3)
