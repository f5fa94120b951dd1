"""A node's board as `top` has it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pycrictl.cli.board import Board, ordered, rows_of
from pycrictl.diagnosis import pod
from pycrictl.diagnosis.facts import Container, Image, PodFacts, Sandbox
from pycrictl.diagnosis.pod import Report
from pycrictl.pulls.state import PullState, Sums

NOW = 1_790_000_000.0
READY = Sandbox("5a" * 32, is_ready=True, created_s=NOW - 300)
RUNNING = Container("main", "c0" * 32, "reg.example/web:1", "running", started_s=NOW - 7200)
CRASHED = replace(
    RUNNING,
    state="exited",
    exit_code=3,
    finished_s=NOW - 12,
    restarts=3,
    has_crashed_before=True,
    lines=("no database",),
)
TO_COME = Container("main", image="reg.example/web:1")


def report(name: str, *containers: Container, **more: Any) -> Report[PodFacts]:
    known: dict[str, Any] = {"sandbox": READY, "containers": containers, "now_s": NOW}
    return pod.report(PodFacts("shop", name, **known | more))


def image(**more: Any) -> tuple[Image, ...]:
    return (Image("reg.example/web:1", is_present=False, **more),)


PULLING = PullState(
    image="reg.example/web:1",
    sums=Sums(
        progress=47 << 20,
        total=100 << 20,
        done=1,
        count=3,
        rate=4.5 * (1 << 20),
        eta_s=18.0,
        share=0.47,
    ),
)
QUEUED = PullState(place=1, behind="default/web", starts_in_s=18.0)
REPORTS = [
    report("web", RUNNING),
    report("api", CRASHED),
    report("pulls", TO_COME, images=image(pull=PULLING)),
    report("batch", TO_COME, images=image(pull=QUEUED)),
]
BOARD = Board("node1", "containerd 2.3.4", NOW, 4, ordered(rows_of(REPORTS)), 0.27)
