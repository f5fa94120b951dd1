"""What the bars leave on the screen when a pull or the watch ends."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from pycrictl.pulls.state import Phase
from pycrictl.show.displays.pull_bars import Bars
from tests.show.screen import Terminal
from tests.show.views import DEMO, MIB, Part, forty_layers, layer, terminal, view

__all__ = ["terminal"]


def left(*items: Part, size: tuple[int, int] = (80, 24), aggregate: bool = False) -> list[str]:
    """Return what the screen keeps 6.2 s after the first view of ``items``."""
    with Terminal(*size) as terminal:
        bars = Bars(terminal.stderr, {}, aggregate=aggregate)
        pending = [layer(name=item.layer.name, image=item.pull["image"]) for item in items]
        bars.show(view(pending, now=100.0))
        bars.show(view(items, now=106.2))
        bars.close()
        lines = terminal.look()
        assert terminal.screen.cursor == (0, len(lines))
        return lines


# Of a pull while others continue


def test_the_last_line_of_an_image_that_ends_stands_above_the_bars(terminal: Terminal) -> None:
    bars = Bars(terminal.stderr, {})
    other = layer(2, progress=MIB, total=4 * MIB, image="other:1")
    bars.show(view([layer(1, progress=MIB, total=4 * MIB), other], now=0.0))
    bars.show(view([layer(1, Phase.DONE, 4 * MIB, 4 * MIB), other], now=3.6))
    bars.end([DEMO])
    bars.show(view([other], now=3.6))
    told = f"{DEMO}  1 layer  4.0 MiB  in 3.6 s"
    lines = terminal.look()
    assert lines[:2] == [told, "other:1  0/1 done"]
    assert lines[-1].startswith("Total  25%|")
    bars.show(view([layer(2, Phase.FAILED, MIB, 4 * MIB, image="other:1", error="404")], now=4.0))
    bars.end(["other:1", "unknown"])
    bars.show(view([], now=4.0))
    told_too = "other:1  failed: 404  0 of 1 layer done  after 4.0 s"
    assert terminal.look() == [told, told_too, "Total  nothing is being pulled"]
    # Lines are not repeated, and the same image may be pulled again later.
    bars.show(view([], now=60.0))
    bars.show(view([layer(1, progress=MIB, total=4 * MIB)], now=60.0, resumed=MIB))
    assert "resumed 1.0 MiB" in terminal.look()[-1]
    bars.show(view([layer(1, progress=2 * MIB, total=4 * MIB)], now=61.0))
    bars.close()
    last = f"{DEMO}  at 2.0/4.0 MiB  0 of 1 layer done  after 1.0 s"
    assert terminal.look() == [told, told_too, last]


# Of all


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


def test_the_last_line_of_an_aggregate() -> None:
    done = layer(1, Phase.DONE, MIB, MIB)
    failed = layer(2, Phase.FAILED, 0, MIB, image="other:1", error="404")
    assert left(done, aggregate=True) == ["Total  1.0/1.0 MiB  1/1 layer  in 6.2 s"]
    assert left(done, failed, aggregate=True) == [
        "other:1  failed: 404  0 of 1 layer done  after 6.2 s",
        "Total  1.0/2.0 MiB  1/2 layers  1 failed  after 6.2 s",
    ]


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
            lines = [line for line in terminal.look() if line != "note"]
            assert lines == [
                "$ pull",
                "127.0.0.1:5000/demo:1  14 layers  56.0 MiB  in 0.0 s",
                "docker.io/library/postgres:16.4  13 layers  49.0 MiB  in 0.0 s",
                "registry.k8s.io/pause:3.10  13 layers  50.0 MiB  in 0.0 s",
            ]
            assert terminal.screen.cursor[0] == 0
            assert terminal.screen.is_wrapping
    assert interrupts > 50
