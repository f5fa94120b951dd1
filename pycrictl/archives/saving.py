"""Saving images of containerd's content store as an archive.

The archive is an OCI image layout with Docker's ``manifest.json`` beside it, as Docker writes it:
docker, podman, skopeo, ctr and kind read it. The older format has only ``manifest.json``. Documents
come first, so that who reads a stream knows early what will follow. The same images always give the
same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from pycrictl.archives import documents
from pycrictl.archives.documents import Descriptor, DockerImage, Root
from pycrictl.archives.records import find_target
from pycrictl.containerd.grpc_client import ContainerdClient
from pycrictl.containerd.store import DOCUMENT_LIMIT_BYTES
from pycrictl.errors import ArchiveError
from pycrictl.foreign import parsed
from pycrictl.units import quote
from pycrictl.wire.tar.header import Entry, EntryType
from pycrictl.wire.tar.writer import END_OF_ARCHIVE, encode_entry, padding_after

ALL_PLATFORMS: Final = "all"


class Image(NamedTuple):
    """An image to save: ``known`` are all its names on the node, ``names`` those in the archive."""

    known: tuple[str, ...]
    names: tuple[str, ...]


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
        self._documents: dict[str, bytes] = {}
        self._layers: dict[str, Descriptor] = {}
        self._roots: list[Root] = []
        self._images: list[DockerImage] = []
        for image in images:
            self._add(image)

    def pieces(self) -> Iterator[bytes]:
        """Yield the archive."""
        for name, data in self._small_files():
            yield from _file(name, len(data), (data,))
        for digest, layer in self._layers.items():
            size_bytes = layer["size"]
            pieces = self._client.pieces(digest, size_bytes)
            yield from _file(self._path(digest), size_bytes, pieces)
        yield END_OF_ARCHIVE

    def _small_files(self) -> Iterator[tuple[str, bytes]]:
        if not self._is_docker:
            yield "oci-layout", documents.LAYOUT
            yield "index.json", documents.index(self._roots)
        if self._platform != ALL_PLATFORMS:  # Docker's document knows no platforms
            yield "manifest.json", documents.docker_manifest(self._images)
        for digest, data in self._documents.items():
            if not self._is_docker or "rootfs" in parsed(data):
                yield self._path(digest, ".json"), data

    def _path(self, digest: str, suffix: str = ".tar") -> str:
        if self._is_docker:
            return digest.rpartition(":")[2] + suffix
        return f"blobs/{digest.replace(':', '/')}"

    def _add(self, image: Image) -> None:
        target = find_target(self._client, image.known)
        children, is_index = documents.children(self._document(target["digest"]))
        manifests = [target]
        if is_index and self._platform != ALL_PLATFORMS:
            del self._documents[target["digest"]]
            manifests = [each for each in children if documents.runs_on(each, self._platform)][:1]
            if not manifests:
                known = ", ".join(filter(None, map(documents.platform, children)))
                raise ArchiveError(
                    f"{quote(image.known[0])} is not made for {self._platform}",
                    hint=f"only for {known}",
                )
            target = manifests[0]
        elif is_index:
            manifests = children
        self._roots.append(Root(target, image.names))
        for manifest in manifests:
            parts, _ = documents.children(self._document(manifest["digest"], manifest))
            self._document(parts[0]["digest"], manifest)
            self._require(image, parts[1:])
            layers = tuple(self._path(layer["digest"]) for layer in parts[1:])
            config = self._path(parts[0]["digest"], ".json")
            self._images.append(DockerImage(config, layers, image.names))

    def _document(self, digest: str, of: Descriptor | None = None) -> bytes:
        data = self._client.read(digest, size_bytes=DOCUMENT_LIMIT_BYTES)
        if data is None:
            what = documents.platform(of or {}) or digest
            raise ArchiveError(
                f"what the image has for {what} is not on this node",
                hint="a pull fetches only what the node needs",
            )
        self._documents[digest] = data
        return data

    def _require(self, image: Image, layers: list[Descriptor]) -> None:
        infos = self._client.infos(layer["digest"] for layer in layers)
        if missing := [layer for layer in layers if layer["digest"] not in infos]:
            raise ArchiveError(
                f"{len(missing)} of {len(layers)} layers of {quote(image.known[0])} are not in"
                " containerd's store",
                hint="with discard_unpacked_layers, containerd removes layers after unpacking them",
            )
        self._layers.update((layer["digest"], layer) for layer in layers)


def _file(name: str, size_bytes: int, pieces: Iterable[bytes]) -> Iterator[bytes]:
    yield encode_entry(Entry(name.encode(), EntryType.FILE, size_bytes))
    yield from pieces
    yield padding_after(size_bytes)
