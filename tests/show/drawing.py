"""What the bars draw on a terminal, for the tests of all that they show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pycrictl.pulls.model import PullItem
from pycrictl.show.displays.phrases import width
from pycrictl.show.displays.pull_bars import Bars
from tests.show.screen import Terminal
from tests.show.views import view


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    with Terminal() as terminal:
        yield terminal


def drawn(
    *items: PullItem, size: tuple[int, int] = (80, 24), aggregate: bool = False, **more: Any
) -> list[str]:
    with Terminal(*size) as terminal:
        bars = Bars(terminal.stderr, {}, aggregate=aggregate)
        bars.show(view(items, **more))
        lines = terminal.look()
        assert terminal.screen.cut == 0
        assert all(width(line) < max(size[0], 2) for line in lines)
        bars.close()
        return lines
