"""What the bars show of a view, and what they leave at the end."""

from __future__ import annotations

import re
import sys
from types import FrameType
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
    assert lines[1] == "a-rather-long-name:2026    downloading  1.0 MiB"
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


def test_a_terminal_without_utf8_gets_ascii_bars() -> None:
    with Terminal(encoding="iso8859-1") as terminal:
        bars = Bars(terminal.stderr, {})
        name = "ü" * 300
        items = [
            layer(1, progress=MIB, total=4 * MIB, image=name),
            layer(2, Phase.WAITING, image=name),
        ]
        bars.show(view(items))
        bars.note("…")
        lines = terminal.visible_lines()
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
        assert terminal.visible_lines() == drawn(*items)
        bars.close()
    sent = terminal.sent.decode()
    if variable:
        assert "m" not in re.findall(r"\x1b\[[0-9;]*([A-Za-z])", sent)
        return
    for code, start in [("36", "█"), ("33", "█"), ("2", "  000000000003"), ("31", "  failed: no")]:
        assert f"\x1b[{code}m{start}" in sent


# In windows of any size

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
        bars.show(view(items, rate=rate, eta_s=eta_s))
        lines = terminal.visible_lines()
        assert 0 < len(lines) <= max(min(rows - 1, 11), 1)
        assert terminal.screen.cut == 0
        assert all(width(line) < columns for line in lines)
        bars.close()
        terminal.visible_lines()
        assert terminal.screen.cursor[0] == 0


# What they leave on the screen when a pull or the watch ends


def left(*items: Part, size: tuple[int, int] = (80, 24)) -> list[str]:
    """Return what the screen keeps 6.2 s after the first view of ``items``."""
    with Terminal(*size) as terminal:
        bars = Bars(terminal.stderr, {})
        pending = [layer(name=item.layer.name, image=item.pull["image"]) for item in items]
        bars.show(view(pending, now=100.0))
        bars.show(view(items, now=106.2))
        bars.close()
        lines = terminal.visible_lines()
        assert terminal.screen.cursor == (0, len(lines))
        return lines


def test_the_last_line_of_an_image_that_ends_stands_above_the_bars(terminal: Terminal) -> None:
    bars = Bars(terminal.stderr, {})
    other = layer(2, progress=MIB, total=4 * MIB, image="other:1")
    bars.show(view([layer(1, progress=MIB, total=4 * MIB), other], now=0.0))
    bars.show(view([layer(1, Phase.DONE, 4 * MIB, 4 * MIB), other], now=3.6))
    bars.end([DEMO])
    bars.show(view([other], now=3.6))
    told = f"{DEMO}  1 layer  4.0 MiB  in 3.6 s"
    lines = terminal.visible_lines()
    assert lines[:2] == [told, "other:1  0/1 done"]
    assert lines[-1].startswith("Total  25%|")
    bars.show(view([layer(2, Phase.FAILED, MIB, 4 * MIB, image="other:1", error="404")], now=4.0))
    bars.end(["other:1", "unknown"])
    bars.show(view([], now=4.0))
    told_too = "other:1  failed: 404  0 of 1 layer done  after 4.0 s"
    assert terminal.visible_lines() == [told, told_too, "Total  nothing is being pulled"]
    # Lines are not repeated, and the same image may be pulled again later.
    bars.show(view([], now=60.0))
    bars.show(view([layer(1, progress=MIB, total=4 * MIB)], now=60.0))
    bars.show(view([layer(1, progress=2 * MIB, total=4 * MIB)], now=61.0))
    bars.close()
    last = f"{DEMO}  at 2.0/4.0 MiB  0 of 1 layer done  after 1.0 s"
    assert terminal.visible_lines() == [told, told_too, last]


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([layer(1, Phase.DONE, 5 * MIB, 5 * MIB)], f"{DEMO}  1 layer  5.0 MiB  in 6.2 s"),
        (
            [layer(1, Phase.DONE, MIB, MIB), layer(2, Phase.PRESENT, MIB, MIB)],
            f"{DEMO}  2 layers  2.0 MiB  in 6.2 s",
        ),
        ([layer(1, Phase.PRESENT, MIB, MIB)], f"{DEMO}  1 layer  1.0 MiB  already present"),
        (
            [layer(1, Phase.DONE, MIB, MIB), layer(2, Phase.FAILED, 0, MIB, error="404\x1b[1m")],
            f"{DEMO}  failed: 404\\x1b[1m  1 of 2 layers done  after 6.2 s",
        ),
        (
            [layer(1, Phase.DONE, MIB, MIB), layer(2, progress=MIB, total=2 * MIB)],
            f"{DEMO}  at 2.0/3.0 MiB  1 of 2 layers done  after 6.2 s",
        ),
        ([layer(name="", phase=Phase.DONE, progress=MIB)], f"{DEMO}  1.0 MiB  in 6.2 s"),
    ],
)
def test_the_last_line_of_an_image(items: list[Part], expected: str) -> None:
    assert left(*items) == [expected]


def test_an_interrupt_at_any_moment_leaves_a_clean_screen() -> None:
    views = [view(forty_layers(step), now=step * 1.0, rate=1e6) for step in (60, 62)]
    moment = interrupts = 0

    def run(terminal: Terminal, at: int) -> None:
        """Interrupt at the executed line of code with the number ``at``."""
        count = 0

        def trace(frame: FrameType, event: str, arg: object) -> Any:
            nonlocal count
            if "/pycrictl/" not in frame.f_code.co_filename:
                return None
            if event == "line":
                count += 1
                if count == at:
                    raise KeyboardInterrupt
            return trace

        bars = Bars(terminal.stderr, {})
        bars.show(views[0])
        try:
            sys.settrace(trace)
            bars.show(views[1])
            bars.note("note")
            bars.end(["unknown"])
        finally:
            sys.settrace(before)
            bars.close()

    before = sys.gettrace()
    while True:
        moment += 1 if moment < 40 else 23
        with Terminal() as terminal:
            terminal.stderr.write("$ pull\n")
            terminal.stderr.flush()
            try:
                run(terminal, moment)
            except KeyboardInterrupt:
                interrupts += 1
            else:
                break
            lines = [line for line in terminal.visible_lines() if line != "note"]
            assert lines == [
                "$ pull",
                "127.0.0.1:5000/demo:1  14 layers  56.0 MiB  in 0.0 s",
                "docker.io/library/postgres:16.4  13 layers  49.0 MiB  in 0.0 s",
                "registry.k8s.io/pause:3.10  13 layers  50.0 MiB  in 0.0 s",
            ]
            assert terminal.screen.cursor[0] == 0
            assert terminal.screen.is_wrapping
    assert interrupts > 50
