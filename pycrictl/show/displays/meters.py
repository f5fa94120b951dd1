"""Lines and bars that are redrawn in place on a terminal and adapt to its size.

tqdm only formats the bars. ``TerminalBlock`` places them, because tqdm loses its positions when a
window is resized, and never restores rows that did not fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TextIO

from pycrictl.base.environ import is_utf8, terminal_size
from pycrictl.base.units import format_part
from pycrictl.pulls.state import Sums
from pycrictl.show.displays import phrases
from pycrictl.show.displays.block import TerminalBlock
from pycrictl.show.displays.outlet import BAR_INTERVAL_S
from pycrictl.show.render import Tone, colours_are_wanted, painted, plain

WIDEST: Final = 110
SHORTEST_BAR: Final = 5
FAIR_BAR: Final = 16
"""Columns reserved for a bar before less important words are shown."""

_ASCII: Final = str.maketrans({"…": "~", "·": "-"})
_SPEED_WIDTH: Final = len("999.9 KiB/s")
_SCALE: Final = 1 << 20
_ETA_WIDTH: Final = len("ETA 0:00")


class Meter(NamedTuple):
    """A line with a bar: the text before it, its share, the text after it, its colour."""

    left: str
    done: int
    total: int
    right: str
    tone: Tone = "busy"


class Meters:
    interval_s: float | None = BAR_INTERVAL_S

    def __init__(self, stderr: TextIO, environ: Mapping[str, str]) -> None:
        self._stderr = stderr
        self._environ = environ
        self._is_utf8 = is_utf8(stderr)
        self._is_coloured = colours_are_wanted(environ, is_terminal=True)
        self._block = TerminalBlock(stderr)
        self._size = (0, 0)

    def measure(self) -> tuple[int, int]:
        columns, rows = self._size = terminal_size(self._stderr, self._environ)
        # The last column stays free: a terminal may wrap as soon as it is filled.
        return max(columns - 1, 1), rows

    def draw(self, lines: Sequence[Meter | str]) -> None:
        width = max(self._size[0] - 1, 1)
        texts = [
            _render(line, width, self._is_utf8) if isinstance(line, Meter) else line
            for line in lines
        ]
        self._block.draw(self._encodable(texts), size=self._size)

    def note(self, text: str) -> None:
        self.write([phrases.clean(text)])

    def write(self, lines: Iterable[str]) -> None:
        for line in self._encodable(lines):
            self._block.print_above(line)

    def replace(self, lines: Iterable[str]) -> None:
        self._block.close(self._encodable(lines))

    def close(self) -> None:
        self.replace(())

    def _encodable(self, lines: Iterable[str]) -> list[str]:
        if not self._is_coloured:
            lines = map(plain, lines)
        return [line if self._is_utf8 else line.translate(_ASCII) for line in lines]


def total_line(label: str, sums: Sums, more: Sequence[str], width: int) -> Meter | str:
    """Return the line of a total, with as many of its words as fit in ``width``.

    To keep the bar as wide as ``FAIR_BAR``, unpacked bytes are dropped, then ``more`` from its end.
    If that is not enough, the bar gets narrower; then the rate and the time left are dropped.
    """
    percent, size, unpacked, speed, eta = phrases.words(sums)
    if sums.total <= 0:
        return phrases.cut(sentence(label, size, speed, eta, *more), width)
    # Padded to its final width: a redrawn bar must not change its length.
    size = size.rjust(len(format_part(sums.total, sums.total)))
    if unpacked:
        most = format_part(sums.extracted_total, sums.extracted_total, is_estimated=True)
        unpacked = unpacked.ljust(len(f"unpacked {most}"))
    if speed or not more:
        speed, eta = speed.ljust(_SPEED_WIDTH), eta.ljust(_ETA_WIDTH)
    left = " ".join(filter(None, (label, f"{percent:>4}")))
    wide = [
        (size, unpacked, speed, eta, *more),
        *((size, speed, eta, *more[:count]) for count in range(len(more), -1, -1)),
    ]
    narrow = [(size, speed, eta), (size, eta), (size,)]
    rights = [join(filter(None, words)) for words in narrow]
    for more_words in wide:
        right = join(filter(None, more_words))
        if has_room(left, right, width, FAIR_BAR):
            rights = [right]
            break
    share = sums.progress / sums.total if sums.share is None else sums.share
    return fit(left, rights, width, int(share * _SCALE), _SCALE)


def fit(
    left: str, rights: Sequence[str], width: int, done: int, total: int, tone: Tone = "busy"
) -> Meter | str:
    """Return a bar with the first of ``rights`` that leaves room for it, or a line without bar."""
    for right in rights:
        if has_room(left, right, width, SHORTEST_BAR):
            return Meter(left, done, total, right, tone)
    return phrases.cut(left + rights[-1], width)


def sentence(*words: str) -> str:
    return "  ".join(filter(None, words)).rstrip()


def join(words: Iterable[str]) -> str:
    return "".join(f"  {word}" for word in words)[1:]


def has_room(left: str, right: str, width: int, bar: int) -> bool:
    return phrases.width(left) + phrases.width(right) + 2 + bar <= min(width, WIDEST)


@lru_cache(maxsize=64)
def _render(meter: Meter, width: int, has_utf8: bool) -> str:
    from tqdm.std import tqdm  # noqa: PLC0415 - lists have no bars

    left, right = (text.replace("{", "{{").replace("}", "}}") for text in (meter.left, meter.right))
    return str(
        tqdm.format_meter(
            min(max(meter.done / meter.total, 0.0), 1.0),
            1,
            0.0,
            ncols=min(width, WIDEST),
            ascii=not has_utf8,
            bar_format=f"{left}|{painted('{bar}', meter.tone)}|{right}",
        )
    )
