"""The watcher against a real gRPC server that plays recorded and made-up pulls."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import grpc
import pytest

from pycrictl.base.errors import Unavailable
from pycrictl.kube.pods import Pod, PodImage
from pycrictl.pulls.reference import Match, match
from pycrictl.pulls.sources.pull_names import Expected, ImageOwners
from pycrictl.pulls.state import Phase
from pycrictl.runtime.containerd.grpc_client import ContainerdClient
from tests.runtime.containerd.fakectd import Blob, FakeContainerd, Ingest, Lease, Replay, Snapshot
from tests.runtime.containerd.fixtures import client, fake
from tests.runtime.containerd.made import START_S, Made, digest_of
from tests.runtime.containerd.watching import Watch
from tests.waiting import wait_until

__all__ = ["client", "fake"]

DATA = Path(__file__).parent / "data"
MIB = 1 << 20


@pytest.fixture
def watch(client: ContainerdClient) -> Watch:
    watch = Watch(client)
    # On a busy machine, each measurement takes long, and would be made less often.
    watch.watcher.usage_pause_factor = 0.0
    return watch


# Recorded pulls


def play(watch: Watch, replay: Replay, *, interval_s: float = 0.25) -> None:
    """Poll from the start of a recording until a second after its end."""
    at_s = 0.0
    while at_s < replay.end + 1.0:
        watch.poll(at_s, replay.advance(at_s))
        at_s += interval_s


def test_an_aborted_and_repeated_pull_of_containerd_1_6(watch: Watch, fake: FakeContainerd) -> None:
    play(watch, Replay(fake, DATA / "pull-ctd16-abort.jsonl"))
    big = "127.0.0.1/big@sha256:ba08c26baae1"
    multi = "127.0.0.1/multi@sha256:bfe240068d23"

    assert watch.endings == [
        (big, "the pull ended without an image (1 of 6 layers seen complete)"),
        (multi, ""),
        (big, ""),
    ]
    base, *others = watch.layers(big)
    assert sum(item.total for item in (base, *others)) == 402_186_348
    assert all(item.progress == item.total for item in watch.items.values())
    assert {item.phase for item in watch.items.values()} == {Phase.DONE}
    # Dropped by the abort, fetched again by the retry, and the same items throughout.
    ways = watch.phases(big, others[0].name)
    before, after = ways[: ways.index(Phase.FAILED)], ways[ways.index(Phase.FAILED) + 1 :]
    assert before == [Phase.DOWNLOADING]
    assert after == [Phase.WAITING, Phase.DOWNLOADING, Phase.EXTRACTING, Phase.DONE]
    failed = [item for item in watch.ways[big, others[0].name] if item.phase is Phase.FAILED]
    assert 30_000_000 < failed[0].progress < 80_011_248
    # Layers that containerd 1.6 had not opened are listed from the start, with their sizes.
    assert watch.phases(big, others[-1].name)[0] is Phase.WAITING
    assert {item.total for item in watch.ways[big, others[-1].name]} == {80_011_248}


def test_a_watch_that_begins_late(watch: Watch, fake: FakeContainerd) -> None:
    """Layers that the pull fetched before the first poll are done, not present."""
    replay = Replay(fake, DATA / "pull-ctd16-abort.jsonl")
    big = "127.0.0.1/big@sha256:ba08c26baae1"
    watch.poll(19.4, replay.advance(19.4))
    assert [item.phase for item in watch.layers(big)[:3]] == [Phase.DONE] * 3
    assert watch.results[0].active[0].began_s == pytest.approx(replay.began_s + 9.6, abs=0.1)


# Made-up pulls


def test_present_layers(watch: Watch, fake: FakeContainerd) -> None:
    made = Made(fake, "app", ["unpacked", "packed", "new"])
    fake.snapshots[made.chain_ids[0]] = Snapshot("COMMITTED", START_S - 60)
    fake.blobs[made.layers[1]] = Blob(made.size_bytes, START_S - 60)
    made.begin("lease")
    fake.blobs[made.layers[0]] = Blob(made.size_bytes, START_S - 60)
    made.lease.holds += [  # as in containerd 2.3
        ("content", made.layers[0]), ("snapshots/overlayfs", made.chain_ids[0]),
    ]  # fmt: skip
    watch.poll(0.0, START_S + 1)
    phases = [item.phase for item in watch.layers(made.shown_name)]
    assert phases == [Phase.PRESENT] * 2 + [Phase.WAITING]
    assert [item.progress for item in watch.layers(made.shown_name)] == [1000, 1000, 0]

    made.extract(1, 700)  # it is only to be unpacked
    watch.poll(1.0, START_S + 2)
    item = watch.layers(made.shown_name)[1]
    assert (item.phase, item.progress, item.extracted) == (Phase.EXTRACTING, 1000, 700)
    made.commit(1)
    watch.poll(2.0, START_S + 3)
    assert watch.layers(made.shown_name)[1].phase is Phase.DONE


def test_a_shared_layer_is_followed_under_both_images(watch: Watch, fake: FakeContainerd) -> None:
    """The second lease never holds what the first one fetches."""
    first, second = Made(fake, "one", ["base", "a"]), Made(fake, "two", ["base", "b"])
    first.begin("lease-1")
    second.begin("lease-2", at_s=START_S + 1)
    first.download(0, 400)
    watch.poll(0.0, START_S + 2)
    shared = [watch.items[image.shown_name, first.layers[0]] for image in (first, second)]
    assert [(item.phase, item.progress) for item in shared] == [(Phase.DOWNLOADING, 400)] * 2
    assert watch.tracker.view(0.0).sums.total == 3000  # counted once

    first.complete(0)
    first.extract(0, 55)
    watch.poll(0.3, START_S + 2.3)
    shared = [watch.items[image.shown_name, first.layers[0]] for image in (first, second)]
    assert [(item.phase, item.extracted) for item in shared] == [(Phase.EXTRACTING, 55)] * 2
    first.commit(0, at_s=START_S + 2.4)
    first.complete(1)
    first.commit(1, at_s=START_S + 2.5)
    first.end()  # all between two polls
    watch.poll(0.6, START_S + 2.6)
    assert watch.items[second.shown_name, first.layers[0]].phase is Phase.DONE
    assert watch.endings == [(first.shown_name, "")]


def test_a_pull_that_ends_before_its_second_poll(watch: Watch, fake: FakeContainerd) -> None:
    """It is reported with all its layers, though it had no name while it ran."""
    made = Made(fake, "app", ["a"])
    made.lease = fake.leases["lease"] = Lease(START_S)
    made.add_manifest(source=None)
    watch.poll(0.0, START_S + 0.1)
    assert not watch.items
    made.add_config()
    made.complete(0)
    made.commit(0)
    made.end()
    watch.poll(0.3, START_S + 0.4)
    assert watch.endings == [("host/app:1", "")]
    assert watch.layers("host/app:1")[0].progress == 1000


def test_the_layers_wait_a_second_for_label_and_config(watch: Watch, fake: FakeContainerd) -> None:
    made = Made(fake, "app", ["a"])
    made.lease = fake.leases["lease"] = Lease(START_S)
    assert not watch.poll(0.0, START_S + 0.2).active  # a container being created looks the same
    made.add_manifest(source=None)
    made.lease.holds.append(("ingests", f"config-{made.config}"))
    result = watch.poll(0.2, START_S + 0.4)
    assert [pull.image for pull in result.active] == [""]
    fake.blobs[made.manifest].labels["containerd.io/distribution.source.host"] = "app"
    result = watch.poll(0.4, START_S + 0.6)
    assert [pull.image for pull in result.active] == [made.shown_name]
    assert not watch.items
    watch.poll(1.3, START_S + 1.5)
    assert [item.phase for item in watch.layers(made.shown_name)] == [Phase.WAITING]


def test_an_announced_pull_gets_its_own_name(watch: Watch, fake: FakeContainerd) -> None:
    foreign, own = Made(fake, "other", ["x"]), Made(fake, "app", ["a"])
    expected = Expected("host:5000/app:1", START_S)
    watch.watcher.expect(expected)
    foreign.begin("foreign", at_s=START_S + 0.1)
    own.begin("own", at_s=START_S + 0.2)
    result = watch.poll(0.0, START_S + 1)
    assert [pull.image for pull in result.active] == ["", "host:5000/app:1"]
    assert expected.lease_id == "own"
    watch.watcher.forget(expected)
    result = watch.poll(0.2, START_S + 1.2)
    assert [pull.image for pull in result.active] == [foreign.shown_name, "host:5000/app:1"]
    assert {image for image, _ in watch.items} == {foreign.shown_name, "host:5000/app:1"}


@pytest.mark.parametrize("is_artifact", [True, False])
def test_what_is_not_among_the_images_at_the_end_is_not_done(
    watch: Watch, fake: FakeContainerd, is_artifact: bool
) -> None:
    made = Made(fake, "chart", ["a", "b"])
    made.diff_ids = [] if is_artifact else made.diff_ids
    made.begin("lease")
    made.download(0, 10)
    watch.poll(0.0, START_S + 1)
    made.complete(0)
    made.complete(1)
    if not is_artifact:
        made.commit(0)
    watch.poll(0.3, START_S + 1.3)
    assert watch.tracker.view(0.3).sums.percent != 100
    del fake.leases["lease"]
    watch.poll(0.6, START_S + 1.6)
    reason = "all layers were fetched, but the runtime made no image from them"
    assert watch.endings == [(made.shown_name, reason)]
    assert watch.error(made.shown_name) == reason
    failed = [layer for layer in watch.items.values() if layer.phase is Phase.FAILED]
    assert len(failed) == 1 + is_artifact
    assert watch.tracker.view(0.6).sums.percent != 100


# Finished pulls that were not watched


@pytest.mark.parametrize(
    ("change", "got", "reused", "extracted"),
    [
        ("", 2000, 1000, 8003),
        ("an index", 2000, 1000, 8003),
        ("not unpacked", 2000, 1000, 0),
        ("unpacked anew", 1000, 2000, 8003),
    ],
)
def test_what_a_pull_took(
    watch: Watch, fake: FakeContainerd, change: str, got: int, reused: int, extracted: int
) -> None:
    """The image has three layers of 1,000 bytes; the first existed a minute before the pull."""
    image = Made(fake, "a", ["one", "two", "three"])
    image.begin("lease")
    for number in range(3):
        at_s = START_S - 60 if number == 0 else START_S + 1
        image.complete(number, at_s=at_s)
        image.commit(number, at_s=at_s)
        fake.snapshots[image.chain_ids[number]].usage = 4000 + number
    fake.images["host/a:1"] = image.manifest
    if change == "an index":
        fake.images["host/a:1"] = digest_of("index")
        digests = [digest_of("arm"), image.manifest]
        manifests = [{"digest": digest, "size": 2} for digest in digests]
        fake.put_document(digest_of("index"), {"manifests": manifests}, START_S)
    elif change == "not unpacked":
        fake.put_document(image.config, {"rootfs": {"diff_ids": []}}, START_S)
    elif change == "unpacked anew":
        fake.blobs[image.layers[1]].created_s = START_S - 60
    pull = watch.watcher.ended("host/a:1", START_S)
    assert pull is not None
    assert pull.digest == fake.images["host/a:1"]
    assert (pull.got_bytes, pull.extracted_bytes) == (got, extracted)
    assert sum(layer.total for layer in pull.layers) - pull.got_bytes == reused


# Leases that are not running pulls


def test_leases_of_others_are_ignored(watch: Watch, fake: FakeContainerd) -> None:
    fake.leases["labelled"] = Lease(START_S, labels={"containerd.io/gc.expire": "x", "own": "y"})
    fake.leases["container"] = Lease(START_S, [("snapshots/overlayfs", "container-id")])
    fake.leases["forgotten"] = Lease(START_S - 7200)
    assert not watch.poll(0.0, START_S + 1).active
    assert not watch.poll(1.0, START_S + 2).active
    assert not watch.endings


def test_dead_leases_cost_nothing(
    watch: Watch, fake: FakeContainerd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases from before the daemon's start are dead."""
    # This process is the fake's, too, and has another name.
    monkeypatch.setattr("pycrictl.runtime.containerd.daemon.name_of", lambda pid: "containerd")
    for number in range(300):
        fake.leases[str(number)] = Lease(START_S, [("ingests", f"layer-{digest_of('x')}")])
    for at_s in range(5):
        assert not watch.poll(at_s, START_S + 1000 + at_s).active
    assert fake.calls == {"list_leases": 5}


@pytest.mark.parametrize(("quiet_s", "stalled_s"), [(12.0, 12.0), (2.0, 0.0), (None, 0.0)])
def test_a_stall_before_the_first_step_is_known_from_the_kernel(
    watch: Watch,
    fake: FakeContainerd,
    monkeypatch: pytest.MonkeyPatch,
    quiet_s: float | None,
    stalled_s: float,
) -> None:
    """containerd shows a layer's bytes only once a MiB is complete."""
    monkeypatch.setattr("pycrictl.runtime.containerd.daemon.name_of", lambda pid: "containerd")
    monkeypatch.setattr("pycrictl.pulls.sources.content_watcher.quiet_s", lambda pid: quiet_s)
    made, began_s = Made(fake, "app", ["a"], size_bytes=8 * MIB), time.time()
    made.begin("lease", at_s=began_s)
    made.download(0, 0, at_s=began_s)
    watch.poll(20.0, began_s + 20.0)
    assert watch.layers(made.shown_name)[0].stalled_s == stalled_s


# Cost and faults


def test_what_a_poll_of_40_layers_costs(watch: Watch, fake: FakeContainerd) -> None:
    assert not watch.poll(-1.0, START_S).active
    assert not watch.poll(-0.7, START_S).active
    assert fake.calls == {"list_leases": 2}  # nothing is pulled: one call

    made = Made(fake, "app", [f"layer {number}" for number in range(40)])
    made.begin("lease")
    made.complete(0)
    made.extract(0, 5)
    watch.poll(0.0, START_S + 1)
    assert len(watch.layers(made.shown_name)) == 40
    for step in range(1, 9):
        fake.calls.clear()
        made.download(1, step)
        made.extract(0, step)
        watch.poll(step / 4, START_S + 1 + step / 4)
        assert fake.calls == {
            "list_leases": 1,
            "list_statuses": 1,
            "list_resources": 1,
            "usage": 1,
        }


def test_a_poll_while_layers_only_grow_costs_two_calls(watch: Watch, fake: FakeContainerd) -> None:
    made = [Made(fake, f"app{number}", [f"{number}a", f"{number}b"]) for number in range(3)]
    for number, pull in enumerate(made):
        pull.begin(f"lease-{number}")
        pull.download(0, 1)
    watch.poll(0.0, START_S + 1)
    for step in range(1, 4):
        fake.calls.clear()
        made[0].download(0, step)
        watch.poll(step, START_S + 1 + step)
        assert fake.calls == {"list_leases": 1, "list_statuses": 1}
        assert watch.layers(made[0].shown_name)[0].progress == step
    made[0].complete(0)
    made[1].download(1, 7)
    watch.poll(4.0, START_S + 5)
    assert fake.calls["list_resources"] == 2  # not of the third pull
    assert watch.layers(made[0].shown_name)[0].phase is Phase.WAITING
    assert watch.layers(made[1].shown_name)[1].progress == 7


@pytest.mark.parametrize(
    "method",
    [
        *("list_leases", "list_statuses", "list_resources", "list_content"),
        *("read", "list_images", "list_snapshots", "usage"),
    ],
)
def test_a_failed_poll_loses_nothing(watch: Watch, fake: FakeContainerd, method: str) -> None:
    gone, stays = Made(fake, "gone", ["a"]), Made(fake, "stays", ["b"])
    gone.begin("gone")
    gone.complete(0)
    watch.poll(0.0, START_S + 1)
    gone.commit(0)
    gone.end()
    stays.begin("stays", at_s=START_S + 1)
    stays.complete(0)
    stays.extract(0, 9)
    fake.failures[method] = (grpc.StatusCode.UNAVAILABLE, "shutting down")
    for at_s in (1.0, 1.2):
        with pytest.raises(Unavailable):
            watch.poll(at_s, START_S + 1 + at_s)
    fake.failures.clear()
    watch.poll(2.0, START_S + 3)
    assert watch.endings == [(gone.shown_name, "")]
    assert [pull.image for pull in watch.results[-1].active] == [stays.shown_name]
    assert watch.layers(stays.shown_name)[0].extracted == 9


def test_garbage_in_a_lease_is_no_pull(watch: Watch, fake: FakeContainerd) -> None:
    lease = fake.leases["lease"] = Lease(START_S)
    for number, data in enumerate([b"{", b"[" * 100_000, b'{"layers": 5}', b"\x1f\x8b", b""]):
        digest = digest_of(str(number))
        fake.blobs[digest] = Blob(len(data), START_S, {}, data)
        lease.holds.append(("content", digest))
    lease.holds.append(("ingests", "no digest"))
    lease.holds.append(("snapshots/", ""))
    fake.ingests["no digest"] = Ingest(1, 2, START_S)
    result = watch.poll(0.0, START_S + 1)
    assert [pull.image for pull in result.active] == [""]
    reads = fake.calls["read"]
    watch.poll(0.3, START_S + 1.3)
    assert fake.calls["read"] == reads  # each was read once


# Two tags of one repository


def of_tag(fake: FakeContainerd, tag: str) -> Made:
    made = Made(fake, "pair", [f"layer of {tag}"])
    made.manifest, made.config = digest_of(f"manifest of {tag}"), digest_of(f"config of {tag}")
    return made


def begin(made: Made, lease_id: str, *, at_s: float = START_S) -> None:
    made.lease = made.fake.leases[lease_id] = Lease(at_s)
    made.add_manifest(at_s, source="localhost")
    made.add_config(at_s)


def pods_of_tags(*tags: str) -> list[Pod]:
    images = [PodImage("c", f"localhost:5000/pair:{tag}") for tag in tags]
    return [Pod("default", "web", "u", "Pending", (image,), ()) for image in images]


def of_image(watch: Watch, tag: str) -> dict[Match, list[str]]:
    """Return the first layers of the running pulls, by whether they are of this tag."""
    answers: dict[Match, list[str]] = {}
    for pull in watch.tracker.pulls.values():
        answers.setdefault(match(f"localhost:5000/pair:{tag}", pull), []).append(
            pull.layers[0].name
        )
    return answers


def test_a_second_tag_is_another_pull(watch: Watch, fake: FakeContainerd) -> None:
    pods = pods_of_tags("v1")
    watch.watcher.owners = ImageOwners(lambda: pods)
    first, second = of_tag(fake, "v1"), of_tag(fake, "v2")
    begin(first, "lease-1")
    watch.poll(0.0, START_S + 1)
    pods += pods_of_tags("v2")
    begin(second, "lease-2", at_s=START_S + 3)
    watch.poll(4.0, START_S + 5)
    assert of_image(watch, "v1") == {Match.YES: first.layers, Match.NO: second.layers}
    assert of_image(watch, "v2") == {Match.YES: second.layers, Match.NO: first.layers}


@pytest.mark.parametrize("is_reachable", [True, False])
def test_two_tags_at_once_are_told_apart_by_their_registry_or_not_at_all(
    watch: Watch, fake: FakeContainerd, is_reachable: bool
) -> None:
    made = {tag: of_tag(fake, tag) for tag in ("v1", "v2")}
    tags = {f"localhost:5000/pair:{tag}": image.manifest for tag, image in made.items()}
    watch.watcher.owners = ImageOwners(lambda: pods_of_tags("v1", "v2", "nosuch"))
    watch.watcher.find_digest = lambda name: tags.get(name, "") if is_reachable else None
    for tag, image in made.items():
        begin(image, f"lease-{tag}")
    watch.poll(0.0, START_S + 1)
    wait_until(
        lambda: all(not thread.name.startswith("manifest") for thread in threading.enumerate())
    )
    watch.poll(0.3, START_S + 1.3)
    layers = {tag: image.layers for tag, image in made.items()}
    if is_reachable:
        assert of_image(watch, "v1") == {Match.YES: layers["v1"], Match.NO: layers["v2"]}
        assert of_image(watch, "v2") == {Match.YES: layers["v2"], Match.NO: layers["v1"]}
    else:
        assert set(of_image(watch, "v1")) == set(of_image(watch, "v2")) == {Match.MAYBE}
