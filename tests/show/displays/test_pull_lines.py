from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pycrictl.base.environ import Environment
from pycrictl.pulls.state import Phase, PullState, Sums, View
from pycrictl.show.displays.outlet import Outlet
from pycrictl.show.displays.pull_lines import JsonLines, PlainLines
from tests.show.views import DEMO, MIB, digest, layer, view

A, B = "000000000001", "000000000002"


def plain(*views: View) -> list[str]:
    """Return the lines of a run that ends with the last of ``views``."""
    stderr = io.StringIO()
    display = PlainLines(stderr)
    for shown in views:
        display.show(shown)
    display.close()
    return stderr.getvalue().splitlines()


def test_a_line_for_each_change() -> None:
    two = layer(2, Phase.PRESENT, 2 * MIB, 2 * MIB)
    ones = [
        layer(1, Phase.WAITING, 0, 8 * MIB),
        layer(1, Phase.DOWNLOADING, 0, 8 * MIB),
        layer(1, Phase.DOWNLOADING, 3 * MIB, 8 * MIB),
        layer(1, Phase.EXTRACTING, 8 * MIB, 8 * MIB),
        layer(1, Phase.DONE, 8 * MIB, 8 * MIB),
    ]
    views = [view([pull_, two], now=now, changed=[pull_]) for now, pull_ in enumerate(ones)]
    views[0] = view([ones[0], two], now=0)
    assert plain(*views) == [
        f"{DEMO} started: 2 layers, 10.0 MiB, 1 present",
        f"{DEMO} {B} present 2.0 MiB",
        f"{DEMO} {A} downloading 0.0/8.0 MiB",
        f"{DEMO} {A} extracting 8.0 MiB",
        f"{DEMO} {A} done 8.0 MiB",
        f"{DEMO} done: 2 layers, 10.0 MiB, in 4.0 s",
    ]


def test_failure_and_recovery() -> None:
    bad = layer(1, Phase.FAILED, 0, MIB, error="unexpected status\n500 \x1b[31m")
    again = layer(1, Phase.WAITING, 0, MIB, place=2)
    good = layer(1, Phase.DONE, MIB, MIB)
    views = [view([item], now=now) for now, item in enumerate((bad, again, good))]
    assert plain(*views) == [
        f"{DEMO} failed: unexpected status 500 \\x1b[31m, 0 of 1 layer done",
        f"{DEMO} queued, 2nd",
        f"{DEMO} {A} waiting 0.0/1.0 MiB",
        f"{DEMO} started: 1 layer, 1.0 MiB",
        f"{DEMO} {A} done 1.0 MiB",
        f"{DEMO} done: 1 layer, 1.0 MiB, in 2.0 s",
    ]


def test_totals_come_at_least_every_ten_seconds() -> None:
    item = layer(1, Phase.DOWNLOADING, MIB, 4 * MIB)
    views = [view([item], now=100.0 + 1.05 * n, changed=[], rate=MIB, eta_s=3.0) for n in range(60)]
    stderr = io.StringIO()
    display = PlainLines(stderr)
    beats = []
    for shown in views:
        before = stderr.tell()
        display.show(shown)
        if "total" in stderr.getvalue()[before:]:
            beats.append(shown.now)
    gaps = [late - early for early, late in zip([100.0, *beats], beats, strict=False)]
    assert len(beats) == 6
    assert max(gaps) <= 10.0
    assert "total 25% 1.0/4.0 MiB 1.0 MiB/s ETA 0:03 0/1 layer" in stderr.getvalue().splitlines()


def test_a_stall_is_told_at_once_and_then_each_half_minute() -> None:
    views = []
    for now in range(125):
        idle_s = float(now) if now < 100 else now - 100.0
        item = layer(1, Phase.DOWNLOADING, MIB, 4 * MIB, idle_s=idle_s)
        views.append(view([item], now=now, changed=[]))
    views.append(view([layer(1, idle_s=41.0, total=4 * MIB)], now=131, changed=[]))
    lines = [line for line in plain(*views) if "no data" in line]
    assert lines == [
        f"{DEMO} {A} no data for 10 s, 1.0/4.0 MiB",
        f"{DEMO} {A} no data for 40 s, 1.0/4.0 MiB",
        f"{DEMO} {A} no data for 1 min 10 s, 1.0/4.0 MiB",
        f"{DEMO} {A} no data for 10 s, 1.0/4.0 MiB",
        f"{DEMO} {A} no data for 41 s, 0.0/4.0 MiB",
    ]


def test_a_pull_that_waits_is_told_after_a_while_and_then_each_half_minute() -> None:
    waits = PullState(image=DEMO, began_s=100.0)
    views = [view([], now=100.0 + now, awaited=[waits]) for now in range(75)]
    assert plain(*views, view([], now=175.0)) == [
        f"{DEMO} waiting for the registry, 10 s",
        f"{DEMO} waiting for the registry, 40 s",
        f"{DEMO} waiting for the registry, 1 min 10 s",
    ]
    nameless = [PullState(is_begun=False, began_s=began_s) for began_s in (100.0, 200.0)]
    views = [view([], now=pull_.began_s + 11.0, awaited=[pull_]) for pull_ in nameless]
    assert plain(*views) == ["an image waiting for the runtime, 11 s"] * 2


def test_each_place_in_the_line_is_told() -> None:
    waits = PullState(image=DEMO, place=2, behind="default/web", starts_in_s=121.0, began_s=99.0)
    first = replace(waits, place=1, starts_in_s=18.0)
    early = replace(waits, starts_in_s=None)
    line = [early, early, waits, waits, first, first]
    views = [view([], now=100.0 + now, awaited=[pull]) for now, pull in enumerate(line)]
    assert plain(*views) == [
        f"{DEMO} queued, 2nd, behind default/web",
        f"{DEMO} queued, 2nd, behind default/web, starts in 2m1s",
        f"{DEMO} queued, 1st, behind default/web, starts in 18s",
    ]
    written = objects(*views)
    assert [
        (entry["queue_position"], entry["behind"], entry.get("starts_in_s")) for entry in written
    ] == [
        (2, "default/web", None),
        (2, "default/web", 121.0),
        (1, "default/web", 18.0),
    ]


def test_the_end_of_an_image_is_told_once_and_a_later_pull_begins_anew() -> None:
    stderr = io.StringIO()
    display = PlainLines(stderr)
    for start in (0.0, 60.0):
        display.show(view([], now=start))
        display.show(view([layer(1, Phase.DOWNLOADING, 0, MIB)], now=start))
        display.show(view([layer(1, Phase.DONE, MIB, MIB)], now=start + 2))
        display.end([DEMO])
        display.show(view([], now=start + 2))
    display.close()
    once = [
        f"{DEMO} started: 1 layer, 1.0 MiB",
        f"{DEMO} {A} downloading 0.0/1.0 MiB",
        f"{DEMO} {A} done 1.0 MiB",
        f"{DEMO} done: 1 layer, 1.0 MiB, in 2.0 s",
    ]
    assert stderr.getvalue().splitlines() == [*once, *once]


@pytest.mark.parametrize("text", ["\x1b[2J\x9b1m", "\u202eevil\u2066", "two\nlines\r\x85\u2028end"])
def test_hostile_text_stays_one_printable_line(text: str) -> None:
    items = [
        layer(name=text, image=text, progress=MIB, idle_s=99.0),
        layer(2, Phase.FAILED, image=text, error=text),
        layer(3, Phase.FAILED, image="x" * 10_000, error="y" * 10_000),
    ]
    stderr = io.StringIO()
    display = PlainLines(stderr)
    display.note(text)
    display.show(view(items))
    display.close()
    lines = stderr.getvalue().split("\n")
    assert len(lines) == 7
    assert all(line.isprintable() for line in lines)
    assert max(map(len, lines)) < 1_000


def objects(*views: View) -> list[dict[str, Any]]:
    """Return the objects of a run that ends with the last of ``views``."""
    out, stderr = io.StringIO(), io.StringIO()
    times = iter(1_700_000_000.1234 + second for second in range(1000))
    env = Environment(stderr=stderr, wall_clock=lambda: next(times))
    display = JsonLines(Outlet("json", env, out, True))
    for shown in views:
        display.show(shown)
        display.end([DEMO])  # no object of its own
    display.close()
    assert stderr.getvalue() == ""
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_an_object_for_each_changed_item() -> None:
    first = layer(1, Phase.DOWNLOADING, 5, 10)
    second = layer(2, Phase.EXTRACTING, 7, 7, extracted=3, extracted_total=20)
    third = layer(3, Phase.WAITING, 0, 0)
    failed = layer(1, Phase.FAILED, 5, 10, error="404")
    written = objects(
        view([first, second, third]), view([failed, second, third], now=1.0, changed=[failed])
    )
    sums = {"image_progress": 12, "image_total": 17}
    time = {**sums, "time": "2023-11-14T22:13:20.123Z"}
    later = {**sums, "time": "2023-11-14T22:13:21.123Z"}
    one_key, two, three = ({"image": DEMO, "layer": digest(number)} for number in (1, 2, 3))
    extracted = {"extracted": 3, "extracted_total": 20}
    assert written == [
        {**one_key, "progress": 5, "total": 10, "phase": "downloading", **time},
        {**two, "progress": 7, "total": 7, "phase": "extracting", **extracted, **time},
        {**three, "progress": 0, "total": 0, "phase": "waiting", **time},
        {**one_key, "progress": 5, "total": 10, "phase": "failed", "error": "404", **later},
    ]


def test_objects_have_what_is_known_of_their_image() -> None:
    sums = Sums(progress=5 * MIB, total=9 * MIB, count=2, rate=1000.4, eta_s=12.345, share=0.5)
    waiting = layer(1, Phase.WAITING, 0, 4 * MIB, place=2, behind="default/web", began_s=98.0)
    (fields,) = objects(view([waiting], now=100.0, images={DEMO: sums}))
    assert fields["behind"] == "default/web"
    assert {key: fields[key] for key in list(fields)[-7:-1]} == {
        "image_progress": 5 * MIB,
        "image_total": 9 * MIB,
        "percent": 50,
        "rate": 1000,
        "eta_s": 12.3,
        "elapsed_s": 2.0,
    }


def test_every_key_is_in_the_man_page() -> None:
    page = (Path(__file__).parents[3] / "man/prose/shared/json-of-pulls.md").read_text()
    sums = Sums(
        progress=5 * MIB, total=9 * MIB, count=2, rate=1000.4, eta_s=12.345, extracted=5,
        extracted_total=9, is_estimated=True, share=0.5,
    )  # fmt: skip
    item = layer(
        *(1, Phase.EXTRACTING, MIB, 4 * MIB), node="n1", place=2, behind="b", extracted=1,
        starts_in_s=18.0, began_s=98.0,
        extracted_total=2, is_estimated=True, pods=("default/web",), resumed=3, digest="sha256:1",
    )  # fmt: skip
    failed = layer(2, Phase.FAILED, node="n1", error="E")
    stalled = layer(3, Phase.DOWNLOADING, 1, 9, node="n1", idle_s=42.0)
    whole = view([item, failed, stalled], now=100.0, images={f"{DEMO} on n1": sums})
    keys = {*re.findall(r"`(\w+)`", "\n".join(re.findall(r"^`.*$", page, re.M)))}
    assert keys == {key for fields in objects(whole) for key in fields}
