"""Pulls in several namespaces of one containerd; each fake stands for one of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pycrictl.containerd.grpc_client import ContainerdClient
from pycrictl.progress.content_watcher import ContentWatcher
from pycrictl.progress.namespaces import LIST_AGAIN_S, NamespacesWatcher
from pycrictl.progress.sources import ImageTracker
from tests.containerd.fakectd import EXPIRES, FakeContainerd
from tests.containerd.made import Made


@pytest.fixture
def fakes(tmp_path: Path) -> Iterator[dict[str, FakeContainerd]]:
    found = {}
    for name in ("k8s.io", "moby"):
        (tmp_path / name).mkdir()
        found[name] = FakeContainerd(tmp_path / name)
        found[name].namespace = name
    with found["k8s.io"], found["moby"]:
        yield found


def begin(fake: FakeContainerd) -> Made:
    made = Made(fake, "app", ["a"])
    made.begin("lease", at_s=time.time())
    made.download(0, 300, at_s=time.time())
    return made


def watcher(fakes: dict[str, FakeContainerd], *wanted: str) -> NamespacesWatcher:
    def open_one(name: str) -> ContentWatcher:
        return ContentWatcher(ContainerdClient(fakes[name].path, namespace=name))

    return NamespacesWatcher(open_one, lambda: fakes["k8s.io"].namespaces, wanted)


def names(tracker: ImageTracker) -> list[str]:
    return [item.image for item in tracker.view(0.0).items]


def test_another_namespace_is_part_of_the_name(fakes: dict[str, FakeContainerd]) -> None:
    made = [begin(fake) for fake in fakes.values()]
    made[1].lease.labels = {**EXPIRES, "moby/prune.images": "true"}
    shown = made[0].shown_name
    many, tracker = watcher(fakes), ImageTracker()
    result = many.poll(tracker, 0.0)
    assert [pull.image for pull in result.active] == [shown]
    fakes["k8s.io"].namespaces = ["k8s.io", "moby"]
    assert len(many.poll(tracker, LIST_AGAIN_S - 1).active) == 1
    result = many.poll(tracker, LIST_AGAIN_S + 1)
    assert [pull.image for pull in result.active] == [shown, f"{shown} (moby)"]
    assert names(tracker) == [shown, f"{shown} (moby)"]
    fakes["moby"].leases.clear()
    (ended,) = many.poll(tracker, LIST_AGAIN_S + 2).ended
    assert ended.image == f"{shown} (moby)"


def test_only_one_namespace(fakes: dict[str, FakeContainerd]) -> None:
    made = [begin(fake) for fake in fakes.values()]
    tracker = ImageTracker()
    watcher(fakes, "moby").poll(tracker, 0.0)
    assert names(tracker) == [f"{made[1].shown_name} (moby)"]
    assert not fakes["k8s.io"].calls
