"""What the bars show of a view."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings, strategies

from pycrictl.pulls.state import Phase, PullState
from pycrictl.show.displays.phrases import width
from pycrictl.show.displays.pull_bars import Bars
from tests.show.screen import Terminal
from tests.show.views import DEMO, MIB, Part, drawn, forty_layers, layer, terminal, view

__all__ = ["terminal"]


def test_a_pull_in_the_middle() -> None:
    lines = drawn(
        layer(1, Phase.DONE, 20 * MIB, 20 * MIB),
        layer(2, Phase.DOWNLOADING, 3 * MIB, 12 * MIB),
        layer(3, Phase.EXTRACTING, 8 * MIB, 8 * MIB, extracted=5 * MIB, extracted_total=20 * MIB),
        layer(4, Phase.WAITING, 0, 7 * MIB),
        layer(5, Phase.WAITING, 0, 3 * MIB),
        now=60.0,
        rate=10.2 * MIB,
        eta_s=1.6,
    )
    assert lines == [
        "127.0.0.1:5000/demo:1  1/5 done · 2 waiting",
        "  000000000002 downloading  25%|███████                     |      3.0/12.0 MiB",
        "  000000000003 extracting   25%|███████                     |      5.0/20.0 MiB",
        "  000000000004 waiting      7.0 MiB",
        "  000000000005 waiting      3.0 MiB",
        "Total  62%|███████████▏      | 31.0/50.0 MiB   10.2 MiB/s  ETA 0:02  1/5 layers",
    ]


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (layer(progress=MIB, total=4 * MIB, idle_s=42.3), "  no data for 42 s"),
        (layer(progress=MIB, total=4 * MIB, idle_s=125), "  no data for 2 min 5 s"),
        (layer(progress=MIB, total=4 * MIB, idle_s=9.9), "1.0/4.0 MiB"),
        (layer(progress=MIB), "downloading  1.0 MiB"),
        (layer(phase=Phase.EXTRACTING, progress=MIB, total=MIB), "extracting   1.0 MiB"),
        (
            layer(phase=Phase.EXTRACTING, progress=MIB, total=MIB, extracted=3 * MIB, idle_s=99),
            "extracting   3.0 MiB unpacked",
        ),
        (layer(phase=Phase.WAITING), "000000000001 waiting"),
        (layer(phase=Phase.WAITING, place=11), "000000000001 queued, 11th"),
        (layer(phase=Phase.WAITING, progress=MIB, total=4 * MIB), "waiting      1.0/4.0 MiB"),
        (layer(phase=Phase.FAILED, error="no such\nblob"), "  failed: no such blob"),
        (layer(phase=Phase.FAILED), "  failed"),
        (layer(phase=Phase.FAILED, error="x" * 10_000), f"  failed: {'x' * 68}…"),
        (layer(phase=Phase.WAITING, progress=MIB, total=MIB), "waiting      1.0 MiB to unpack"),
        (
            layer(phase=Phase.WAITING, place=2, behind="default/web"),
            "000000000001 queued, 2nd, behind default/web",
        ),
    ],
)
def test_the_line_of_a_layer(item: Part, expected: str) -> None:
    heading, line, total = drawn(item)
    assert line.endswith(expected)
    assert heading.startswith(DEMO)
    assert total.startswith("Total")


def test_one_item_for_an_image_or_a_pod() -> None:
    lines = drawn(
        layer(name="", progress=MIB, total=4 * MIB),
        layer(name="", image="docker.io/library/a-rather-long-name:2026", progress=MIB),
    )
    assert lines[0].startswith("127.0.0.1:5000/demo:1      downloading  25%|")
    assert lines[1] == "…/a-rather-long-name:2026  downloading  1.0 MiB"
    assert lines[2].endswith("0/2 images")
    lines = drawn(layer(name="", image="", progress=MIB, total=4 * MIB))
    assert lines[0].startswith("pod downloading  25%|")
    assert lines[1].endswith("0/1 pod")


def test_what_moves_comes_before_failures_and_those_before_what_waits() -> None:
    items = [layer(number, Phase.WAITING, 0, MIB) for number in range(20)]
    items[17] = layer(17, Phase.FAILED, 0, MIB, error="404")
    items[18] = layer(18, Phase.DOWNLOADING, 0, MIB)
    items[19] = layer(19, Phase.EXTRACTING, MIB, MIB)
    lines = drawn(*items, size=(80, 7))
    assert lines[1] == "  failed: 404"
    assert [line.split()[1] for line in lines[2:-2]] == ["downloading", "extracting"]
    assert lines[-2] == "  … 17 more"
    assert lines[0].endswith("0/20 done · 17 waiting · 1 failed")


@pytest.mark.parametrize(
    ("encoding", "environ"), [("iso8859-1", {}), ("utf-8", {"LC_ALL": "C", "LANG": "C.UTF-8"})]
)
def test_a_terminal_without_utf8_gets_ascii_bars(encoding: str, environ: dict[str, str]) -> None:
    with Terminal(encoding=encoding) as terminal:
        bars = Bars(terminal.stderr, environ)
        name = "ü" * 300
        items = [
            layer(1, progress=MIB, total=4 * MIB, image=name),
            layer(2, Phase.WAITING, image=name),
        ]
        bars.show(view(items))
        bars.note("…")
        lines = terminal.look()
        bars.close()
    assert lines[0] == "~"
    assert lines[1] == f"{'ü' * 28}~{'ü' * 28}  0/2 done - 1 waiting"
    assert "25%|#######" in lines[2]


@pytest.mark.parametrize(
    ("waited_s", "is_begun", "columns", "expected"),
    [
        (2.0, True, 80, [f"{DEMO}  waiting for the registry"]),
        (12.9, True, 80, [f"{DEMO}  waiting for the registry, 12 s"]),
        (125.0, True, 80, [f"{DEMO}  waiting for the registry, 2 min 5 s"]),
        (12.0, False, 80, [f"{DEMO}  waiting for the runtime, 12 s"]),
        (12.0, True, 40, ["demo:1  waiting for the registry, 12 s"]),
        (12.0, True, 30, ["demo:1  waiting for the regis…"[:28] + "…"]),
    ],
)
def test_a_pull_that_waits_is_named_with_its_age(
    waited_s: float, is_begun: bool, columns: int, expected: list[str]
) -> None:
    awaited = [PullState(image=DEMO, is_begun=is_begun, began_s=100.0)]
    now = 100.0 + waited_s
    assert drawn(awaited=awaited, size=(columns, 10), now=now) == expected
    assert drawn(awaited=awaited, size=(columns, 10), now=now, aggregate=True) == expected


def total_at(columns: int, **more: Any) -> str:
    items = [layer(number, Phase.DOWNLOADING, 7 * MIB, 10 * MIB) for number in range(6)]
    return drawn(*items, size=(columns, 24), rate=2.6 * MIB, eta_s=6.0, **more)[-1]


def test_what_matters_least_goes_first() -> None:
    more = {"share": 0.38, "extracted": 21 * MIB, "extracted_total": 130 * MIB}
    words = {
        110: ["MiB/s", "ETA 0:06", "unpacked", "0/6 layers"],
        80: ["MiB/s", "ETA 0:06", "0/6 layers"],
        50: ["ETA 0:06"],
        40: [],
    }
    for columns, expected in words.items():
        line = total_at(columns, **more)
        assert [word for word in words[110] if word in line] == expected, line
        assert "42.0/60.0 MiB" in line
        assert len(line) < columns
        assert columns < 80 or len(line.split("|")[1]) >= 16


@pytest.mark.parametrize("variable", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colours(variable: dict[str, str]) -> None:
    items = [
        layer(1, progress=MIB, total=4 * MIB),
        layer(2, progress=MIB, total=4 * MIB, idle_s=42),
        layer(3, Phase.WAITING, total=4 * MIB),
        layer(4, Phase.FAILED, error="no space left"),
    ]
    with Terminal() as terminal:
        bars = Bars(terminal.stderr, {"TERM": "xterm", **variable})
        bars.show(view(items))
        assert terminal.look() == drawn(*items)
        bars.close()
    sent = terminal.sent.decode()
    if variable:
        assert "m" not in re.findall(r"\x1b\[[0-9;]*([A-Za-z])", sent)
        return
    for code, start in [("36", "█"), ("33", "█"), ("2", "  000000000003"), ("31", "  failed: no")]:
        assert f"\x1b[{code}m{start}" in sent


# In windows of any size

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


NUMBERS = strategies.integers(min_value=0, max_value=2**63 - 1)
ITEMS = strategies.builds(
    layer,
    number=strategies.integers(min_value=0, max_value=50),
    phase=strategies.sampled_from(Phase),
    progress=NUMBERS,
    total=NUMBERS,
    image=strategies.sampled_from(["", DEMO, "b", "宽" * 70]) | strategies.text(max_size=200),
    error=strategies.text(max_size=20),
    extracted=NUMBERS,
    extracted_total=NUMBERS,
    idle_s=strategies.floats(min_value=0, max_value=1e9),
)


@settings(max_examples=100, deadline=None)
@given(
    items=strategies.lists(
        ITEMS, max_size=40, unique_by=lambda part: (part.pull["image"], part.layer.name)
    ),
    columns=strategies.integers(min_value=2, max_value=250),
    rows=strategies.integers(min_value=1, max_value=60),
    rate=strategies.none() | strategies.floats(min_value=0, max_value=1e19),
    eta_s=strategies.none() | strategies.floats(min_value=0),
)
def test_anything_fits_in_any_window(
    items: list[Part], columns: int, rows: int, rate: float | None, eta_s: float | None
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


# The history of an image
