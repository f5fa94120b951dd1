"""Names of pulls."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pycrictl.kube.pods import Pod, PodImage
from pycrictl.pulls.sources.pull_names import Expected, ImageOwners, Names
from pycrictl.pulls.state import PullState

MANIFEST, INDEX, ID = ("sha256:" + letter * 64 for letter in "123")
SHORT = f"sha256:{'1' * 12}"


def choose(
    names: Names,
    *,
    lease_id: str = "lease",
    started_s: float = 100.0,
    digests: Sequence[str] = (MANIFEST, INDEX),
    repositories: Sequence[str] = ("host/app",),
    images: Sequence[str] = (),
    is_final: bool = False,
    candidates: Sequence[str] = (),
) -> str:
    return names.choose(
        lease_id,
        started_s,
        digests=digests,
        repositories=repositories,
        images=images,
        is_final=is_final,
        candidates=candidates,
    )


def expect(names: Names, reference: str, since_s: float = 99.0) -> Expected:
    expected = Expected(reference, since_s)
    names.expect(expected)
    return expected


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        ([ID, f"host:5000/app@{INDEX}", "host:5000/app:1"], "host:5000/app:1"),
        ([ID, f"host:5000/app@{INDEX}"], f"host:5000/app@{INDEX}"),
        (["a.io/other:1", "host:5000/app:2", "host:5000/app:1"], "host:5000/app:1"),
        (["a.io/other:1"], "a.io/other:1"),
        ([ID], f"host/app@{SHORT}"),
    ],
)
def test_an_image_that_the_node_has(images: list[str], expected: str) -> None:
    assert choose(Names(), images=images) == expected


def test_a_name_stays() -> None:
    """The name outlasts a retry, which has another lease, and the record that a pull leaves."""
    names = Names()
    first = choose(names)
    assert choose(names, lease_id="retry", images=["host:5000/app:1"]) == first
    assert choose(names, digests=["sha256:" + "4" * 64]) != first


def test_an_expected_pull() -> None:
    names = Names()
    expected = expect(names, "host:5000/app:1")
    assert choose(names, images=["host:5000/app:latest"]) == "host:5000/app:1"
    assert expected.lease_id == "lease"
    assert choose(names, lease_id="retry") == "host:5000/app:1"


@pytest.mark.parametrize(
    ("reference", "since_s", "at_once"),
    [
        ("host:5000/app:1", 101.0, f"host/app@{SHORT}"),  # it was asked for later
        ("host:5000/other:1", 99.0, ""),  # a label of its own may follow an older one
    ],
)
def test_a_pull_that_is_not_the_expected_one(reference: str, since_s: float, at_once: str) -> None:
    names = Names()
    expect(names, reference, since_s)
    assert choose(names) == at_once
    assert choose(names, is_final=True) == f"host/app@{SHORT}"


@pytest.mark.parametrize(
    ("expected", "name"), [("host:5000/app:1", "host:5000/app:1"), ("", SHORT)]
)
def test_without_labels_it_is_what_is_expected_or_the_digest_in_the_end(
    expected: str, name: str
) -> None:
    names = Names()
    if expected:
        expect(names, expected)
    assert choose(names, repositories=()) == ""
    assert choose(names, repositories=(), is_final=True) == name


def test_a_digest_needs_no_guess() -> None:
    names = Names()
    other = expect(names, f"host/app@{ID}")
    own = expect(names, f"host/app:tag@{INDEX}")
    assert choose(names, repositories=()) == f"host/app:tag@{INDEX}"
    assert (own.lease_id, other.lease_id) == ("lease", None)
    assert choose(names, lease_id="later", digests=["sha256:" + "4" * 64]).startswith("host/app@")


def test_pulls_of_one_repository_are_told_by_their_order() -> None:
    names = Names()
    for tag in "12":
        expect(names, f"host:5000/app:{tag}")
    assert choose(names, lease_id="1st", digests=[MANIFEST]) == "host:5000/app:1"
    assert choose(names, lease_id="2nd", digests=[INDEX]) == "host:5000/app:2"
    assert choose(names, lease_id="3rd", digests=[ID]) == f"host/app@{ID[:19]}"


# Under the names that pods use

HOST = "registry.example"
ONE, TWO, EXACT = (f"{HOST}/shop/web{end}" for end in (":1", ":2", f"@{INDEX}"))


def pod(name: str, *images: str, started: bool = False) -> Pod:
    needs = tuple(PodImage("c", image, has_started=started) for image in images)
    return Pod("default", name, f"uid-{name}", "Pending", needs, ())


@pytest.mark.parametrize(
    ("waiting", "digest", "images", "name", "pods"),
    [
        (["a:5000/shop/web:1"], MANIFEST, [], "", ""),
        ([f"{HOST}:5000/shop/web:1.4", f"{HOST}/shop/other:1"], MANIFEST, [], 0, "default/a"),
        ([ONE, EXACT], INDEX, [], 1, "default/b"),
        ([ONE, EXACT], MANIFEST, [], 0, "default/a"),
        (
            [ONE, TWO],
            MANIFEST,
            [TWO],
            1,
            "default/b",
        ),
        ([ONE, TWO], MANIFEST, [], "", ""),
        ([ONE] * 3, MANIFEST, [], 0, "default/a and 2 more"),
    ],
    ids=["none", "repository", "digest", "tag", "the node's", "two tags", "three pods"],
)
def test_the_name_that_waiting_pods_use(
    waiting: list[str], digest: str, images: list[str], name: int | str, pods: str
) -> None:
    owners = ImageOwners(
        lambda: [
            pod("old", f"{HOST}/shop/web:1.3", started=True),
            *(pod("abc"[number], image) for number, image in enumerate(waiting)),
        ]
    )
    candidates = owners.candidates([digest], [f"{HOST}/shop/web"], images)
    sure = candidates[0] if len(candidates) == 1 else ""
    assert sure == (waiting[name] if isinstance(name, int) else name)
    assert PullState(pods=owners.pods_of(sure)).pod == pods


def test_what_is_no_candidate() -> None:
    """What another running pull is for, and what the kubelet said has failed since it began."""
    broken = pod("broken", TWO)
    images = (broken.images[0]._replace(reason="ErrImagePull"),)
    owners = ImageOwners(lambda: [pod("web", ONE), broken._replace(images=images, status_s=50.0)])
    terms: tuple[list[str], ...] = ([MANIFEST], [f"{HOST}/shop/web"], [])
    assert owners.candidates(*terms, began_s=60.0) == [ONE, TWO]  # it may be its next attempt
    assert owners.candidates(*terms, began_s=40.0) == [ONE]
    assert owners.candidates(*terms, began_s=60.0, taken={ONE}) == [TWO]
    later = pod("later", TWO)._replace(created="2026-11-22T22:38:30Z")
    owners = ImageOwners(lambda: [pod("web", ONE), later])
    assert owners.candidates(*terms, began_s=later.created_s - 1) == [ONE]
    assert owners.candidates(*terms, began_s=later.created_s) == [ONE, TWO]
