"""The images of a node that are saved or tagged, and saving those of containerd as an archive.

The archive is an OCI image layout with Docker's ``manifest.json`` beside it, as Docker writes it:
docker, podman, skopeo, ctr and kind read it. The older format has only ``manifest.json``, not the
lists of OCI. Documents come first, so that who reads a stream knows early what will follow. The
same images always give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from pycrictl.base.errors import ArchiveError, NotFound
from pycrictl.base.units import quote
from pycrictl.pulls.archives import archive
from pycrictl.pulls.archives.archive import Root, path_of
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
    saving = _Saving(client, platform)
    for image in images:
        saving.add(image)
    lists = {}
    if not is_docker:
        lists = {"oci-layout": archive.LAYOUT, "index.json": archive.index(saving.roots)}
    if platform != ALL_PLATFORMS:  # Docker's list knows no platforms
        lists["manifest.json"] = archive.written(saving.docker_list)
    return _tar(client, {**lists, **saving.documents}, saving.layers)


def _tar(
    client: ContainerdClient, documents: Mapping[str, bytes], layers: Mapping[str, Descriptor]
) -> Iterator[bytes]:
    for name, data in documents.items():
        yield encode_entry(Entry(name.encode(), EntryType.FILE, len(data)))
        yield data + padding_after(len(data))
    for name, layer in layers.items():
        yield encode_entry(Entry(name.encode(), EntryType.FILE, layer.size_bytes))
        yield from client.pieces(layer.digest, layer.size_bytes)
        yield padding_after(layer.size_bytes)
    yield END_OF_ARCHIVE


class _Saving:
    """What an archive of some images consists of; documents and layers by their names in it."""

    def __init__(self, client: ContainerdClient, platform: str) -> None:
        self._client = client
        self._platform = platform
        self.documents: dict[str, bytes] = {}
        self.layers: dict[str, Descriptor] = {}
        self.roots: list[Root] = []
        self.docker_list: list[dict[str, Any]] = []

    def add(self, image: Image) -> None:
        target = find_target(self._client, image)
        document = self._add_document(target)
        manifests: tuple[Descriptor, ...] = (target,)
        if isinstance(document, Index):
            manifests = document.manifests
            if self._platform != ALL_PLATFORMS:
                del self.documents[path_of(target.digest)]
                manifests = tuple(m for m in manifests if runs_on(m.platform, self._platform))[:1]
                if not manifests:
                    message = f"{quote(image.known[0])} is not made for {self._platform}"
                    known = ", ".join(manifest.platform for manifest in document.manifests)
                    raise ArchiveError(message, hint=f"only for {known}")
                target = manifests[0]
        self.roots.append(Root(target, image.names))
        for manifest in manifests:
            self._add_manifest(image, manifest)

    def _add_manifest(self, image: Image, manifest: Descriptor) -> None:
        document = self._add_document(manifest)
        if not isinstance(document, Manifest):
            raise ArchiveError(f"{manifest.digest} is not the manifest of an image")
        self._add_document(document.config, manifest.platform)
        infos = self._client.infos(layer.digest for layer in document.layers)
        missing = [layer for layer in document.layers if layer.digest not in infos]
        if missing:
            raise ArchiveError(
                f"{len(missing)} of {len(document.layers)} layers of {quote(image.known[0])} are"
                " not in containerd's store",
                hint="with discard_unpacked_layers, containerd removes layers after unpacking them",
            )
        names = [path_of(layer.digest) for layer in document.layers]
        self.layers.update(zip(names, document.layers, strict=True))
        config = path_of(document.config.digest)
        self.docker_list.append({"Config": config, "RepoTags": image.names, "Layers": names})

    def _add_document(self, blob: Descriptor, platform: str = "") -> Document | None:
        data = self._client.read(blob.digest, size_bytes=DOCUMENT_LIMIT_BYTES)
        if data is None:
            what = platform or blob.platform or blob.digest
            raise ArchiveError(
                f"the image's content for {what} is not on this node",
                hint="a pull fetches only what the node needs",
            )
        self.documents[path_of(blob.digest)] = data
        return parse_document(data)
