"""Rows of the screen from recorded facts, and their text for any width."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pycrictl.cli.board import (
    BoardRow,
    State,
    lines_of,
    ordered,
    rows_of,
)
from pycrictl.diagnosis.facts import Image, PodFacts, Source
from pycrictl.diagnosis.pod import Report
from pycrictl.kube.pods import Pod
from pycrictl.show.displays.phrases import width
from tests.support.boards import (
    BOARD,
    CRASHED,
    PULLING,
    QUEUED,
    REPORTS,
    RUNNING,
    TO_COME,
    image,
    report,
)

EVICTED = Pod("shop", "a", "u", "Failed", (), (), reason="Evicted")


def row(report: Report[PodFacts]) -> BoardRow:
    (shown,) = rows_of([report])
    return shown


@pytest.mark.parametrize(
    ("examined", "state", "status"),
    [
        (report("a", RUNNING), State.RUNNING, "running 2 hours"),
        (report("a", CRASHED), State.SICK, "crashing, 3 restarts"),
        (report("a", replace(CRASHED, reason="OOMKilled")), State.SICK, "out of memory"),
        (report("a", replace(CRASHED, exit_code=0, reason="Completed")), State.ENDED, "ended"),
        (report("a", TO_COME, images=image(pull=PULLING)), State.PULLING, "pulling"),
        (report("a", TO_COME, images=image(pull=QUEUED)), State.WAITING, "waiting"),
        (
            report("a", TO_COME, images=image(failure="reg.example/web:1: not found")),
            State.SICK,
            "no such image",
        ),
        (report("a", sandbox=None, pod=EVICTED, seen=(Source.API,)), State.SICK, "evicted"),
        (report("a", TO_COME), State.WAITING, "to be started"),
    ],
)
def test_each_state(examined: Report[PodFacts], state: State, status: str) -> None:
    shown = row(examined)
    assert (shown.state, shown.what) == (state, status)


def test_what_is_sick_comes_first_then_pulls_then_the_others() -> None:
    rows = ordered(rows_of(REPORTS))
    assert [row.pod for row in rows] == ["shop/api", "shop/pulls", "shop/batch", "shop/web"]


def test_pulls_of_nobody_have_rows_and_those_of_pods_only_one() -> None:
    stray = replace(QUEUED, image="x/y:1")
    others = [replace(PULLING, pods=("shop/pulls",)), stray]
    rows = rows_of(REPORTS, others)
    assert [row.image for row in rows if row.pull is not None].count("reg.example/web:1") == 2
    assert [row.image for row in rows if not row.pod] == ["x/y:1"]


def test_a_pull_without_a_pod_that_a_row_waits_for_has_no_second_row() -> None:
    """containerd does not name a pull's pod, and may name its image by digest."""
    other = replace(PULLING)
    rows = rows_of(REPORTS, [PULLING, other])
    assert [row.pod for row in rows if row.pull is PULLING] == ["shop/pulls"]
    assert [row.pod for row in rows if row.pull is other] == [""]


def test_the_screen() -> None:
    head, counts, *rows = lines_of(BOARD, 100)
    assert head.startswith("node1  containerd 2.3.4  images 27 % free ")
    assert counts == "PODS 4   1 sick  1 pulling  1 waiting  1 running"
    assert rows == [
        '! shop/api    main  crashing, 3 restarts   exit 3, 12 seconds ago: "no database"',
        "  shop/pulls  main  pulling   47 %, 47.0 of 100.0 MiB, 4.5 MiB/s, 18s left",
        "  shop/batch  main  waiting   queued, 1st, behind default/web, starts in 18s",
        "  shop/web    main  running 2 hours",
    ]


@pytest.mark.parametrize("columns", [200, 100, 80, 49, 30, 12, 1])
def test_every_line_fits(columns: int) -> None:
    for line in [*lines_of(replace(BOARD, problem="x" * 300), columns)]:
        assert width(line) <= columns


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        ("resolve: not found", "no such image   web:1"),
        ("x509: unknown authority", "bad certificate   unknown authority   web:1"),
    ],
)
def test_at_80_columns_the_reason_of_a_failed_pull_is_whole(failure: str, told: str) -> None:
    reference = f"registry.example:5000/{'a-team/' * 5}web:1"
    images = (Image(reference, is_present=False, failure=f"pull {reference}: {failure}"),)
    to_come = replace(TO_COME, image=reference)
    (shown,) = rows_of([report("web-7d9c6b4f5-x2x7k-abcde", to_come, images=images)])
    line = list(lines_of(replace(BOARD, rows=(shown,)), 80))[2]
    assert line == f"! shop/web-7d9…-x2x7k-abcde  main  {told}"


def test_names_cannot_control_the_terminal() -> None:
    evil = replace(row(REPORTS[0]), pod="a/\x1b[2J", detail="\x07", state=State.SICK)
    text = "".join(lines_of(replace(BOARD, rows=(evil,)), 80))
    assert "\x1b" not in text
    assert "\x07" not in text
