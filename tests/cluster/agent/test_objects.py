"""ImagePull objects, made from pods and from the pulls that nodes report."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from pycrictl.base.foreign import fit
from pycrictl.base.units import format_moment
from pycrictl.cluster.agent.api.answers import age, cells, parse_fields, parse_query, table
from pycrictl.cluster.agent.api.discovery import IMAGE_PULL
from pycrictl.cluster.agent.api.names import NAME
from pycrictl.cluster.agent.feed import ObjectStore, VersionGone
from pycrictl.cluster.agent.node_pulls import pulls_in
from pycrictl.cluster.agent.objects import PullPhase, is_waiting, objects_of
from pycrictl.kube.pods import Pod, parse_pod
from pycrictl.pulls.messages import MAX_LAYERS, SUMS
from pycrictl.pulls.state import Phase, PullState
from tests.cluster.agent import standing
from tests.pulls.tracking import Report, Tracker
from tests.support.pull_objects import (
    BACK_OFF,
    FAILED,
    IMAGE,
    NOW_S,
    RUNNING,
    WAITING,
    layer,
    pod,
    pull,
)


def status(pods: Pod, *pulls: PullState, **more: Any) -> dict[str, Any]:
    documents = objects_of([pods], pulls, "n1", **more)
    return dict(documents[0]["status"]) if documents else {}


CRASHED = {"waiting": {"reason": "CrashLoopBackOff"}}


@pytest.mark.parametrize(
    ("state", "pulls", "phase"),
    [
        (WAITING, [], "Waiting"),
        (WAITING, [pull(layer("downloading", 50))], "Pulling"),
        (WAITING, [pull(layer("downloading", 50), layer("done", 100, "sha256:b"))], "Pulling"),
        (
            WAITING,
            [pull(layer("extracting", 100), layer("waiting", 100, "sha256:b"))],
            "Extracting",
        ),
        (WAITING, [pull(layer("extracting", 100), layer("downloading", 5, "sha256:b"))], "Pulling"),
        (WAITING, [pull(Report(IMAGE, "", 0, 0, phase="waiting", queue_position=2))], "Queued"),
        (WAITING, [PullState(image=IMAGE)], "Pulling"),
        (WAITING, [pull(layer("done", 100), is_running=False)], "Succeeded"),
        (WAITING, [pull(layer("failed", 5, error="reset"), is_running=False)], "Failed"),
        (BACK_OFF, [], "BackOff"),
        (BACK_OFF, [pull(layer("failed", 5, error="reset"), is_running=False)], "BackOff"),
        # Only the node sees that the pull is being retried.
        (BACK_OFF, [pull(layer("downloading", 5))], "Pulling"),
        (FAILED, [], "Failed"),
        (FAILED, [pull(layer("failed", 5, error="reset"))], "Failed"),
        (RUNNING, [pull(layer("done", 100), is_running=False)], "Succeeded"),
    ],
)
def test_phases(state: dict[str, Any], pulls: list[PullState], phase: str) -> None:
    assert status(pod(state=state), *pulls)["phase"] == phase


@pytest.mark.parametrize("state", [RUNNING, CRASHED])
def test_images_that_are_there(state: dict[str, Any]) -> None:
    assert status(pod(state=state)) == {}
    shown = status(pod(state=state), wants_all=True)
    assert (shown["phase"], shown["percent"]) == ("Succeeded", 100)
    assert not is_waiting(pod(state=state))


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
@pytest.mark.parametrize("state", [WAITING, BACK_OFF])
def test_a_pod_that_ended_does_not_wait(phase: str, state: dict[str, Any]) -> None:
    over = pod(state=state, phase=phase)
    assert not is_waiting(over)
    assert status(over) == status(over, wants_all=True) == {}
    assert status(over, pull(layer("downloading", 5)), wants_all=True) == {}
    assert status(pod(state=RUNNING, phase=phase), wants_all=True)["phase"] == "Succeeded"


def test_until_bytes_arrive_the_last_error_stays() -> None:
    begun = pull(layer("downloading"))
    for attempt in (begun, pull(layer("waiting")), PullState(image=IMAGE)):
        shown = status(pod(state=BACK_OFF), attempt)
        assert (shown["phase"], shown["error"]) == ("BackOff", 'Back-off pulling "x"')
    assert status(pod(state=WAITING), begun)["phase"] == "Pulling"


def with_init(state: dict[str, Any], *, image: str = IMAGE) -> Pod:
    """Return a pod whose init container, of ``image``, has this state; the others wait."""
    document = standing.pod("web", image=IMAGE, state=WAITING)
    document["spec"]["initContainers"] = [{"name": "first", "image": image}]
    document["spec"]["containers"].append({"name": "side", "image": "registry.test/side:1"})
    document["status"]["initContainerStatuses"] = [{"name": "first", "state": state}]
    parsed = parse_pod(document)
    assert parsed is not None
    return parsed


def test_while_an_init_container_runs_nothing_is_waited_for() -> None:
    """Its image is there, and nobody has asked for those of the containers behind it."""
    running = with_init(RUNNING)
    assert objects_of([running], (), "n1") == []
    assert not is_waiting(running)
    documents = objects_of([running], (), "n1", wants_all=True)
    phases = {document["metadata"]["name"]: document["status"]["phase"] for document in documents}
    assert phases == {"web.first": "Succeeded", "web.side": "Waiting"}
    over = with_init({"terminated": {"exitCode": 0}}, image="registry.test/init:1")
    documents = objects_of([over], (), "n1")
    assert [document["metadata"]["name"] for document in documents] == ["web.main", "web.side"]


def test_a_pull_that_may_be_of_either_image_is_claimed_by_none() -> None:
    first, second = IMAGE, IMAGE.replace(":1", ":2")
    either = replace(
        pull(layer("downloading", 50), image="registry.test/team/app@sha256:01"),
        candidates=(first, second),
    )
    for image in (first, second):
        assert status(pod(image=image), either)["phase"] == "Waiting"
    assert status(pod(image=second), replace(either, candidates=(second,)))["phase"] == "Pulling"


def test_an_image_that_does_not_exist_is_not_the_pull_of_another() -> None:
    """What the kubelet says after the pull of the other image has begun wins."""
    missing = pod(state=FAILED, image=IMAGE.replace(":1", ":nosuch"))
    running = pull(layer("downloading", 33), image="registry.test/team/app@sha256:01")
    assert status(missing._replace(status_s=NOW_S), running) == status(missing)
    # Before that, the pull may be its next attempt.
    assert status(missing._replace(status_s=NOW_S - 60), running)["phase"] == "Pulling"


@pytest.mark.parametrize(
    ("state", "pulls", "conditions"),
    [
        (WAITING, [pull(layer("downloading", 50))], {"Pulled": "False", "Failed": "False"}),
        (RUNNING, [], {"Pulled": "True", "Failed": "False"}),
        (BACK_OFF, [], {"Pulled": "False", "Failed": "True"}),
    ],
)
def test_conditions(
    state: dict[str, Any], pulls: list[PullState], conditions: dict[str, str]
) -> None:
    shown = status(pod(state=state), *pulls, wants_all=True)["conditions"]
    assert {condition["type"]: condition["status"] for condition in shown} == conditions
    unknown = status(pod(), problem="the node does not answer")["conditions"]
    assert {condition["status"] for condition in unknown} == {"Unknown"}


def test_numbers() -> None:
    shown = status(pod(), pull(layer("downloading", 40), layer("done", 100, "sha256:b")))
    assert (shown["progressBytes"], shown["totalBytes"]) == (140, 200)
    assert 0 < shown["percent"] < 100
    assert shown["bytesPerSecond"] == 4
    assert shown["startTime"] == "2026-11-22T22:38:20Z"
    assert [part["digest"] for part in shown["layers"]] == ["sha256:a", "sha256:b"]
    queued = status(pod(), pull(Report(IMAGE, "", 0, 0, phase="waiting", queue_position=3)))
    assert queued["queuePosition"] == 3
    assert "percent" not in queued


def test_an_image_that_another_pod_pulled() -> None:
    """A pull that ended before the pod was created is not its pull; its image is present."""
    document = standing.pod("late")
    document["metadata"]["creationTimestamp"] = format_moment(NOW_S + 1)
    late = parse_pod(document)
    assert late is not None
    theirs = pull(layer("done", 100), is_running=False)
    shown = status(late, theirs)
    assert (shown["phase"], shown["percent"], "sums" in shown) == ("Succeeded", 100, False)
    failed = pull(layer("failed", 5, error="reset"), is_running=False)
    assert status(late, failed)["phase"] == "Waiting"


def test_why_it_failed() -> None:
    failed = pull(layer("failed", 5, error="connection reset"), is_running=False)
    assert status(pod(state=BACK_OFF), failed)["error"] == "connection reset"
    shown = status(pod(state=BACK_OFF))
    assert (shown["error"], shown["kubeletReason"]) == ('Back-off pulling "x"', "ImagePullBackOff")


def test_one_object_for_each_image_of_a_pod() -> None:
    document = standing.pod("web")
    containers = [("a", "x:1"), ("b", "y:1"), ("c", "x:1")]
    document["spec"]["containers"] = [{"name": name, "image": image} for name, image in containers]
    document["spec"]["initContainers"] = [{"name": "first", "image": "y:1"}]
    document["status"]["containerStatuses"] = []
    parsed = parse_pod(document)
    assert parsed is not None
    objects = objects_of([parsed], (), "n1", wants_all=True)
    assert {item["metadata"]["name"]: item["spec"]["containers"] for item in objects} == {
        "web.first": ["first", "b"],
        "web.a": ["a", "c"],
    }
    assert len({item["metadata"]["uid"] for item in objects}) == 2


def test_rows() -> None:
    (document,) = objects_of([pod()], [pull(layer("downloading", 40))], "n1")
    row = cells(document, datetime.fromtimestamp(NOW_S, UTC))
    assert row[:5] == ["web.main", "team/app:1", "Pulling", "39%", "40 of 100 B"]
    assert row[6:9] == ["10s", "n1", "4 B/s"]


def test_the_line_has_a_column_where_there_is_one() -> None:
    queued = pull(Report(IMAGE, "", 0, 0, phase="waiting", queue_position=2))
    for pulls, priority in (((), 1), ((queued,), 0)):
        shown = table(objects_of([pod()], pulls, "n1"), {})
        (column,) = [column for column in shown["columnDefinitions"] if column["name"] == "Queue"]
        assert column["priority"] == priority


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (119, "119s"),
        (130, "2m"),
        (7200, "120m"),
        (3 * 3600, "3h"),
        (3 * 86400, "3d"),
    ],
)
def test_ages(seconds: int, text: str) -> None:
    now = datetime.fromtimestamp(NOW_S + seconds, UTC)
    assert age("2026-11-22T22:38:30Z", now) == text


def test_a_store_forgets_and_says_so() -> None:
    store = ObjectStore(7, NOW_S)
    begun = store.version
    objects = objects_of([pod()], (), "n1")
    assert store.replace(objects, NOW_S + 1)
    (made,) = store.since(begun)
    assert made.made == made.changed == store.version
    assert not store.replace(objects, NOW_S + 2)
    assert store.since(made.changed) == []
    with pytest.raises(VersionGone):
        store.since(begun - 1_000_000)
    assert store.replace([], NOW_S + 3)
    (gone,) = store.since(made.changed)
    assert gone.is_gone
    assert gone.changed % 1_000_000 == 7


def test_discovery_describes_the_objects() -> None:
    queued = Report(IMAGE, "", 0, 0, phase="waiting", queue_position=2)
    failed = pull(layer("failed", 5, error="reset"), is_running=False)
    for container, pulls, problem in (
        (WAITING, [pull(layer("downloading", 50), layer("done", 100, "sha256:b"))], ""),
        (WAITING, [pull(layer("extracting", 100))], ""),
        (WAITING, [pull(queued)], ""),
        (BACK_OFF, [failed], ""),
        (WAITING, [], "no runtime here"),
    ):
        (document,) = objects_of([pod(state=container)], pulls, "n1", problem=problem)
        wrong: list[str] = []
        read = fit(document, IMAGE_PULL, wrong)
        assert wrong == []
        assert read == {key: document[key] for key in ("metadata", "spec", "status")}
    fields = IMAGE_PULL["properties"]["status"]["properties"]
    assert fields["phase"]["enum"] == [phase.value for phase in PullPhase]
    assert {name: known["type"] for name, known in fields["sums"]["properties"].items()} == SUMS
    assert fields["layers"]["maxItems"] == MAX_LAYERS
    assert IMAGE_PULL["properties"]["metadata"]["properties"]["name"]["pattern"] == f"^{NAME}$"


def test_a_pod_of_the_same_name_is_another() -> None:
    store = ObjectStore(7, NOW_S)
    store.replace(objects_of([pod()], (), "n1"), NOW_S + 1)
    version = store.version
    store.replace(objects_of([pod()._replace(uid="other")], (), "n1"), NOW_S + 2)
    assert [stored.is_gone for stored in store.since(version)] == [True, False]


def test_label_selectors() -> None:
    (document,) = objects_of([pod()], (), "n1")
    assert parse_query({"labelSelector": ""}).fits(document)
    assert not parse_query({"labelSelector": "a=b"}).fits(document)


def test_field_selectors() -> None:
    (document,) = objects_of([pod()], (), "n1")
    assert parse_fields("metadata.name=web.main,spec.nodeName==n1").fits(document)
    assert not parse_fields("status.phase!=Waiting").fits(document)
    assert parse_fields("metadata.name=web.main").wanted("metadata.name") == "web.main"
    assert parse_fields("metadata.name!=web.main").wanted("metadata.name") == ""


def test_bytes_of_layers_whose_sizes_nobody_knows() -> None:
    """CRI-O shows the bytes received; the agent cannot read a private image's manifest."""
    tracker = Tracker()
    for name in ("layer 1", "layer 2"):
        tracker.tell(Report(IMAGE, name, 5, 0, phase="downloading"), now=0.0)
    (document,) = objects_of([pod()], [tracker.view(0.0).pulls[IMAGE]], "n1")
    assert (document["status"]["progressBytes"], document["status"]["totalBytes"]) == (10, 0)
    assert "percent" not in document["status"]


def test_what_was_complete_at_first_sight_does_not_run() -> None:
    tracker = Tracker()
    tracker.tell(Report(IMAGE, "", 0, 0, "", Phase.DONE), now=5.0)
    view = tracker.view(6.0)
    assert [pull.is_running for pull in pulls_in(view, ())] == [False]
    assert [pull.is_running for pull in pulls_in(view, {IMAGE})] == [True]
