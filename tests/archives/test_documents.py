"""Which images an archive names, and what they consist of."""

from __future__ import annotations

import pytest

from pycrictl.archives import documents
from pycrictl.archives.documents import Root
from pycrictl.errors import ArchiveError

from .archives import CONFIG, LAYER, MANIFEST, described, digest_of, index, written


def test_children_of_a_manifest_are_config_and_layers() -> None:
    children, is_index = documents.children(MANIFEST)
    assert [child["digest"] for child in children] == [digest_of(CONFIG), digest_of(LAYER)]
    assert not is_index


def test_a_config_refers_to_nothing() -> None:
    assert documents.children(CONFIG) == ([], False)


@pytest.mark.parametrize(
    "entry", [{}, {"digest": "sha256:12", "size": 1}, {"digest": digest_of(b""), "size": "1"}]
)
def test_a_descriptor_needs_digest_and_size(entry: dict[str, object]) -> None:
    with pytest.raises(ArchiveError, match="digest and size"):
        documents.children(written({"manifests": [entry]}))


@pytest.mark.parametrize(
    ("name", "names"),
    [("example.org/a:1", ("example.org/a:1",)), ("a:1", ("a:1",)), ("1.4", ()), ("", ())],
)
def test_a_mere_tag_names_no_image(name: str, names: tuple[str, ...]) -> None:
    (root,) = documents.roots_of_index(index((MANIFEST, name)))
    assert root.names == names


@pytest.mark.parametrize(
    ("its", "wanted", "runs"),
    [
        ("linux/amd64", "linux/amd64", True),
        ("linux/arm64/v8", "linux/arm64", True),
        ("linux/arm/v7", "linux/arm/v6", False),
        ("linux/arm64", "linux/arm", False),
        ("", "linux/arm", True),
    ],
)
def test_platforms(its: str, wanted: str, runs: bool) -> None:
    keys = ("os", "architecture", "variant")
    platform = dict(zip(keys, its.split("/"), strict=False)) if its else {}
    assert documents.runs_on({"platform": platform}, wanted) is runs


def test_layers_of_docker_are_told_apart_by_their_first_bytes() -> None:
    assert documents.layer_type(b"\x1f\x8b\x08").endswith(".tar+gzip")
    assert documents.layer_type(b"\x28\xb5\x2f\xfd").endswith(".tar+zstd")
    assert documents.layer_type(LAYER[:4]).endswith(".tar")


def test_names_are_canonical() -> None:
    roots = [Root(described(MANIFEST), ("app:1", "docker.io/library/app:2"))]
    names = ["docker.io/library/app:1", "docker.io/library/app:2"]
    assert list(documents.by_name(roots, "")) == names


@pytest.mark.parametrize(
    ("names", "name", "error"),
    [
        ([()], "", "1 of 1 images have no name"),
        ([(), ()], "app:1", "2 of 2 images have no name"),
        ([("a:1",)], "app:1", "every image in the archive has a name"),
        ([("a:1",), ("docker.io/library/a:1",)], "", "two images in the archive are named"),
        ([("Upper/a:1",)], "", "names no image"),
    ],
)
def test_names_that_cannot_be(names: list[tuple[str, ...]], name: str, error: str) -> None:
    roots = [Root(described(f"{n}".encode()), each) for n, each in enumerate(names)]
    with pytest.raises(ArchiveError, match=error):
        documents.by_name(roots, name)
