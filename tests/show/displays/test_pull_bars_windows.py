"""The bars in windows of every size, also while that changes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies

from pycrictl.pulls.model import Phase, PullItem
from pycrictl.show.displays.phrases import width
from pycrictl.show.displays.pull_bars import Bars
from tests.show.drawing import drawn
from tests.show.screen import Terminal
from tests.show.views import DEMO, MIB, forty_layers, layer, view

SIZES = [(80, 24), (20, 5), (120, 3), (1, 1)]


@pytest.mark.parametrize("size", SIZES)
def test_forty_layers_fit_in_every_window(size: tuple[int, int]) -> None:
    columns, rows = size
    with Terminal(columns, rows) as terminal:
        bars = Bars(terminal.stderr, {})
        for step in range(60):
            bars.show(view(forty_layers(step), now=step / 4, rate=9.9 * MIB, eta_s=99.0))
            lines = terminal.look()
            assert terminal.screen.cut == 0
            assert terminal.screen.everything == lines  # nothing was scrolled away
            assert len(lines) <= max(min(rows - 1, 11), 1)
            if columns >= 40:
                assert lines[-1].startswith("Total ")
                assert not any("Total" in line for line in lines[:-1])
        bars.show(view(forty_layers(60), now=15.0))
        bars.close()
        terminal.look()
        assert not any("downloading" in line for line in terminal.screen.everything)


@pytest.mark.parametrize("columns", [40, 56, 57])
def test_the_phase_of_a_layer_is_told_in_every_width(columns: int) -> None:
    """Else a layer that begins to extract would seem to start again from nothing."""
    before = layer(1, Phase.DOWNLOADING, 4 * MIB, 6 * MIB)
    after = layer(1, Phase.EXTRACTING, 6 * MIB, 6 * MIB, extracted=0, extracted_total=6 * MIB)
    lines = [drawn(item, size=(columns, 8))[-2].split() for item in (before, after)]
    assert [line[1] for line in lines] == ["downloading", "extracting"]
    assert [line[2].partition("%")[0] for line in lines] == ["66", "0"]
    assert "".join(lines[0]).count("4.0/6.0MiB") == (columns > 56)


NUMBERS = strategies.integers(min_value=0, max_value=2**63 - 1)
ITEMS = strategies.builds(
    layer,
    number=strategies.integers(min_value=0, max_value=50),
    phase=strategies.sampled_from(Phase),
    progress=NUMBERS,
    total=NUMBERS,
    image=strategies.sampled_from(["", DEMO, "b", "宽" * 70]) | strategies.text(max_size=200),
    error=strategies.text(max_size=20),
    queue_position=NUMBERS,
    extracted=NUMBERS,
    extracted_total=NUMBERS,
    idle_s=strategies.floats(min_value=0, max_value=1e9),
)


@settings(max_examples=100, deadline=None)
@given(
    items=strategies.lists(ITEMS, max_size=40, unique_by=lambda item: (item.image, item.layer)),
    columns=strategies.integers(min_value=2, max_value=250),
    rows=strategies.integers(min_value=1, max_value=60),
    rate=strategies.none() | strategies.floats(min_value=0, max_value=1e19),
    eta_s=strategies.none() | strategies.floats(min_value=0),
)
def test_anything_fits_in_any_window(
    items: list[PullItem], columns: int, rows: int, rate: float | None, eta_s: float | None
) -> None:
    with Terminal(columns, rows) as terminal:
        bars = Bars(terminal.stderr, {})
        bars.show(view(items, rate=rate, eta_s=eta_s, resumed=5))
        lines = terminal.look()
        assert 0 < len(lines) <= max(min(rows - 1, 11), 1)
        assert terminal.screen.cut == 0
        assert all(width(line) < columns for line in lines)
        bars.close()
        terminal.look()
        assert terminal.screen.cursor[0] == 0
