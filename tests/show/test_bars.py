from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings, strategies

from pycrictl.progress.tracker import Awaited, Item, Phase
from pycrictl.show.bars import Bars
from pycrictl.show.phrases import width
from tests.show.screen import Terminal
from tests.show.views import DEMO, MIB, forty_layers, layer, view

SIZES = [(80, 24), (200, 50), (20, 5), (40, 10), (35, 8), (120, 3), (1, 1), (9, 2)]


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    with Terminal() as terminal:
        yield terminal


def drawn(
    *items: Item, size: tuple[int, int] = (80, 24), aggregate: bool = False, **more: Any
) -> list[str]:
    """What the screen shows of one view."""
    with Terminal(*size) as terminal:
        bars = Bars(terminal.stderr, {}, aggregate=aggregate)
        bars.show(view(items, **more))
        lines = terminal.look()
        assert terminal.screen.cut == 0
        assert all(width(line) < size[0] for line in lines)
        bars.close()
        return lines


def left(*items: Item, size: tuple[int, int] = (80, 24), aggregate: bool = False) -> list[str]:
    """What the screen keeps 6.2 s after the first look at ``items``."""
    with Terminal(*size) as terminal:
        bars = Bars(terminal.stderr, {}, aggregate=aggregate)
        pending = [layer(name=item.layer, image=item.image) for item in items]
        bars.show(view(pending, now=100.0))
        bars.close(view(items, now=106.2))
        lines = terminal.look()
        assert terminal.screen.cursor == (0, len(lines))
        return lines


def test_a_pull_in_the_middle() -> None:
    lines = drawn(
        layer(1, Phase.DONE, 20 * MIB, 20 * MIB),
        layer(2, Phase.DOWNLOADING, 3 * MIB, 12 * MIB),
        layer(3, Phase.EXTRACTING, 8 * MIB, 8 * MIB, extracted=5 * MIB, extracted_total=20 * MIB),
        layer(4, Phase.WAITING, 0, 7 * MIB),
        layer(5, Phase.WAITING, 0, 3 * MIB, queue_position=3),
        now=60.0,
        rate=10.2 * MIB,
        eta_s=1.6,
    )
    assert lines == [
        "127.0.0.1:5000/demo:1  1/5 done · 2 waiting",
        "  000000000002 downloading  25%|███████                     |      3.0/12.0 MiB",
        "  000000000003 extracting   25%|███████                     |      5.0/20.0 MiB",
        "  000000000004 waiting      7.0 MiB",
        "  000000000005 queued, 3rd  3.0 MiB",
        "Total  62%|███████████▏      | 31.0/50.0 MiB   10.2 MiB/s  ETA 0:02  1/5 layers",
    ]


def test_tells_what_was_there_before_the_first_look() -> None:
    items = [layer(1, Phase.DOWNLOADING, 31 * MIB, 50 * MIB)]
    assert "  resumed 30.0 MiB" in drawn(*items, resumed=30 * MIB)[-1]
    with Terminal() as terminal:
        bars = Bars(terminal.stderr, {})
        bars.show(view(items, now=0.0, resumed=30 * MIB))
        bars.show(view(items, now=20.0, resumed=30 * MIB))
        assert "resumed" not in terminal.look()[-1]
        bars.close()


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (layer(progress=MIB, total=4 * MIB, idle_s=42.3), "  no data for 42 s"),
        (layer(progress=MIB, total=4 * MIB, idle_s=125), "  no data for 2 min 5 s"),
        (layer(progress=MIB, total=4 * MIB, idle_s=29.9), "1.0/4.0 MiB"),
        (layer(progress=MIB), "downloading  1.0 MiB"),
        (layer(phase=Phase.EXTRACTING, progress=MIB, total=MIB), "extracting   1.0 MiB"),
        (
            layer(phase=Phase.EXTRACTING, progress=MIB, total=MIB, extracted=3 * MIB, idle_s=99),
            "extracting   3.0 MiB unpacked",
        ),
        (layer(phase=Phase.WAITING), "000000000001 waiting"),
        (layer(phase=Phase.WAITING, queue_position=11), "000000000001 queued, 11th"),
        (layer(phase=Phase.WAITING, progress=MIB, total=4 * MIB), "waiting      1.0/4.0 MiB"),
        (layer(phase=Phase.FAILED, error="no such\nblob"), "000000000001 failed: no such blob"),
        (layer(phase=Phase.FAILED), "000000000001 failed"),
        (layer(phase=Phase.FAILED, error="x" * 10_000), f"failed: {'x' * 55}…"),
    ],
)
def test_the_line_of_a_layer(item: Item, expected: str) -> None:
    heading, line, total = drawn(item)
    assert line.endswith(expected)
    assert heading.startswith(DEMO)
    assert total.startswith("Total")


def test_nothing_to_show() -> None:
    assert drawn() == ["Total  nothing is being pulled"]


def test_unknown_totals() -> None:
    lines = drawn(layer(1, progress=MIB), layer(2, progress=2 * MIB), rate=MIB / 2)
    assert lines[-1] == "Total  3.0 MiB  512.0 KiB/s  0/2 layers"


def test_one_item_for_an_image_or_a_pod() -> None:
    lines = drawn(
        layer(name="", progress=MIB, total=4 * MIB),
        layer(name="", image="docker.io/library/a-rather-long-name:2026", progress=MIB),
    )
    assert lines[0].startswith("127.0.0.1:5000/demo:1      downloading  25%|")
    assert lines[1] == "docker.io/lib…ng-name:2026 downloading  1.0 MiB"
    assert lines[2].endswith("0/2 images")
    lines = drawn(layer(name="", image="", progress=MIB, total=4 * MIB))
    assert lines[0].startswith("pod downloading  25%|")
    assert lines[1].endswith("0/1 pod")


def test_aggregate_is_the_total_line_only() -> None:
    lines = drawn(*forty_layers(30), aggregate=True)
    assert len(lines) == 1
    assert lines[0].startswith("Total  ")


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
            elif columns >= 20:
                assert lines[-1].split()[0].endswith("%")
        bars.close(view(forty_layers(60), now=15.0))
        terminal.look()
        assert not any("downloading" in line for line in terminal.screen.everything)


@pytest.mark.parametrize("rewraps", [True, False])
def test_follows_the_window(rewraps: bool) -> None:
    sizes = [(80, 24), (200, 50), (80, 30), (50, 24), (120, 20), (80, 24), (45, 24), (80, 12)]
    with Terminal() as terminal:
        terminal.stderr.write("$ pycrictl pull\n")
        bars = Bars(terminal.stderr, {})
        step = 0
        for columns, rows in sizes:
            terminal.resize(columns, rows, rewraps=rewraps)
            for _ in range(3):
                step += 1
                bars.show(view(forty_layers(step), now=step / 4))
                lines = terminal.look()
                text = terminal.screen.everything
                assert text[0] == "$ pycrictl pull"
                assert sum("Total" in line for line in text) == 1
                assert sum(DEMO in line for line in text) <= 1
                assert all(width(line) < columns for line in lines)
        bars.close(view(forty_layers(60), now=15.0))
        terminal.look()
        assert not any("downloading" in line for line in terminal.screen.everything)


@pytest.mark.parametrize("rewraps", [True, False])
def test_a_window_that_becomes_tiny_and_grows_again(rewraps: bool) -> None:
    with Terminal(200, 50) as terminal:
        bars = Bars(terminal.stderr, {})
        for step, (columns, rows) in enumerate([(200, 50), (20, 5), (200, 50), (80, 24)], 20):
            terminal.resize(columns, rows, rewraps=rewraps)
            bars.show(view(forty_layers(step), now=step / 4))
            with Terminal(columns, rows) as fresh:
                other = Bars(fresh.stderr, {})
                other.show(view(forty_layers(step), now=step / 4))
                expected = fresh.look()
                other.close()
            assert terminal.look()[-len(expected) :] == expected
        bars.close()


def test_several_images_take_turns() -> None:
    lines = drawn(*forty_layers(30))
    headings = [line for line in lines if " done" in line]
    assert [line.split()[0] for line in headings] == [
        "docker.io/library/postgres:16.4",
        "registry.k8s.io/pause:3.10",
    ]
    assert len(lines) == 11
    assert sum("downloading" in line for line in lines) == 4
    assert sum("extracting" in line for line in lines) == 4


def test_each_image_that_moves_has_a_line() -> None:
    items = [
        layer(number, progress=MIB, total=4 * MIB, image=f"registry.example/image-{number % 3}:1")
        for number in range(30)
    ]
    lines = drawn(*items)
    assert [index for index, line in enumerate(lines) if "0/10 done" in line] == [0, 4, 7]


def test_more_images_than_lines() -> None:
    items = [
        layer(number, progress=MIB, total=4 * MIB, image=f"registry.example/image-{number}:1")
        for number in range(100)
    ]
    lines = drawn(*items)
    assert len(lines) == 11
    assert sum("downloading" in line for line in lines) == 5
    assert lines[-1].endswith("0/100 layers")


def test_what_moves_comes_before_failures_and_those_before_what_waits() -> None:
    items = [layer(number, Phase.WAITING, 0, MIB) for number in range(20)]
    items[17] = layer(17, Phase.FAILED, 0, MIB, error="404")
    items[18] = layer(18, Phase.DOWNLOADING, 0, MIB)
    items[19] = layer(19, Phase.EXTRACTING, MIB, MIB)
    lines = drawn(*items, size=(80, 7))
    assert [line.split()[1] for line in lines[1:-1]] == [
        "waiting",
        "failed:",
        "downloading",
        "extracting",
    ]
    assert lines[0].endswith("0/20 done · 17 waiting · 1 failed")


def test_what_has_arrived_collapses_into_a_count() -> None:
    items = [layer(number, Phase.DONE, MIB, MIB) for number in range(12)]
    items += [layer(12, Phase.PRESENT, MIB, MIB), layer(13, Phase.WAITING, 0, MIB)]
    lines = drawn(*items)
    assert lines[0].endswith("  13/14 done · 1 waiting")
    assert len(lines) == 3


def test_narrow_windows_show_percent_and_bytes() -> None:
    items = [layer(1, progress=MIB, total=4 * MIB), layer(2, Phase.EXTRACTING, MIB, MIB)]
    assert drawn(*items, size=(30, 8)) == [
        "127.0.0.1:5000/demo:1",
        "0000000 dl 25% 1.0/4.0 MiB",
        "0000000 extracting 1.0 MiB",
        "40% 2.0/5.0 MiB",
    ]
    assert drawn(*items, size=(20, 5))[-1] == "40% 2.0/5.0 MiB"
    assert drawn(*items, size=(20, 3)) == ["40% 2.0/5.0 MiB"]


@pytest.mark.parametrize("columns", range(14, 60))
def test_the_phase_of_a_layer_is_told_in_every_width(columns: int) -> None:
    """Else a layer that begins to extract would seem to start again from nothing."""
    before = layer(1, Phase.DOWNLOADING, 4 * MIB, 6 * MIB)
    after = layer(1, Phase.EXTRACTING, 6 * MIB, 6 * MIB, extracted=0, extracted_total=6 * MIB)
    words = ("dl", "ext") if columns < 40 else ("downloading", "extracting")
    lines = [drawn(item, size=(columns, 8))[-2].split() for item in (before, after)]
    assert [line[1] for line in lines] == list(words)
    if columns >= 17:
        assert [line[2].partition("%")[0] for line in lines] == ["66", "0"]
    if columns >= 28:
        assert "".join(lines[0]).count("4.0/6.0MiB") == (columns < 40 or columns > 56)


def test_a_long_name_is_shortened_in_the_middle() -> None:
    image = f"registry.example/{'path/' * 30}name:1.2.3"
    heading = drawn(layer(image=image, progress=MIB, total=4 * MIB))[0]
    assert heading.startswith("registry.example/path/")
    assert heading.endswith("name:1.2.3  0/1 done")
    assert "…" in heading
    assert len(heading) == 79


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
        lines = terminal.look()
        bars.close()
    assert lines[0] == "~"
    assert lines[1] == f"{'ü' * 28}~{'ü' * 28}  0/2 done - 1 waiting"
    assert "25%|#######" in lines[2]


def test_redraws_nothing_that_did_not_change(terminal: Terminal) -> None:
    bars = Bars(terminal.stderr, {})
    items = forty_layers(20)
    bars.show(view(items, now=10.0))
    terminal.look()
    terminal.sent = b""
    bars.show(view(items, now=10.25))
    terminal.look()
    assert terminal.sent == b""
    bars.show(view(items, now=12.5))  # from time to time all is painted, whatever was in between
    terminal.look()
    assert terminal.sent.count(b"\r\n") == 10
    bars.close()


def test_notes_stand_above_the_bars(terminal: Terminal) -> None:
    bars = Bars(terminal.stderr, {})
    bars.note("early")
    bars.show(view(forty_layers(20)))
    before = terminal.look()[1:]
    bars.note("late \x1b[31mand\nhostile")
    assert terminal.look() == ["early", "late \\x1b[31mand hostile", *before]
    bars.close()


def test_tells_once_that_items_are_left_out(terminal: Terminal) -> None:
    bars = Bars(terminal.stderr, {})
    for now in range(3):
        bars.show(view([layer(1)], now=now, dropped=7))
    bars.close()
    assert sum("only 1 items are kept" in line for line in terminal.look()) == 1


@pytest.mark.parametrize(
    ("waited_s", "is_begun", "columns", "expected"),
    [
        (2.0, True, 80, [f"{DEMO}  waiting for the registry"]),
        (12.9, True, 80, [f"{DEMO}  waiting for the registry, 12 s"]),
        (125.0, True, 80, [f"{DEMO}  waiting for the registry, 2 min 5 s"]),
        (12.0, False, 80, [f"{DEMO}  waiting for the runtime, 12 s"]),
        (12.0, True, 40, [DEMO, "waiting for the registry, 12 s"]),
        (12.0, True, 30, [DEMO, "waiting, 12 s"]),
        (12.0, True, 20, ["127.0.0.1…00/demo:1", "waiting, 12 s"]),
    ],
)
def test_a_pull_that_waits_is_named_with_its_age(
    waited_s: float, is_begun: bool, columns: int, expected: list[str]
) -> None:
    awaited = [Awaited(DEMO, is_begun, waited_s)]
    assert drawn(awaited=awaited, size=(columns, 10)) == expected
    assert drawn(awaited=awaited, size=(columns, 10), aggregate=True) == expected


def test_a_pull_that_waits_without_a_name() -> None:
    awaited = [Awaited("", True, 12.0), Awaited("", True, 3.0)]
    assert drawn(awaited=awaited) == [
        "an image  waiting for the registry, 12 s",
        "an image  waiting for the registry",
    ]


@pytest.mark.parametrize("size", SIZES)
def test_pulls_that_wait_fit_in_every_window(size: tuple[int, int]) -> None:
    for count in (1, 3, 30):
        awaited = [Awaited(f"宽/{'long/' * 40}\x1b[2J:{n}", True, 1e9) for n in range(count)]
        lines = drawn(awaited=awaited, size=size)
        assert (size[0] > 1) <= len(lines) <= max(min(size[1] - 1, 10), 1)


def test_what_waited_gives_way_to_its_layers(terminal: Terminal) -> None:
    bars = Bars(terminal.stderr, {})
    bars.show(view([], awaited=[Awaited(DEMO, True, 12.0)]))
    bars.show(view([layer(1, progress=MIB, total=4 * MIB)], now=1.0))
    lines = terminal.look()
    assert [line.split()[0] for line in lines] == [DEMO, "000000000001", "Total"]
    bars.close(view([layer(1, Phase.DONE, MIB, MIB)], now=2.5))
    assert terminal.look() == [f"{DEMO}  1 layer  1.0 MiB  in 1.5 s"]


def test_nothing_is_left_of_a_pull_that_only_waited(terminal: Terminal) -> None:
    bars = Bars(terminal.stderr, {})
    bars.show(view([], awaited=[Awaited(DEMO, True, 12.0)]))
    bars.close()
    assert terminal.look() == []


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
    # What was told is not told again, and the same image may be pulled later.
    bars.show(view([], now=60.0))
    bars.show(view([layer(1, progress=MIB, total=4 * MIB)], now=60.0, resumed=MIB))
    assert "resumed 1.0 MiB" in terminal.look()[-1]
    bars.close(view([layer(1, progress=2 * MIB, total=4 * MIB)], now=61.0))
    last = f"{DEMO}  at 2.0/4.0 MiB  0 of 1 layer done  after 1.0 s"
    assert terminal.look() == [told, told_too, last]


def test_an_end_is_told_once_though_the_watch_is_interrupted_at_once(terminal: Terminal) -> None:
    bars = Bars(terminal.stderr, {})
    bars.end(["early"])
    bars.show(view([layer(1, Phase.DONE, MIB, MIB)], now=2.0))
    bars.end([DEMO])
    bars.close()
    assert terminal.look() == [f"{DEMO}  1 layer  1.0 MiB  in 0.0 s"]


def test_the_ends_in_an_aggregate_are_told(terminal: Terminal) -> None:
    bars = Bars(terminal.stderr, {}, aggregate=True)
    bars.show(view([layer(1, Phase.DONE, MIB, MIB)], now=2.0))
    bars.end([DEMO])
    bars.show(view([], now=60.0))
    other = layer(2, progress=MIB, total=2 * MIB, image="other:1")
    bars.show(view([other], now=60.0))
    bars.close(view([other], now=61.0))
    assert terminal.look() == [
        f"{DEMO}  1 layer  1.0 MiB  in 0.0 s",
        "Total  1.0/2.0 MiB  0/1 layer  after 1.0 s",
    ]


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
def test_the_last_line_of_an_image(items: list[Item], expected: str) -> None:
    assert left(*items) == [expected]


def test_the_last_line_of_an_aggregate() -> None:
    done = layer(1, Phase.DONE, MIB, MIB)
    failed = layer(2, Phase.FAILED, 0, MIB, image="other:1", error="404")
    assert left(done, aggregate=True) == ["Total  1.0/1.0 MiB  1/1 layer  in 6.2 s"]
    assert left(done, failed, aggregate=True) == [
        "other:1  failed: 404  0 of 1 layer done  after 6.2 s",
        "Total  1.0/2.0 MiB  1/2 layers  1 failed  after 6.2 s",
    ]


def test_the_last_lines_of_very_many_images() -> None:
    items = [layer(n, Phase.DONE, MIB, MIB, image=f"image:{n}") for n in range(200)]
    items[150] = layer(150, Phase.FAILED, image="image:150", error="404")
    lines = left(*items, size=(80, 60))
    assert len(lines) == 51
    assert lines[0].startswith("image:150  failed: 404")
    assert lines[-1] == "… and 150 more images"


def test_close_without_a_view_leaves_the_one_shown_last(terminal: Terminal) -> None:
    bars = Bars(terminal.stderr, {})
    bars.show(view([layer(1, Phase.DONE, MIB, MIB)], now=2.0))
    bars.close()
    bars.close(view([layer(1, Phase.FAILED)], now=3.0))
    assert terminal.look() == [f"{DEMO}  1 layer  1.0 MiB  in 0.0 s"]


def test_close_before_anything_was_shown_writes_nothing(terminal: Terminal) -> None:
    Bars(terminal.stderr, {}).close()
    terminal.look()
    assert terminal.sent == b""


HOSTILE = [
    "\x1b[2J\x1b[H\x1b]0;owned\x07",
    "\u202eevil\u2066\u2069\u200f",
    "two\nlines\r\n\x85\u2028more\x0b\x00\x7f\x9b31m",
    "x" * 10_000,
    "宽" * 5_000,
    "\x1b" * 10_000,
    "{left}{0}%s{bar}",
    "\ud800",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("size", [(80, 24), (20, 5)])
def test_hostile_names_cannot_steer_the_terminal(text: str, size: tuple[int, int]) -> None:
    with Terminal(*size) as terminal:
        bars = Bars(terminal.stderr, {})
        items = [
            layer(1, progress=MIB, total=4 * MIB, image=text),
            layer(name=text, progress=MIB, total=4 * MIB, image=text),
            layer(3, Phase.FAILED, image=text, error=text),
            layer(4, Phase.WAITING, image=f"a@{text}:{text}"),
            layer(name="", progress=MIB, total=4 * MIB, image=f"{text}2"),
        ]
        for now in range(3):
            bars.show(view(items, now=now))
            lines = terminal.look()  # the screen refuses escapes that it does not know
            assert terminal.screen.cut == 0
            assert len(lines) <= min(size[1] - 1, 11)
        bars.note(text)
        bars.close(view(items, now=9.0))
        assert terminal.look()
        assert "owned" not in "".join(lines) or "\\x1b" in "".join(lines)


def test_an_interrupt_at_any_moment_leaves_a_clean_screen() -> None:
    views = [view(forty_layers(step), now=step * 1.0, rate=1e6) for step in (18, 20, 60)]
    moment = interrupts = 0

    def run(terminal: Terminal, at: int) -> None:
        """Interrupts at the line of code numbered ``at`` of all that are run."""
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
            bars.close(views[2])

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
                "127.0.0.1:5000/demo:1  14 layers  56.0 MiB  in 42 s",
                "docker.io/library/postgres:16.4  13 layers  49.0 MiB  in 42 s",
                "registry.k8s.io/pause:3.10  13 layers  50.0 MiB  in 42 s",
            ]
            assert terminal.screen.cursor[0] == 0
            assert terminal.screen.is_wrapping
    assert interrupts > 60


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
    items: list[Item], columns: int, rows: int, rate: float | None, eta_s: float | None
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
