from __future__ import annotations

import re

from pycrictl.kube.events import PACE_S, QUIET_S, News
from pycrictl.proxy.figures.bulletin import Bulletin
from pycrictl.proxy.lookup import PodKey
from pycrictl.proxy.pulls.book import PullKey, State
from pycrictl.proxy.pulls.queue import PullQueue
from pycrictl.pulls.model import Totals
from tests.pulls.tracking import sums

MIB = 1024**2
WEB, DB = PodKey("default", "web", "u1"), PodKey("default", "db", "u2")


class Desk:
    """A queue with one slot, and what is written of it."""

    def __init__(self) -> None:
        self.queue = PullQueue(1)
        self.totals: dict[int, Totals] = {}
        self.bulletin = Bulletin(self.queue.book, self.totals.get)

    def submit(self, ticket: int, pod: PodKey | None, now: float, image: str = "") -> None:
        image = image or f"i{ticket}"
        self.queue.submit(ticket, PullKey(f"host/{image}"), now=now, pod=pod, reference=image)

    def all_at(self, now: float) -> list[News]:
        """What is due by then, one after another."""
        found = []
        self.bulletin.look(now)
        while (news := self.bulletin.next(now)) is not None:
            found.append(news)
            self.bulletin.look(now)
        return found

    def messages(self, now: float) -> list[str]:
        return [news.message for news in self.all_at(now)]


def test_a_pull_from_its_place_in_line_to_its_end() -> None:
    desk = Desk()
    desk.submit(1, None, 0)
    desk.submit(2, DB, 1)
    desk.submit(3, WEB, 2)
    assert desk.bulletin.look(2) == 1 + QUIET_S
    assert desk.messages(2) == []
    assert desk.messages(4) == [
        "Image i2 waits for a slot: next in line",
        "Image i3 waits for a slot: 2nd in line, behind i2",
    ]
    desk.queue.end(1, State.DONE, now=5)
    desk.queue.end(2, State.DONE, now=6)
    assert desk.messages(6) == ["Image i2 was pulled in 1s", "Pulling image i3 for 0s"]
    desk.totals[3] = sums(85 * MIB // 10, 10 * MIB, MIB, 1.5)
    assert desk.messages(6 + PACE_S - 0.1) == []
    assert desk.messages(6 + PACE_S) == ["Pulling image i3: 85 % (8.5 of 10.0 MiB), ETA 2s"]
    desk.totals[3] = sums(10 * MIB, 10 * MIB, MIB, share=0.5)
    assert desk.messages(17) == ["Pulling image i3: 10.0 MiB are there and are unpacked"]
    desk.queue.end(3, State.DONE, now=20)
    (last,) = desk.all_at(20)
    assert (last.message, last.writing, last.is_new) == ("Image i3 was pulled in 14s", 5, False)
    assert desk.bulletin.look(21) is None


def test_both_sizes_have_one_unit() -> None:
    desk = Desk()
    desk.submit(1, WEB, 0)
    desk.totals[1] = sums(512 * 1024, 2 * MIB)
    assert desk.messages(3) == ["Pulling image i1: 25 % (0.5 of 2.0 MiB)"]


def test_a_pull_that_hangs_is_not_said_to_go_on() -> None:
    desk = Desk()
    desk.submit(1, WEB, 0)
    desk.totals[1] = sums(MIB // 2, 2 * MIB, 0.0, idle_s=12.7)
    expected = "Pulling image i1: 25 % (0.5 of 2.0 MiB), no data for 12 s"
    assert desk.messages(3) == [expected]


def test_what_is_over_soon_has_no_event() -> None:
    desk = Desk()
    desk.submit(1, WEB, 0)
    desk.queue.end(1, State.DONE, now=1)
    assert desk.bulletin.look(1) is None
    assert desk.all_at(100) == []


def test_neither_has_a_pull_without_a_pod_or_of_a_present_image() -> None:
    desk = Desk()
    desk.submit(1, None, 0)
    desk.submit(2, PodKey("default", "../secrets", "u"), 0)
    desk.queue.submit(3, PullKey("c"), now=0, pod=WEB, is_present=True)
    assert desk.bulletin.look(10) is None


def test_a_failure_counts_when_no_attempt_follows() -> None:
    desk = Desk()
    desk.submit(1, WEB, 0, "a")
    assert len(desk.all_at(3)) == 1
    desk.queue.end(1, State.FAILED, now=4, error="denied")
    assert desk.all_at(5) == []
    desk.submit(2, WEB, 5, "a")
    assert desk.messages(15) == ["Pulling image a for 10s"]
    desk.queue.end(2, State.FAILED, now=16, error="denied again")
    (last,) = desk.all_at(19)
    assert last.is_warning
    assert last.message == "Image a was not pulled: denied again"
    assert desk.bulletin.look(20) is None


def test_a_pod_and_an_image_have_one_name() -> None:
    names = []
    for pod, image in ((WEB, "a"), (WEB, "b"), (DB, "a"), (WEB, "a")):
        desk = Desk()
        desk.submit(1, pod, 0, image)
        (news,) = desk.all_at(3)
        names.append(news.name)
    assert names[0] == names[3]
    assert len(set(names)) == 3
    assert names[0].startswith("web.pull-")


def test_the_name_is_one_that_the_api_server_takes() -> None:
    desk = Desk()
    desk.submit(1, PodKey("default", "p" * 199 + "-" + "q" * 20, "u"), 0)
    (news,) = desk.all_at(3)
    assert re.fullmatch(r"p{199}\.pull-[0-9a-f]{16}", news.name)


def test_the_one_that_waited_longest_is_first() -> None:
    desk = Desk()
    for number in range(20):
        desk.submit(number, PodKey("ns", f"p{number}", "u"), number)
    found = [news.pod.name for news in desk.all_at(50)]
    assert found == [f"p{number}" for number in range(20)]
