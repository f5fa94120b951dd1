"""Saving images of containerd's content store as an archive.

The archive is an OCI image layout with Docker's ``manifest.json`` beside it, as Docker writes it:
docker, podman, skopeo, ctr and kind read it. The older format has only ``manifest.json``. Documents
come first, so that who reads a stream knows early what will follow. The same images always give the
same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from pycrictl.base.errors import ArchiveError
from pycrictl.base.units import quote
from pycrictl.pulls.archives import documents
from pycrictl.pulls.archives.documents import DockerImage, Root
from pycrictl.pulls.archives.records import Image, find_target
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
from pycrictl.streams.wire.tar.header import Entry, EntryType
from pycrictl.streams.wire.tar.writer import END_OF_ARCHIVE, encode_entry, padding_after

ALL_PLATFORMS: Final = "all"


class Saving:
    """An archive of images; that all of it is on the node is checked before the first byte.

    Args:
        platform: ``OS/ARCHITECTURE[/VARIANT]`` to save from an index, or ``ALL_PLATFORMS``.

    Raises:
        NotFound: containerd has no such image.
        ArchiveError: something that the archive needs is not on the node.
    """

    def __init__(
        self, client: ContainerdClient, images: Iterable[Image], *, platform: str, is_docker: bool
    ) -> None:
        self._client = client
        self._platform = platform
        self._is_docker = is_docker
        self._files: dict[str, bytes] = {}
        self._layers: dict[str, Descriptor] = {}
        self._roots: list[Root] = []
        self._images: list[DockerImage] = []
        for image in images:
            self._add(image)

    def pieces(self) -> Iterator[bytes]:
        """Yield the archive."""
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

    def _path(self, digest: str, suffix: str = ".tar") -> str:
        if self._is_docker:
            return digest.rpartition(":")[2] + suffix
        return f"blobs/{digest.replace(':', '/')}"

    def _add(self, image: Image) -> None:
        target = find_target(self._client, image.known)
        document, data = self._read(target)
        manifests: tuple[Descriptor, ...] = (target,)
        if isinstance(document, Index):
            manifests = document.manifests
            if self._platform == ALL_PLATFORMS:
                self._files[self._path(target.digest)] = data
            else:
                manifests = self._chosen(image, manifests)
                target = manifests[0]
        self._roots.append(Root(target, image.names))
        for manifest in manifests:
            self._add_manifest(image, manifest)

    def _chosen(self, image: Image, manifests: tuple[Descriptor, ...]) -> tuple[Descriptor, ...]:
        for manifest in manifests:
            if runs_on(manifest.platform, self._platform):
                return (manifest,)
        known = ", ".join(manifest.platform for manifest in manifests)
        message = f"{quote(image.known[0])} is not made for {self._platform}"
        raise ArchiveError(message, hint=f"only for {known}")

    def _add_manifest(self, image: Image, manifest: Descriptor) -> None:
        document, data = self._read(manifest)
        if not isinstance(document, Manifest):
            raise ArchiveError(f"{manifest.digest} is not the manifest of an image")
        if not self._is_docker:
            self._files[self._path(manifest.digest)] = data
        config = self._path(document.config.digest, ".json")
        _, self._files[config] = self._read(document.config, manifest.platform)
        infos = self._client.infos(layer.digest for layer in document.layers)
        missing = [layer for layer in document.layers if layer.digest not in infos]
        if missing:
            raise ArchiveError(
                f"{len(missing)} of {len(document.layers)} layers of {quote(image.known[0])} are"
                " not in containerd's store",
                hint="with discard_unpacked_layers, containerd removes layers after unpacking them",
            )
        layers = {self._path(layer.digest): layer for layer in document.layers}
        self._layers.update(layers)
        names = tuple(self._path(layer.digest) for layer in document.layers)
        self._images.append(DockerImage(config, names, image.names))

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
