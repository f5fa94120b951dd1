from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl._proto import cri_pb2
from pycrictl.runtime.cri.calls.client import CriClient
from pycrictl.runtime.cri.lists.images import (
    apply_filters,
    parse_filters,
    select_by_name,
    sort_images,
    unused_images,
)
from tests.captures.scene import fake_images, hex_id
from tests.fakecri import FakeServer


def digest(repository: str, number: int) -> str:
    return f"{repository}@sha256:{hex_id(number)}"


def image(number: int, *tags: str, digests: tuple[str, ...] = ()) -> cri_pb2.Image:
    return cri_pb2.Image(id=f"sha256:{hex_id(number)}", repo_tags=tags, repo_digests=digests)


def numbers(images: list[cri_pb2.Image]) -> list[int]:
    return [int(image.id[7:9], 16) for image in images]


IMAGES = sort_images(fake_images())

IDS = st.integers(0, 255)
IMAGE_LISTS = st.lists(
    st.builds(image, IDS, st.sampled_from(["a:1", "b:1", "c:1", "<none>:<none>"]))
    | st.builds(lambda number: image(number, digests=(digest("b", number),)), IDS)
    | st.builds(image, IDS),
    unique_by=lambda image: image.id,
    max_size=12,
)


@given(IMAGE_LISTS.flatmap(lambda images: st.tuples(st.just(images), st.permutations(images))))
def test_the_order_does_not_depend_on_the_runtimes(
    both: tuple[list[cri_pb2.Image], list[cri_pb2.Image]],
) -> None:
    images, shuffled = both
    expected = sort_images(images)
    assert sort_images(shuffled) == expected
    assert sorted(numbers(expected)) == sorted(numbers(images))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("", [2, 1, 3, 4, 5, 8, 6, 7]),
        ("a.io/one", [2]),
        ("a.io/one:latest", [2]),
        ("one", [2]),
        ("two:2", [1]),
        ("b.io/alias", [1]),
        ("wo", []),
        ("c.io/dig", [3]),
        (digest("c.io/dig", 24), [3]),
        (digest("c.io/dig", 25), []),
        ("localhost:5000/x/y", [6]),
        ("0101", [1]),
        ("010", []),
        (f"sha256:{hex_id(4)}", [4]),
        ("sha256:0404", [4]),
        ("notag", [7]),
        ("nosuch", []),
    ],
)
def test_names(name: str, expected: list[int]) -> None:
    assert numbers(select_by_name(IMAGES, name)) == expected


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (["dangling=true"], [3, 4]),
        (["dangling="], []),
        (["reference=^b"], [1, 7]),
        (["reference=<none>"], [4, 5, 6]),
        (["since=b.io/two:1"], [2]),
        ([f"since={digest('c.io/dig', 24)[:20]}"], [2, 1]),
        (["since=0303"], [2, 1]),
        (["before=nosuch:1"], [2, 1, 3, 4, 5, 8, 6, 7]),
        (["since=c.io/dig@sha256:00"], [2, 1, 3, 4, 5, 8, 6, 7]),
        (["before=a.io/one:latest", "since=0808", "dangling=true"], [3, 4]),
    ],
)
def test_filters(filters: list[str], expected: list[int]) -> None:
    assert numbers(apply_filters(IMAGES, parse_filters(filters))) == expected


# Removal


def listed(number: int, *tags: str, pinned: bool = False, digest: str = "") -> cri_pb2.Image:
    digests = [digest] if digest else []
    return cri_pb2.Image(
        id=f"sha256:{number:064x}", repo_tags=tags, repo_digests=digests, pinned=pinned
    )


def container(name: str = "", *, ref: str = "", image_id: str = "") -> cri_pb2.Container:
    return cri_pb2.Container(
        id="c", image=cri_pb2.ImageSpec(image=name), image_ref=ref, image_id=image_id
    )


def unused(fake: FakeServer, images: list[cri_pb2.Image]) -> set[int]:
    with CriClient(fake.path, timeout_s=5.0) as client:
        ids = unused_images(client, client, images)
    return {int(image_id.removeprefix("sha256:"), 16) for image_id in ids}


def prepare(fake: FakeServer, *containers: cri_pb2.Container, sandbox: str | None = None) -> None:
    fake.prepare("ListContainers", cri_pb2.ListContainersResponse(containers=containers))
    info = {} if sandbox is None else {"config": sandbox}
    fake.prepare("Status", cri_pb2.StatusResponse(info=info))


def test_pinned_and_used_images_stay(fake: FakeServer) -> None:
    images = [
        listed(1, "x/pinned:1", pinned=True),
        listed(2, "x/by-name:1"),
        listed(3, "x/by-ref:1"),
        listed(4, digest="x/by-digest@sha256:aa"),
        listed(5, "x/by-id:1"),
        listed(6, "x/free:1"),
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
    images = [listed(1, "docker.io/library/busybox:latest"), listed(2, "x/free:1")]
    prepare(fake, container("busybox"))
    image = images[0] if is_there else None
    fake.prepare("ImageStatus", cri_pb2.ImageStatusResponse(image=image))
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
    assert unused(fake, [listed(1, "x/pause:3.9")]) == (set() if kept else {1})
