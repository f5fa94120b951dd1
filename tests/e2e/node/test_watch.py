"""Pulls on a real containerd, as seen from outside."""

from __future__ import annotations

import time

import pytest

from pycrictl.base.errors import ConnectError, Unavailable
from pycrictl.pulls.state import Phase
from pycrictl.runtime.containerd.grpc_client import ContainerdClient
from tests.runtime.containerd.watching import Watch

from .images import Image, zero_file
from .lab import MIB, Lab

ORDER = [Phase.WAITING, Phase.DOWNLOADING, Phase.WAITING, Phase.EXTRACTING, Phase.DONE]


@pytest.fixture
def client(lab: Lab) -> ContainerdClient:
    # The timeout allows for a machine that runs many tests at once.
    return ContainerdClient(lab.node.endpoint.removeprefix("unix://"), timeout_s=20)


@pytest.fixture
def watch(client: ContainerdClient) -> Watch:
    return Watch(client)


def shown_name(image: Image) -> str:
    repository = image.name.rpartition(":")[0]
    return f"127.0.0.1/{repository}@{image.manifest_digest[:19]}"


def assert_whole(watch: Watch, image: Image) -> None:
    """Assert that the bytes of the manifest are accounted for, and nothing else."""
    layers = watch.layers(shown_name(image))
    assert [item.name for item in layers] == [layer.digest for layer in image.layers]
    assert [item.progress for item in layers] == [layer.size_bytes for layer in image.layers]
    assert [item.total for item in layers] == [layer.size_bytes for layer in image.layers]
    assert all(item.phase in (Phase.DONE, Phase.PRESENT) for item in layers)
    assert watch.error(shown_name(image)) == ""


def test_a_pull_of_six_layers(lab: Lab, watch: Watch) -> None:
    zeros = lab.layout.layer([zero_file("zeros", 150 * MIB)])
    layers = lab.layout.random_layers([3 * MIB, 2 * MIB, 4 * MIB, 1 * MIB], seed=1)
    image = lab.layout.image("six:1", [lab.base, *layers, zeros])
    lab.registry.limit(10 * MIB)
    pod = lab.node.kubelet.run_pod("web")
    pull = lab.node.kubelet.start_pull(lab.push(image), pod)
    watch.until(pull.done, interval_s=0.01)
    watch.until(lambda: watch.endings)
    assert pull.result().image_ref == image.config_digest
    name = shown_name(image)
    assert watch.endings == [(name, "")]
    assert_whole(watch, image)
    assert watch.tracker.view(time.monotonic()).sums.progress == image.layers_bytes

    assert watch.phases(name, lab.base.digest) == [Phase.PRESENT]
    for layer in image.layers[1:]:
        way = watch.ways[name, layer.digest]
        progress = [item.progress for item in way]
        assert progress == sorted(progress)
        phases = watch.phases(name, layer.digest)
        order = iter(ORDER)
        assert all(phase in order for phase in phases), phases
        assert phases[-1] is Phase.DONE
        assert {item.total for item in way} == {layer.size_bytes}
    assert watch.phases(name, image.layers[4].digest)[0] is Phase.WAITING
    extracting = [item for item in watch.ways[name, zeros.digest] if item.phase is Phase.EXTRACTING]
    assert {item.extracted_total for item in extracting} <= {zeros.unpacked_bytes, 0}
    assert any(MIB < item.extracted < zeros.unpacked_bytes for item in extracting)
    assert watch.items[name, zeros.digest].extracted == zeros.unpacked_bytes
    assert max(watch.downloading) in (3, 4)  # one is verified while the next begins


def test_a_killed_containerd_and_a_resumed_pull(lab: Lab, watch: Watch) -> None:
    image = lab.image("resume:1", 8 * MIB, 1 * MIB)
    reference = lab.push(image)
    name = shown_name(image)
    large = image.layers[1].digest
    lab.registry.limit(3 * MIB)
    doomed = lab.node.kubelet.start_pull(reference)
    watch.until(lambda: (name, large) in watch.items)
    watch.until(lambda: watch.items[name, large].progress > 2 * MIB)
    lab.node.kill9()
    with pytest.raises((ConnectError, Unavailable)):
        watch.poll(time.monotonic())
    assert doomed.exception() is not None
    assert watch.items[name, large].phase is Phase.DOWNLOADING
    lab.node.start()
    assert lab.node.store.leases()  # the dead pull's
    (kept,) = lab.node.store.ingests().values()
    watch.until(lambda: watch.endings, survives=(ConnectError, Unavailable))
    assert [(image, bool(error)) for image, error in watch.endings] == [(name, True)]
    assert watch.endings[0][1].startswith("containerd was restarted during the pull (")
    assert not watch.results[-1].active

    late = Watch(watch.client)  # sees traces of the dead pull, but no pull
    for _ in range(3):
        assert not late.poll(time.monotonic()).active
    assert late.items == {}

    pull = lab.node.kubelet.start_pull(reference)
    late.until(lambda: (name, large) in late.items)
    assert late.items[name, large].progress >= kept[0] > 2 * MIB
    assert late.items[name, large].resumed >= kept[0]
    lab.registry.limit(None)
    late.until(pull.done)
    late.until(lambda: not late.results[-1].active)
    assert late.endings == [(name, "")]
    assert_whole(late, image)
    assert len(lab.node.store.leases()) == 1


def test_pods_and_containers_are_no_pulls(lab: Lab, watch: Watch) -> None:
    """containerd also takes a lease to create a container."""
    lab.node.kubelet.pull(lab.reference(lab.busybox))
    watch.until(lambda: not watch.results[-1].active)
    seen = len(watch.results)
    pod = lab.node.kubelet.run_pod("web")
    container = lab.node.kubelet.create_container(pod, lab.reference(lab.busybox))
    lab.node.kubelet.start_container(container)
    for _ in range(5):
        watch.poll(time.monotonic())
    assert all(not result.active and not result.ended for result in watch.results[seen:])
