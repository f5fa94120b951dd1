"""Pulls under the names that pods use."""

from __future__ import annotations

from pycrictl.kube.pods import Pod, PodImage
from pycrictl.progress.owners import ImageOwners
from pycrictl.progress.pull_names import Names

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
    assert known.is_one_of(name(known), ["registry.example:5000/shop/web:1.4"])
    assert not known.is_one_of(name(known), ["registry.example/shop/other:1"])


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
    tags = [f"registry.example/shop/web:{number}" for number in (1, 2, 3)]
    known = owners(pod("a", tags[0]), pod("b", tags[1]), pod("c", tags[0]))
    found = name(known)
    assert found == f"one of {tags[0]}, {tags[1]} (sha256:{'1' * 12})"
    assert name(known, digest=OTHER) != found
    assert known.pods_of(found) == "default/a and 2 more"
    assert [known.is_one_of(found, [tag]) for tag in tags] == [True, True, False]


def choose(names: Names, lease: str, digest: str) -> str:
    return names.choose(
        lease, 0.0, digests=[digest], repositories=REPOSITORY, images=(), earlier=0, is_final=True
    )


def test_another_pull_from_the_same_repository_keeps_a_name_of_its_own() -> None:
    names = Names(owners(pod("web", "registry.example/shop/web:1")))
    assert choose(names, "one", DIGEST) == "registry.example/shop/web:1"
    assert choose(names, "two", OTHER) == f"registry.example/shop/web@{OTHER[:19]}"
    assert choose(names, "again", DIGEST) == "registry.example/shop/web:1"
