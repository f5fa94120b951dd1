"""What pulls are called."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pycrictl.kube.pods import Pod, PodImage
from pycrictl.progress.pull_names import Expected, ImageOwners, Names

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
) -> str:
    return names.choose(
        lease_id,
        started_s,
        digests=digests,
        repositories=repositories,
        images=images,
        is_final=is_final,
    )


def expect(names: Names, reference: str, since_s: float = 99.0) -> Expected:
    expected = Expected(reference, since_s)
    names.expect(expected)
    return expected


def test_without_any_clue_it_is_the_digest_but_not_at_once() -> None:
    names = Names()
    assert choose(names, repositories=()) == ""
    assert choose(names, repositories=(), is_final=True) == SHORT


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
    """A retry is another lease; and by its end the pull has left a record of the image."""
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


def test_a_pull_from_before_is_not_the_expected_one() -> None:
    names = Names()
    expect(names, "host:5000/app:1", since_s=101.0)
    assert choose(names) == f"host/app@{SHORT}"


def test_a_pull_of_another_repository_is_not_the_expected_one() -> None:
    names = Names()
    expect(names, "host:5000/other:1")
    assert choose(names) == ""  # its own label may follow an older one
    assert choose(names, is_final=True) == f"host/app@{SHORT}"


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


def test_without_labels_the_order_decides_in_the_end() -> None:
    names = Names()
    expect(names, "host:5000/app:1")
    assert choose(names, repositories=()) == ""
    assert choose(names, repositories=(), is_final=True) == "host:5000/app:1"


def test_what_is_remembered_is_bounded() -> None:
    names = Names()
    for number in range(3000):
        choose(names, digests=[f"sha256:{number:064x}"])
    assert choose(names, digests=[f"sha256:{0:064x}"], repositories=["new/one"]).startswith("new/")
    newest = f"sha256:{2999:064x}"
    assert choose(names, digests=[newest], repositories=["new/one"]).startswith("host/")


# Under the names that pods use

DIGEST, OTHER = f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"
REPOSITORY = ["registry.example/shop/web"]


def pod(name: str, *images: str, started: bool = False) -> Pod:
    needs = tuple(PodImage("c", image, has_started=started) for image in images)
    return Pod("default", name, f"uid-{name}", "Pending", needs, ())


def owners(*pods: Pod) -> ImageOwners:
    return ImageOwners(lambda: pods)


def name(known: ImageOwners, *, digest: str = DIGEST, images: tuple[str, ...] = ()) -> str:
    return known.name([digest], REPOSITORY, images)


def test_the_tag_of_the_pod_that_waits() -> None:
    known = owners(
        pod("web", "registry.example:5000/shop/web:1.4"),
        pod("other", "registry.example/shop/other:1"),
        pod("old", "registry.example/shop/web:1.3", started=True),
    )
    assert name(known) == "registry.example:5000/shop/web:1.4"
    assert known.pods_of(name(known)) == "default/web"


def test_no_pod_waits_for_it() -> None:
    assert name(owners()) == ""
    assert name(owners(pod("old", "registry.example/shop/web:1", started=True))) == ""
    assert owners().pods_of("") == ""


def test_a_digest_decides() -> None:
    reference = f"registry.example/shop/web@{OTHER}"
    known = owners(pod("web", "registry.example/shop/web:1"), pod("exact", reference))
    assert name(known, digest=OTHER) == reference
    assert name(known) == "registry.example/shop/web:1"


def test_of_two_tags_the_one_that_the_node_has_under_that_digest() -> None:
    known = owners(pod("a", "registry.example/shop/web:1"), pod("b", "registry.example/shop/web:2"))
    assert name(known, images=("registry.example/shop/web:2",)) == "registry.example/shop/web:2"


def test_two_tags_that_may_both_be_meant() -> None:
    known = owners(pod("a", "registry.example/shop/web:1"), pod("b", "registry.example/shop/web:2"))
    assert name(known) == ""
    found = choose(Names(known), digests=[DIGEST], repositories=REPOSITORY)
    assert found == f"registry.example/shop/web@{DIGEST[:19]}"
    assert known.pods_of(found) == ""


def test_pods_that_wait_for_one_image() -> None:
    known = owners(*(pod(name, "registry.example/shop/web:1") for name in "abc"))
    assert known.pods_of(name(known)) == "default/a and 2 more"


def test_another_pull_from_the_same_repository_keeps_a_name_of_its_own() -> None:
    names = Names(owners(pod("web", "registry.example/shop/web:1")))
    assert (
        choose(names, digests=[DIGEST], repositories=REPOSITORY, is_final=True)
        == "registry.example/shop/web:1"
    )
    assert (
        choose(names, digests=[OTHER], repositories=REPOSITORY)
        == f"registry.example/shop/web@{OTHER[:19]}"
    )
    assert choose(names, digests=[DIGEST], repositories=REPOSITORY) == "registry.example/shop/web:1"
