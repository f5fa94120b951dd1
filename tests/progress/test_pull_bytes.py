"""What a pull took, judged by what containerd's stores hold after it."""

from __future__ import annotations

import pytest

from pycrictl.containerd.grpc_client import ContainerdClient, Documents
from pycrictl.progress.pull_bytes import PullBytes, weigh
from tests.containerd.fakectd import FakeContainerd
from tests.containerd.fixtures import client, fake
from tests.containerd.made import START_S, Made, digest_of

__all__ = ["client", "fake"]

NAME = "host/a:1"


@pytest.fixture
def image(fake: FakeContainerd) -> Made:
    """Three layers of 1,000 bytes; the first was there a minute before the pull."""
    image = Made(fake, "a", ["one", "two", "three"])
    image.begin("lease")
    for number in range(3):
        at_s = START_S - 60 if number == 0 else START_S + 1
        image.complete(number, at_s=at_s)
        image.commit(number, at_s=at_s)
        fake.snapshots[image.chain_ids[number]].usage = 4000 + number
    fake.images[NAME] = image.manifest
    return image


def weighed(client: ContainerdClient) -> PullBytes | None:
    return weigh(client, Documents(client), snapshotter="overlayfs", name=NAME, since_s=START_S)


def test_new_layers_were_got_and_old_ones_reused(image: Made, client: ContainerdClient) -> None:
    assert weighed(client) == PullBytes(image.manifest, 2000, 1000, 8003)


def test_without_blobs_the_snapshots_say_it(
    image: Made, client: ContainerdClient, fake: FakeContainerd
) -> None:
    for layer in image.layers:
        del fake.blobs[layer]
    assert weighed(client) == PullBytes(image.manifest, 2000, 1000, 8003)


def test_of_an_index_the_manifest_that_is_there(
    image: Made, client: ContainerdClient, fake: FakeContainerd
) -> None:
    index = digest_of("index")
    others = [{"digest": digest_of("arm")}, {"digest": image.manifest}]
    fake.put_document(index, {"manifests": others}, START_S)
    fake.images[NAME] = index
    assert weighed(client) == PullBytes(index, 2000, 1000, 8003)


def test_what_is_not_unpacked_was_only_got(
    image: Made, client: ContainerdClient, fake: FakeContainerd
) -> None:
    fake.put_document(image.config, {"rootfs": {"diff_ids": []}}, START_S)
    assert weighed(client) == PullBytes(image.manifest, 2000, 1000, 0)


def test_an_unknown_snapshotter(
    image: Made, client: ContainerdClient, fake: FakeContainerd
) -> None:
    fake.snapshotter = "stargz"
    assert weighed(client) == PullBytes(image.manifest, 2000, 1000, 0)


def test_an_image_that_is_gone(client: ContainerdClient, fake: FakeContainerd) -> None:
    assert weighed(client) is None
    fake.images[NAME] = digest_of("collected")
    assert weighed(client) is None
