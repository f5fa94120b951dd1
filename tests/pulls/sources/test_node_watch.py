"""Whose pull it is, and what is ahead, as a proxy's status says."""

from __future__ import annotations

from dataclasses import replace

from pycrictl.pulls.messages import sums_json
from pycrictl.pulls.sources.node_watch import from_proxy
from pycrictl.pulls.state import PullState
from tests.pulls.tracking import sums

SUMS = sums(1, 4, 2.0, 2.0)
FAILED = 'failed to pull and unpack image "a/bad:1": failed to resolve reference "a/bad:1": '
STATUS = {
    "running": [
        {
            "pull": 1,
            "image": "a/one",
            "pod": "default/batch",
            "sums": sums_json(SUMS),
        }
    ],
    "waiting": [
        {
            "pull": 2,
            "image": "a/two",
            "pod": "default/web",
            "place": 1,
            "behind": None,
            "behindPod": None,
            "startsIn": "2s",
        }
    ],
    "joined": [{"pull": 1, "image": "a/one", "pod": "default/web"}],
    "failures": [
        {"image": "a/bad", "pod": "default/web", "error": FAILED + "denied"},
        {"image": "a/other", "pod": "default/batch", "error": "denied"},
    ],
}
RUNNING = PullState(image="a/one", pods=("default/batch",), sums=SUMS)


def test_what_a_proxy_says_of_a_pod() -> None:
    found = from_proxy(STATUS, "default/web")
    assert found.own == {
        "a/two": PullState(
            image="a/two",
            pods=("default/web",),
            place=1,
            behind="default/batch",
            starts_in_s=2.0,
            is_begun=False,
        ),
        "a/one": replace(RUNNING, pods=("default/web",)),
    }
    assert found.failed == {"a/bad": "denied"}


def test_pulls_of_other_pods_and_what_was_seen_elsewhere() -> None:
    unknown = {"pull": 3, "image": "a/three", "pod": None, "sums": sums_json(SUMS)}
    seen = {"a/four": PullState(image="a/four")}
    found = from_proxy({**STATUS, "running": [unknown]}, "default/new", seen)
    assert list(found.node) == ["a/three", "a/two", "a/four"]
    assert not found.own
