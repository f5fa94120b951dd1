from __future__ import annotations

import pytest

from pycrictl._proto import cri_pb2
from pycrictl.runtime.cri.calls.client import CriClient
from pycrictl.runtime.cri.lifecycle import image_removal
from tests.fakecri import FakeServer


def image(number: int, *tags: str, pinned: bool = False, digest: str = "") -> cri_pb2.Image:
    digests = [digest] if digest else []
    return cri_pb2.Image(
        id=f"sha256:{number:064x}", repo_tags=tags, repo_digests=digests, pinned=pinned
    )


def container(name: str = "", *, ref: str = "", image_id: str = "") -> cri_pb2.Container:
    return cri_pb2.Container(
        id="c", image=cri_pb2.ImageSpec(image=name), image_ref=ref, image_id=image_id
    )


def client_of(fake: FakeServer) -> CriClient:
    return CriClient(fake.path, timeout_s=5.0)


def unused(fake: FakeServer, images: list[cri_pb2.Image]) -> set[int]:
    with client_of(fake) as client:
        ids = image_removal.unused_images(client, client, images)
    return {int(image_id.removeprefix("sha256:"), 16) for image_id in ids}


def prepare(fake: FakeServer, *containers: cri_pb2.Container, sandbox: str | None = None) -> None:
    fake.prepare("ListContainers", cri_pb2.ListContainersResponse(containers=containers))
    info = {} if sandbox is None else {"config": sandbox}
    fake.prepare("Status", cri_pb2.StatusResponse(info=info))


def test_pinned_and_used_images_stay(fake: FakeServer) -> None:
    images = [
        image(1, "x/pinned:1", pinned=True),
        image(2, "x/by-name:1"),
        image(3, "x/by-ref:1"),
        image(4, digest="x/by-digest@sha256:aa"),
        image(5, "x/by-id:1"),
        image(6, "x/free:1"),
    ]
    prepare(
        fake,
        container("x/by-name:1"),
        container(f"sha256:{3:064x}", ref=f"sha256:{3:064x}"),
        container("x/moved:1", ref="x/by-digest@sha256:aa"),
        container("", image_id=f"{5:064x}"),
    )
    assert unused(fake, images) == {6}


@pytest.mark.parametrize(("is_there", "expected"), [(True, {2}), (False, {1, 2})])
def test_other_spellings_are_looked_up(
    fake: FakeServer, is_there: bool, expected: set[int]
) -> None:
    images = [image(1, "docker.io/library/busybox:latest"), image(2, "x/free:1")]
    prepare(fake, container("busybox"))
    found = images[0] if is_there else None
    fake.prepare("ImageStatus", cri_pb2.ImageStatusResponse(image=found))
    assert unused(fake, images) == expected
    assert fake.calls[-1].request.image.image == "busybox"


@pytest.mark.parametrize(
    ("config", "kept"),
    [
        ('{"sandboxImage": "x/pause:3.9"}', True),
        ('{"sandboxImage": 5}', False),
        ("[]", False),
        ("{", False),
        (None, False),
    ],
)
def test_the_image_of_sandboxes(fake: FakeServer, config: str | None, kept: bool) -> None:
    prepare(fake, sandbox=config)
    assert unused(fake, [image(1, "x/pause:3.9")]) == (set() if kept else {1})
