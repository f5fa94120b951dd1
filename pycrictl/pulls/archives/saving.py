"""The images of a node that are saved or tagged, and saving those of containerd as an archive.

The archive is an OCI image layout with Docker's ``manifest.json`` beside it, as Docker writes it:
docker, podman, skopeo, ctr and kind read it. The older format has only ``manifest.json``, not the
lists of OCI. Documents come first, so that who reads a stream knows early what will follow. The
same images always give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from pycrictl.base.errors import ArchiveError, NotFound
from pycrictl.base.units import quote
from pycrictl.pulls.archives import documents
from pycrictl.pulls.archives.documents import DockerImage, Root
from pycrictl.pulls.reference import canonical
from pycrictl.runtime.containerd.grpc_client import ContainerdClient
from pycrictl.runtime.containerd.store import (
    DOCUMENT_LIMIT_BYTES,
    Descriptor,
    Document,
    Index,
    Manifest,
    parse_document,
    runs_on,
)
from pycrictl.runtime.cri.calls.client import CriClient
from pycrictl.runtime.cri.lists import fetch
from pycrictl.runtime.cri.lists.lookup import IMAGES_HINT
from pycrictl.streams.wire.tar.header import (
    END_OF_ARCHIVE,
    Entry,
    EntryType,
    encode_entry,
    padding_after,
)

ALL_PLATFORMS: Final = "all"


class Image(NamedTuple):
    """An image on the node, by all its names and its ID; ``names`` are those that were meant."""

    known: tuple[str, ...]
    names: tuple[str, ...]


def find_image(client: CriClient, word: str) -> Image:
    """Return the image with this name or ID; an ID or a digest means all its tags."""
    image = fetch.image(client, word, f"looking for image {quote(word)}")
    if image is None or not image.id:
        raise NotFound(f"no such image {quote(word)}", hint=IMAGES_HINT)
    tags = tuple(image.repo_tags)
    name = canonical(word)
    return Image((*tags, *image.repo_digests, image.id), (name,) if name in tags else tags)


def find_target(client: ContainerdClient, image: Image) -> Descriptor:
    """Return the manifest or index of an image; raise ``NotFound`` if containerd has no record."""
    for record in client.images(*(f"name=={name}" for name in (*image.names, *image.known))):
        target = record.target
        return Descriptor(target.digest, target.size, target.media_type)
    raise NotFound("containerd has no record of the image")


def saved(
    client: ContainerdClient, images: Iterable[Image], *, platform: str, is_docker: bool
) -> Iterator[bytes]:
    """Return an archive of images piece by piece, once all that it needs has been seen here.

    Args:
        platform: ``OS/ARCHITECTURE[/VARIANT]`` to save from an index, or ``ALL_PLATFORMS``.

    Raises:
        NotFound: containerd has no such image.
        ArchiveError: something that the archive needs is not on the node.
    """
    saving = _Saving(client, platform, is_docker)
    for image in images:
        saving.add(image)
    return saving.pieces()


class _Saving:
    def __init__(self, client: ContainerdClient, platform: str, is_docker: bool) -> None:
        self._client = client
        self._platform = platform
        self._is_docker = is_docker
        self._files: dict[str, bytes] = {}
        self._layers: dict[str, Descriptor] = {}
        self._roots: list[Root] = []
        self._images: list[DockerImage] = []

    def pieces(self) -> Iterator[bytes]:
        lists = {}
        if not self._is_docker:
            lists = {"oci-layout": documents.LAYOUT, "index.json": documents.index(self._roots)}
        if self._platform != ALL_PLATFORMS:  # Docker's list knows no platforms
            lists["manifest.json"] = documents.docker_list(self._images)
        for name, data in {**lists, **self._files}.items():
            yield from _file(name, len(data), (data,))
        for name, layer in self._layers.items():
            pieces = self._client.pieces(layer.digest, layer.size_bytes)
            yield from _file(name, layer.size_bytes, pieces)
        yield END_OF_ARCHIVE

    def add(self, image: Image) -> None:
        target = find_target(self._client, image)
        document, data = self._read(target)
        manifests: tuple[Descriptor, ...] = (target,)
        if isinstance(document, Index):
            manifests = document.manifests
            if self._platform == ALL_PLATFORMS:
                self._files[documents.path_of(target.digest)] = data
            else:
                manifests = tuple(one for one in manifests if runs_on(one.platform, self._platform))
                if not manifests:
                    message = f"{quote(image.known[0])} is not made for {self._platform}"
                    known = ", ".join(one.platform for one in document.manifests)
                    raise ArchiveError(message, hint=f"only for {known}")
                manifests = manifests[:1]
                target = manifests[0]
        self._roots.append(Root(target, image.names))
        for manifest in manifests:
            self._add_manifest(image, manifest)

    def _add_manifest(self, image: Image, manifest: Descriptor) -> None:
        document, data = self._read(manifest)
        if not isinstance(document, Manifest):
            raise ArchiveError(f"{manifest.digest} is not the manifest of an image")
        self._files[documents.path_of(manifest.digest)] = data
        config = documents.path_of(document.config.digest)
        _, self._files[config] = self._read(document.config, manifest.platform)
        infos = self._client.infos(layer.digest for layer in document.layers)
        missing = [layer for layer in document.layers if layer.digest not in infos]
        if missing:
            raise ArchiveError(
                f"{len(missing)} of {len(document.layers)} layers of {quote(image.known[0])} are"
                " not in containerd's store",
                hint="with discard_unpacked_layers, containerd removes layers after unpacking them",
            )
        layers = [(documents.path_of(layer.digest), layer) for layer in document.layers]
        self._layers.update(layers)
        self._images.append(DockerImage(config, tuple(name for name, _ in layers), image.names))

    def _read(self, blob: Descriptor, platform: str = "") -> tuple[Document | None, bytes]:
        data = self._client.read(blob.digest, size_bytes=DOCUMENT_LIMIT_BYTES)
        if data is None:
            what = platform or blob.platform or blob.digest
            raise ArchiveError(
                f"the image's content for {what} is not on this node",
                hint="a pull fetches only what the node needs",
            )
        return parse_document(data), data


def _file(name: str, size_bytes: int, pieces: Iterable[bytes]) -> Iterator[bytes]:
    yield encode_entry(Entry(name.encode(), EntryType.FILE, size_bytes))
    yield from pieces
    yield padding_after(size_bytes)
