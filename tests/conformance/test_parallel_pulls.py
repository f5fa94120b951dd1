"""The limit on parallel image pulls, as seen at the registry and in the responses."""

from __future__ import annotations

import time
from collections.abc import Iterator

import grpc
import pytest

from pycrictl._proto import cri_pb2
from tests.e2e.node.kubelet import Kubelet
from tests.waiting import wait_until

from .endpoint import MIB, OPTIONS, Endpoint, name_of
from .rules import LIMIT, not_implemented, rule
from .streams import Watcher

TOO_MANY = "TooManyPullingInParallelErr"


@pytest.fixture(scope="module")
def limit(endpoint: Endpoint) -> int:
    if not endpoint.settings.limit:
        not_implemented("LIMIT is not named")
    return endpoint.settings.limit


def images(endpoint: Endpoint, name: str, count: int, size: int = MIB // 2) -> list[str]:
    return [endpoint.publish(f"{name}{n}", endpoint.layers(size)) for n in range(count)]


def asked(endpoint: Endpoint, references: list[str], since: int) -> list[str]:
    repositories = {name_of(reference): reference for reference in references}
    order: dict[str, None] = {}
    for method, path, _ in endpoint.registry.requests[since:]:
        repository = path.removeprefix("/v2/").partition("/blobs/")[0]
        if method == "GET" and "/blobs/" in path and repository in repositories:
            order[repositories[repository]] = None
    return list(order)


class Full:
    """Takes every slot with a stalled pull until the block ends."""

    def __init__(self, endpoint: Endpoint, limit: int) -> None:
        self.endpoint = endpoint
        self.references = images(endpoint, "full", limit)
        self.since = len(endpoint.registry.requests)

    def __enter__(self) -> Full:
        for reference in self.references:
            name = name_of(reference)
            self.endpoint.registry.stall(f"{name}/blobs")
        self.pulls = [self.endpoint.kubelet.start_pull(reference) for reference in self.references]
        for image in self.references:
            wait_for_pull(self.endpoint, image)
        return self

    def __exit__(self, *_: object) -> None:
        self.endpoint.registry.heal()
        for pull in self.pulls:
            wait_until(pull.done)

    def asked(self, references: list[str]) -> list[str]:
        return asked(self.endpoint, references, self.since)


def wait_for_pull(endpoint: Endpoint, reference: str) -> None:
    """Wait until the registry gets a request for an image: its pull has a slot."""
    path = f"/v2/{name_of(reference)}/"
    wait_until(lambda: any(target.startswith(path) for _, target, _ in endpoint.registry.requests))


def code(pull: grpc.Future[cri_pb2.PullImageResponse]) -> grpc.StatusCode | None:
    wait_until(pull.done)
    if pull.cancelled():
        return grpc.StatusCode.CANCELLED
    error = pull.exception()
    if error is None:
        return None
    assert isinstance(error, grpc.Call)
    return error.code()


@rule("L1", "No more images are pulled at once than the limit says; then the next one.", LIMIT)
def test_the_limit(endpoint: Endpoint, limit: int) -> None:
    more = images(endpoint, "more", 2)
    with Full(endpoint, limit) as full:
        pulls = [endpoint.kubelet.start_pull(reference) for reference in more]
        time.sleep(1.5)  # not scaled by the pace: on a busy machine the calls may arrive late
        assert full.asked(more) == []
    assert [code(pull) for pull in (*full.pulls, *pulls)] == [None] * (limit + 2)


@rule("L2", "Who waits is served in the order of arrival.")
def test_the_order(endpoint: Endpoint, limit: int) -> None:
    """Only one slot is freed: pulls that run side by side may overtake one another."""
    more = images(endpoint, "order", 4)
    with Full(endpoint, limit) as full:
        pulls = []
        for reference in more:
            pulls.append(endpoint.kubelet.start_pull(reference))
            time.sleep(0.2)  # not scaled by the pace: on a busy machine the call may arrive late
        full.pulls[0].cancel()
        assert [code(pull) for pull in pulls] == [None] * len(pulls)
        assert full.asked(more) == more


@rule("L3", "Equal pulls take one slot together.", f"{LIMIT} (already in the pulling list)")
def test_equal_pulls(endpoint: Endpoint, limit: int) -> None:
    if limit < 2:
        not_implemented("a limit above 1")
    same, other = images(endpoint, "same", 2)
    name = name_of(same)
    endpoint.registry.stall(f"{name}/blobs")
    pulls = [endpoint.kubelet.start_pull(same) for _ in range(limit + 1)]
    endpoint.pause(0.5)
    free = endpoint.kubelet.start_pull(other)
    assert code(free) is None
    assert not any(pull.done() for pull in pulls)
    endpoint.registry.heal()
    assert [code(pull) for pull in pulls] == [None] * len(pulls)


@rule("L11", "An equal pull that came later is made, too: a tag may have moved meanwhile.")
def test_an_equal_pull_of_a_tag_that_has_moved(endpoint: Endpoint, limit: int) -> None:
    (reference,) = images(endpoint, "moved", 1)
    name = name_of(reference)
    endpoint.registry.stall(f"{name}/blobs")
    first = endpoint.kubelet.start_pull(reference)
    wait_for_pull(endpoint, reference)
    layers = endpoint.layers(MIB // 2)
    moved = endpoint.layout.image(reference.partition("/")[2], layers)
    endpoint.registry.push(endpoint.layout, moved)
    second = endpoint.kubelet.start_pull(reference)
    endpoint.pause(0.2)
    endpoint.registry.heal()
    assert (code(first), code(second)) == (None, None)
    paths = [path for method, path, _ in endpoint.registry.requests if method == "GET"]
    assert f"/v2/{name}/blobs/{layers[-1].digest}" in paths


@rule("L4", "An image that is present takes no slot.", f"{LIMIT} (if image already exists)")
def test_a_present_image(endpoint: Endpoint, limit: int) -> None:
    reference = endpoint.shell
    with Full(endpoint, limit):
        limit_s = 2 + 8 * endpoint.settings.pace
        assert code(endpoint.kubelet.start_pull(reference, timeout_s=limit_s)) is None


@rule("L5", "A pull that fails gives its slot up.", LIMIT)
def test_a_failed_pull(endpoint: Endpoint, limit: int) -> None:
    failing, good = images(endpoint, "failing", limit), images(endpoint, "good", 1)
    for reference in failing:
        name = name_of(reference)
        endpoint.registry.answer(f"{name}/blobs", 404)
    pulls = [endpoint.kubelet.start_pull(reference) for reference in failing]
    assert all(code(pull) is not None for pull in pulls)
    assert code(endpoint.kubelet.start_pull(good[0], timeout_s=20)) is None


@rule("L6", "A pull that its client gives up leaves the line, and its slot.")
def test_a_client_that_leaves(endpoint: Endpoint, limit: int) -> None:
    left, last = images(endpoint, "left", 2)
    with Full(endpoint, limit) as full:
        leaver = endpoint.kubelet.start_pull(left)
        endpoint.pause(0.3)
        leaver.cancel()
        full.pulls[0].cancel()
        assert code(endpoint.kubelet.start_pull(last, timeout_s=30)) is None
        assert full.asked([left]) == []


@rule("L7", "Who waits longer than its deadline gets DEADLINE_EXCEEDED, and leaves the line.")
def test_a_deadline(endpoint: Endpoint, limit: int) -> None:
    (late,) = images(endpoint, "late", 1)
    with Full(endpoint, limit) as full:
        limit_s = 0.2 + 0.8 * endpoint.settings.pace
        pull = endpoint.kubelet.start_pull(late, timeout_s=limit_s)
        assert code(pull) is grpc.StatusCode.DEADLINE_EXCEEDED
    endpoint.pause(0.5)
    assert full.asked([late]) == []


@rule("L8", "A progress stream says which place a waiting pull has: `queue_position`, from 1.")
def test_the_place_in_line(endpoint: Endpoint, limit: int) -> None:
    first, second = images(endpoint, "place", 2)
    pods = [endpoint.pod(f"line{n}") for n in (1, 2)]
    with Full(endpoint, limit):
        pulls, watchers = [], []
        for reference, pod in zip((first, second), pods, strict=True):
            pulls.append(endpoint.kubelet.start_pull(reference, pod))
            watchers.append(Watcher(endpoint.progress_url(pod=pod.id)))
            wait_until(lambda: watchers[-1].recording.texts)
        places = [watcher.recording.messages[0].get("queue_position") for watcher in watchers]
    if places == [None, None]:
        not_implemented("queue_position, a field of ours")
    assert places == [1, 2]
    assert [code(pull) for pull in pulls] == [None, None]
    assert all(watcher.end().code == 1000 for watcher in watchers)


# A node that refuses pulls instead of queueing them


@pytest.fixture
def strict(endpoint: Endpoint) -> Iterator[Kubelet]:
    """A node whose only slot is taken until the registry is healed."""
    if not endpoint.settings.retry_endpoint:
        not_implemented("RETRY_ENDPOINT is not named")
    with grpc.insecure_channel(endpoint.settings.retry_endpoint, options=OPTIONS) as channel:
        kubelet = Kubelet(channel, cgroup_parent="")
        (first,) = images(endpoint, "strict", 1)
        endpoint.registry.stall(f"{name_of(first)}/blobs")
        running = kubelet.start_pull(first)
        wait_for_pull(endpoint, first)
        yield kubelet
        endpoint.registry.heal()
        assert code(running) is None


@rule("L9", f"A node that lets nobody wait tries 3 times, then fails with {TOO_MANY}.", LIMIT)
def test_too_many(endpoint: Endpoint, strict: Kubelet) -> None:
    (reference,) = images(endpoint, "retry", 1)
    began = time.monotonic()
    refused = strict.start_pull(reference)
    assert code(refused) is grpc.StatusCode.RESOURCE_EXHAUSTED
    tried_s = time.monotonic() - began
    assert isinstance(error := refused.exception(), grpc.Call)
    assert TOO_MANY in (error.details() or "")
    limit_s = endpoint.settings.retry_s
    assert 0.5 * limit_s < tried_s < limit_s + 5


@rule("L10", "Without waiting, a slot that gets free between two tries is taken.", LIMIT)
def test_a_slot_gets_free(endpoint: Endpoint, strict: Kubelet) -> None:
    (reference,) = images(endpoint, "freed", 1)
    waiting = strict.start_pull(reference)
    endpoint.pause(0.2)
    endpoint.registry.heal()
    assert code(waiting) is None
