"""The reports of a pod's stream; a real queue fills the book, as in the proxy."""

from __future__ import annotations

from dataclasses import replace

from pycrictl.proxy.pulls.book import (
    ATTEMPT_GAP_S,
    MAX_ERROR_CHARS,
    MAX_FAILURES,
    CallState,
    Policy,
    PullKey,
)
from pycrictl.proxy.pulls.progress_streams import ABANDONED, LINGER_S, Reporter
from pycrictl.proxy.pulls.queue import PullQueue
from pycrictl.proxy.runtime_lookup import PodKey, PullTarget
from pycrictl.pulls.model import Phase, Pull, PullItem
from pycrictl.wire.progress import Report

WEB = PodKey("default", "web", "u1")
DB = PodKey("default", "db", "u2")


class Shop:
    """A queue, and the reports on its pulls.

    Attributes:
        layers: by the pull's name at the runtime.
    """

    def __init__(self, limit: int = 1, **options: float) -> None:
        policy = Policy.RETRY if options else Policy.WAIT
        self.queue = PullQueue(limit, policy, **options)  # type: ignore[arg-type]  # retries
        self.layers: dict[str, list[PullItem]] = {}
        self.reporter = Reporter(self.queue.book, self.seen)

    def seen(self, name: str) -> Pull | None:
        return Pull(name, tuple(self.layers[name])) if name in self.layers else None

    def ask(
        self,
        ticket: int,
        pod: PodKey | None,
        image: str,
        *,
        now: float,
        present: bool = False,
        reference: str = "",
    ) -> None:
        key = PullKey(image)
        self.queue.submit(ticket, key, now=now, pod=pod, reference=reference, is_present=present)

    def finish(self, ticket: int, *, now: float, error: str = "") -> None:
        self.queue.end(ticket, CallState.FAILED if error else CallState.DONE, now=now, error=error)

    def reports(self, pod: PodKey, *, now: float, since: float = 0.0) -> list[Report]:
        return self.reporter.reports(PullTarget(pod), now=now, since=since)

    def phases(self, pod: PodKey, *, now: float) -> dict[str, str]:
        return {report.image: report.phase for report in self.reports(pod, now=now)}

    def only(self, pod: PodKey, *, now: float) -> Report:
        (report,) = self.reports(pod, now=now)
        return report


def layer(phase: Phase, progress: int, *, extracted_total: int = 0) -> PullItem:
    return PullItem("a", f"sha256:{progress}", phase, progress, 9, "", 0, 0, extracted_total, 0.0)


def test_each_pod_sees_a_pull_under_its_own_spelling_and_once() -> None:
    shop = Shop()
    image = "docker.io/library/a:latest"
    for ticket, (pod, reference) in enumerate(((WEB, "a"), (WEB, "library/a"), (DB, image)), 1):
        shop.ask(ticket, pod, image, now=0, reference=reference)
    shop.layers["a"] = [layer(Phase.DOWNLOADING, 3)]
    assert shop.only(WEB, now=1).image == "a"
    assert shop.only(DB, now=1) == Report(image, "sha256:3", 3, 9, phase="downloading")
    shop.layers.clear()
    shop.finish(1, now=1)
    assert shop.phases(WEB, now=1) == {"a": "downloading"}
    shop.finish(2, now=2)
    assert shop.phases(WEB, now=2) == {"a": "done"}


def test_layers_are_those_of_the_leader_when_the_pull_starts() -> None:
    shop = Shop()
    shop.ask(1, None, "other", now=0)
    shop.ask(2, WEB, "img", now=0, reference="short")
    shop.ask(3, DB, "img", now=0, reference="long")
    shop.queue.end(2, CallState.LEFT, now=1)
    shop.finish(1, now=2)
    shop.layers["long"] = [layer(Phase.DOWNLOADING, 3)]
    assert shop.only(DB, now=2).layer == "sha256:3"


def test_layers_follow_their_image() -> None:
    shop = Shop()
    shop.ask(1, WEB, "a", now=0)
    shop.layers["a"] = [
        layer(Phase.PRESENT, 9),
        layer(Phase.EXTRACTING, 8, extracted_total=20),
        layer(Phase.FAILED, 4),
    ]

    def seen(now: float) -> list[tuple[str, int, int, str]]:
        reports = shop.reports(WEB, now=now)
        return [(one.phase, one.progress, one.extracted, one.error) for one in reports]

    assert [phase for phase, *_ in seen(1)] == ["present", "extracting", "downloading"]
    shop.finish(1, now=2)
    assert seen(2) == [("present", 9, 0, ""), ("done", 9, 20, ""), ("done", 9, 0, "")]
    shop.ask(2, WEB, "a", now=10)
    shop.finish(2, now=11, error="denied")
    assert [phase for phase, *_ in seen(11)] == ["present", "extracting", "downloading"]
    assert seen(13)[1:] == [("failed", 8, 0, "denied"), ("failed", 4, 0, "denied")]
    shop.layers["a"] = [layer(Phase.PRESENT, 9), layer(Phase.DONE, 8)]
    assert seen(13) == [("present", 9, 0, ""), ("failed", 8, 0, "denied")]


def test_a_failure_followed_by_another_attempt_was_none() -> None:
    shop = Shop()
    shop.ask(1, WEB, "a", now=0)
    shop.finish(1, now=1, error="denied")
    assert shop.phases(WEB, now=1.5) == {"a": "downloading"}
    shop.ask(2, WEB, "a", now=2)
    assert shop.phases(WEB, now=1 + ATTEMPT_GAP_S) == {"a": "downloading"}
    shop.finish(2, now=4)
    assert shop.phases(WEB, now=9) == {"a": "done"}


def test_a_caller_that_goes_and_one_that_is_refused() -> None:
    shop = Shop(limit=1, retry_interval_s=1.0, retries=1)
    shop.ask(1, None, "x", now=0)
    shop.ask(2, WEB, "a", now=0)
    shop.ask(3, DB, "b", now=0)
    shop.queue.end(2, CallState.LEFT, now=0.5)
    shop.queue.tick(now=1.0)
    assert shop.only(DB, now=1.5) == Report("b", "", 0, 0, phase="waiting")
    gone, refused = (shop.only(pod, now=1.0 + ATTEMPT_GAP_S) for pod in (WEB, DB))
    assert (gone.phase, gone.error) == ("failed", ABANDONED)
    assert refused.error.startswith("TooManyPullingInParallelErr")


def test_a_present_image_says_so() -> None:
    shop = Shop(limit=1)
    shop.ask(1, DB, "a", now=0)
    shop.ask(2, WEB, "b", now=0, present=True)
    assert shop.phases(WEB, now=0) == {"b": "downloading"}
    shop.finish(2, now=1)
    shop.finish(1, now=1)
    assert shop.phases(WEB, now=1) == {"b": "present"}
    assert shop.phases(DB, now=1) == {"a": "done"}


def test_what_ended_is_forgotten_although_nobody_else_pulls() -> None:
    shop = Shop(limit=0)
    for ticket, error in enumerate(("", "denied"), 1):
        shop.ask(ticket, WEB, f"image-{ticket}", now=0)
        shop.finish(ticket, now=1, error=error)
    just_in_time, too_late = LINGER_S + 0.9, LINGER_S + 1.0
    assert len(shop.reports(WEB, now=just_in_time, since=just_in_time)) == 2
    assert shop.reports(WEB, now=too_late, since=too_late) == []
    # A stream open from the beginning still has them all.
    assert len(shop.reports(WEB, now=900.0, since=0.5)) == 2


def test_who_is_ahead_in_the_line() -> None:
    shop = Shop(limit=1)
    shop.ask(1, WEB, "a", now=0, reference="r/a")
    shop.ask(2, DB, "b", now=1, reference="r/b")
    shop.ask(3, WEB, "c", now=2, reference="r/c")
    shop.ask(4, WEB, "d", now=2, reference="r/d")
    shop.ask(5, None, "e", now=2)
    shop.ask(6, DB, "f", now=2)
    assert [report.behind for report in shop.reports(WEB, now=3)] == ["", "default/db", "r/c"]
    assert [report.behind for report in shop.reports(DB, now=3)] == ["default/web", "e"]


def test_when_a_pull_began() -> None:
    shop = Shop(limit=1)
    shop.reporter = Reporter(shop.queue.book, lambda name: None, wall_offset_s=1000.0)
    shop.ask(1, WEB, "a", now=5)
    shop.ask(2, WEB, "b", now=6)
    assert [report.started for report in shop.reports(WEB, now=7)] == [1005.0, 0.0]


NODE = PullTarget(None)


def test_the_whole_node() -> None:
    shop = Shop(limit=1)
    others: dict[str, Pull] = {}
    shop.reporter = Reporter(shop.queue.book, lambda name: None, lambda: others)
    assert shop.reporter.busy_until(None, now=50) == 50
    shop.ask(1, WEB, "a", now=50, reference="r/a")
    shop.ask(2, DB, "b", now=51, reference="r/b")
    shop.ask(3, DB, "a", now=51, reference="r/a")
    shop.ask(4, None, "c", now=51, reference="r/c")
    reports = shop.reporter.reports(NODE, now=52, since=50)
    assert [(report.image, report.pod, report.phase) for report in reports] == [
        ("r/a", "default/web and 1 more", "downloading"),
        ("r/b", "default/db", "waiting"),
        ("r/c", "", "waiting"),
    ]
    assert shop.reporter.busy_until(None, now=52) is None
    for ticket in (1, 3, 2, 4):
        shop.finish(ticket, now=53)
    assert shop.reporter.busy_until(None, now=53) == 53 + ATTEMPT_GAP_S
    assert len(shop.reporter.reports(NODE, now=54, since=50)) == 3
    assert shop.reporter.reports(NODE, now=60, since=60) == []
    others["r/d"] = Pull("r/d", (layer(Phase.DOWNLOADING, 3),))
    others["r/a"] = Pull("r/a", (layer(Phase.DOWNLOADING, 3),))
    images = [report.image for report in shop.reporter.reports(NODE, now=54, since=50)]
    assert sorted(images) == ["r/a", "r/b", "r/c", "r/d"]
    assert shop.reporter.busy_until(None, now=60) is None
    failed = replace(layer(Phase.FAILED, 3), error="gone")
    others["r/d"] = Pull("r/d", (failed,), is_running=False)
    del others["r/a"]
    (report,) = shop.reporter.reports(NODE, now=60, since=60)
    assert (report.image, report.phase, report.error) == ("r/d", "failed", "gone")
    assert shop.reporter.busy_until(None, now=60) == 60


def test_failures_are_few_and_their_errors_short() -> None:
    shop = Shop()
    numbers = range(MAX_FAILURES + 3)
    for number in numbers:
        shop.ask(number, WEB, f"image-{number}", now=number, reference=str(number))
        shop.finish(number, now=number, error="x" * 10_000)
    found = shop.queue.book.failures()
    assert [call.reference for call in found] == [str(number) for number in numbers[:2:-1]]
    assert {call.error for call in found} == {"x" * MAX_ERROR_CHARS}
