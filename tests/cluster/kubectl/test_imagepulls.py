"""Lists and watches of ImagePull objects, as reports."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pycrictl.cluster.kubectl.cluster_watch import PullObjects
from tests.cluster.kubectl.cluster import event, pull


def listing(*items: Any) -> bytes:
    document = {"kind": "ImagePullList", "metadata": {"resourceVersion": "7"}, "items": items}
    return json.dumps(document).encode()


def test_a_layer() -> None:
    pulls = PullObjects()
    (state,) = pulls.receive_list(
        listing(pull("web", progress=3, total=9, queuePosition=2, startTime="2026-11-22T10:00:00Z"))
    )
    (layer,) = state.layers
    assert (state.name, layer.progress, layer.total) == ("web:1 on n1", 3, 9)
    assert (layer.phase, state.place, state.pods) == ("downloading", 2, ("default/web",))
    assert state.began_s == 1795341600.0
    assert (pulls.version, pulls.is_idle) == ("7", False)


@pytest.mark.parametrize(
    ("phase", "is_idle", "said"),
    [
        ("Queued", False, "waiting"),
        ("Waiting", False, "waiting"),
        ("Pulling", False, "downloading"),
        ("Extracting", False, "extracting"),
        ("Succeeded", True, "done"),
        ("Failed", True, "failed"),
        ("BackOff", True, "failed"),
        ("Frobnicating", False, "waiting"),
    ],
)
def test_phases(phase: str, is_idle: bool, said: str) -> None:
    pulls = PullObjects()
    pulls.receive_list(listing())
    begun = pull("web", phase, startTime="2026-11-22T10:00:00Z")
    (state,) = pulls.receive_event(event("ADDED", begun))
    assert (state.layers[0].phase, pulls.is_idle) == (said, is_idle)
    assert bool(state.error) == (said == "failed")


def test_a_stall_is_one_of_the_layers_that_are_downloaded() -> None:
    sums = {"count": 1, "progress": 3, "total": 9, "stalled_s": 12.5}
    stalled = pull("web", progress=3, total=9, stalledSeconds=12, sums=sums)
    (state,) = PullObjects().receive_list(listing(stalled))
    assert [layer.stalled_s for layer in state.layers] == [12.5]
    waiting = pull("web", "Queued", total=9, sums=sums)
    (state,) = PullObjects().receive_list(listing(waiting))
    assert [layer.stalled_s for layer in state.layers] == [0.0]


def test_what_was_over_before() -> None:
    """A pull that had ended is not part of the watch; for a later pod, an image may be present."""
    pulls = PullObjects()
    over = pull("web", "Succeeded", total=27, progress=27, startTime="2026-11-22T10:00:00Z")
    assert pulls.receive_list(listing(over)) == []
    assert pulls.is_idle
    (state,) = pulls.receive_event(event("ADDED", pull("db", "Succeeded", node="n2")))
    (layer,) = state.layers
    assert (layer.phase, layer.total, state.began_s) == ("present", 0, 0.0)


def test_pods_of_one_node_share_a_pull() -> None:
    pulls = PullObjects(is_of_one_node=True)
    first, second = pull("a", total=5), pull("b", total=5)
    states = pulls.receive_list(listing(first, second))
    assert {(pull.name, pull.pods) for pull in states} == {("web:1", ("default/a",))}
    (again,) = pulls.receive_event(event("MODIFIED", second, "8"))
    assert (again.pods, pulls.version) == (("default/a",), "8")
    assert pulls.receive_event(event("DELETED", first, "9")) == []
    assert pulls.lost == []
    pulls.receive_event(event("DELETED", second, "10"))
    assert [lost.name for lost in pulls.lost] == ["b"]


def test_what_a_new_list_lacks_is_lost() -> None:
    pulls = PullObjects()
    pulls.receive_list(listing(pull("a"), pull("b", "Succeeded", image="x:1")))
    assert pulls.receive_list(listing()) == []
    assert [lost.name for lost in pulls.lost] == ["a"]


def test_a_pull_whose_agent_is_silent_for_a_while_is_not_lost() -> None:
    pulls = PullObjects()
    pulls.receive_list(listing(pull("web", total=9)))
    unknown = pull("web", "Waiting", unknown=True, error="it did not answer")
    for _ in range(2):
        assert pulls.receive_list(listing(unknown)) == []
        assert (pulls.silent, pulls.lost, pulls.is_idle) == ({"n1": "it did not answer"}, [], False)
    pulls.receive_list(listing())
    assert [lost.name for lost in pulls.lost] == ["web"]


def test_what_is_not_wanted_is_left_out() -> None:
    pulls = PullObjects(lambda namespace, name: (namespace, name) == ("default", "web"))
    others = [pull("web", namespace="else"), pull("other")]
    assert pulls.receive_list(listing(*others)) == []
    assert len(pulls.receive_list(listing(pull("web")))) == 1


def test_a_bookmark_moves_the_version() -> None:
    pulls = PullObjects()
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "99"}}}
    assert pulls.receive_event(bookmark) == []
    assert pulls.version == "99"


def test_what_only_a_next_version_says_is_left_out() -> None:
    pulls = PullObjects()
    more = {"signature": {"verified": True}, "priority": 7}
    newer = {**pull("web", progress=3, total=9), **more}
    newer["status"] |= {
        **more,
        "layers": [{**layer, **more} for layer in newer["status"]["layers"]],
    }
    assert pulls.receive_list(listing(newer)) == PullObjects().receive_list(
        listing(pull("web", progress=3, total=9))
    )
    assert pulls.receive_event({"type": "PROGRESS", "object": newer}) == []


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"kind": "Status"}'])
def test_what_is_not_a_list(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        PullObjects().receive_list(text)


_KEYS = (
    "metadata", "spec", "status", "layers", "uid", "podName", "image", "phase", "containers",
    "startTime", "totalBytes", "queuePosition", "unknown", "nodeName",
)  # fmt: skip
_ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.sampled_from(_KEYS),
            inner,
        )
    ),
)


@settings(max_examples=30)
@given(st.lists(_ANYTHING, max_size=3))
def test_no_object_does_harm(items: list[Any]) -> None:
    pulls = PullObjects(is_of_one_pod=True)
    for state in pulls.receive_list(listing(*items)):
        assert all(layer.progress >= 0 for layer in state.layers)
    pulls = PullObjects()
    pulls.receive_list(listing(*items))
    for item in items:
        pulls.receive_event({"type": "MODIFIED", "object": item})
