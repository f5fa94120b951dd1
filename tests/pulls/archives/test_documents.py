"""Which images an archive names, and what they consist of."""

from __future__ import annotations

import pytest

from pycrictl.base.errors import ArchiveError
from pycrictl.pulls.archives import documents
from pycrictl.pulls.archives.documents import DockerImage, Root
from pycrictl.runtime.containerd.store import Manifest, parse_document

from .archives import LAYER, MANIFEST, digest_of, index, written


@pytest.mark.parametrize(
    "entry", [{}, {"digest": "sha256:12", "size": 1}, {"digest": digest_of(b""), "size": "1"}]
)
def test_an_image_needs_digest_and_size(entry: dict[str, object]) -> None:
    with pytest.raises(ArchiveError, match="digest and size"):
        documents.listed({"index.json": written({"manifests": [entry]})})


@pytest.mark.parametrize(
    ("name", "names"),
    [("example.org/a:1", ("example.org/a:1",)), ("a:1", ("a:1",)), ("1.4", ()), ("", ())],
)
def test_a_mere_tag_names_no_image(name: str, names: tuple[str, ...]) -> None:
    (root,) = documents.listed({"index.json": index((MANIFEST, name))})
    assert root.names == names


def test_dockers_list_counts_without_an_index() -> None:
    listed = written([{"Config": "c.json", "Layers": ["a/layer.tar"], "RepoTags": ["a:1"]}])
    image = DockerImage("c.json", ("a/layer.tar",), ("a:1",))
    assert documents.listed({"manifest.json": listed}) == [image]
    assert documents.listed({"manifest.json": listed, "index.json": index()}) == []


def test_layers_of_docker_are_told_apart_by_their_first_bytes() -> None:
    assert documents.layer_type(b"\x1f\x8b\x08").endswith(".tar+gzip")
    assert documents.layer_type(b"\x28\xb5\x2f\xfd").endswith(".tar+zstd")
    assert documents.layer_type(LAYER[:4]).endswith(".tar")


def test_what_is_written_is_read_again() -> None:
    manifest = parse_document(MANIFEST)
    assert isinstance(manifest, Manifest)
    assert parse_document(documents.manifest(manifest)) == manifest
    target = documents.described(MANIFEST, documents.MANIFEST)._replace(platform="linux/arm/v7")
    root = Root(target, ("example.org/a:1",))
    assert documents.listed({"index.json": documents.index([root])}) == [root]


def test_names_are_canonical() -> None:
    target = documents.described(MANIFEST, "")
    roots = [Root(target, ("app:1", "docker.io/library/app:2"))]
    names = ["docker.io/library/app:1", "docker.io/library/app:2"]
    assert list(documents.by_name(roots, "")) == names


@pytest.mark.parametrize(
    ("names", "name", "error"),
    [
        ([()], "", "an image in the archive has no name"),
        ([(), ()], "app:1", "two images in the archive are named"),
        ([("a:1",), ("docker.io/library/a:1",)], "", "two images in the archive are named"),
        ([("Upper/a:1",)], "", "names no image"),
    ],
)
def test_names_that_cannot_be(names: list[tuple[str, ...]], name: str, error: str) -> None:
    roots = [Root(documents.described(b"%d" % n, ""), each) for n, each in enumerate(names)]
    with pytest.raises(ArchiveError, match=error):
        documents.by_name(roots, name)
