"""The images of a node that are saved or tagged, and saving those of containerd as an archive.

The archive is an OCI image layout with Docker's ``manifest.json`` beside it, as Docker writes it:
docker, podman, skopeo, ctr and kind read it. The older format has only ``manifest.json``, not the
lists of OCI. Documents come first, so that who reads a stream knows early what will follow. The
same images always give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from pycrictl.base.errors import ArchiveError, NotFound
from pycrictl.base.units import quote
from pycrictl.pulls.archives import archive
from pycrictl.pulls.archives.archive import Root, path_of
from pycrictl.pulls.reference import canonical
from pycrictl.runtime.containerd import store
from pycrictl.runtime.containerd.grpc_client import ContainerdClient
from pycrictl.runtime.containerd.store import Descriptor
from pycrictl.runtime.cri.calls.client import CriClient
from pycrictl.runtime.cri.lists import lookup
from pycrictl.runtime.cri.lists.lookup import IMAGES_HINT
from pycrictl.streams.wire.tar import header

ALL_PLATFORMS: Final = "all"


class Image(NamedTuple):
    """An image on the node, by all its names and its ID; ``names`` are those that were meant."""

    known: tuple[str, ...]
    names: tuple[str, ...]


def find_image(client: CriClient, word: str) -> Image:
    """Return the image with this name or ID; an ID or a digest means all its tags."""
    image = lookup.image(client, word, f"looking for image {quote(word)}")
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
    documents: dict[str, bytes] = {}
    layers: dict[str, Descriptor] = {}
    roots: list[Root] = []
    docker_list: list[dict[str, Any]] = []

    def read(blob: Descriptor) -> store.Document | None:
        data = client.read(blob.digest, size_bytes=store.DOCUMENT_LIMIT_BYTES)
        if data is None:
            raise ArchiveError(
                f"the image's content for {blob.platform or blob.digest} is not on this node",
                hint="a pull fetches only what the node needs",
            )
        documents[path_of(blob.digest)] = data
        return store.parse_document(data)

    for image in images:
        target = find_target(client, image)
        manifests: tuple[Descriptor, ...] = (target,)
        if isinstance(document := read(target), store.Index):
            manifests = document.manifests
            if platform != ALL_PLATFORMS:
                del documents[path_of(target.digest)]
                target = _for_platform(document, platform, image)
                manifests = (target,)
        roots.append(Root(target, image.names))
        for blob in manifests:
            if not isinstance(manifest := read(blob), store.Manifest):
                raise ArchiveError(f"{blob.digest} is not the manifest of an image")
            read(manifest.config._replace(platform=blob.platform))
            _check_layers(client, manifest, image)
            names = [path_of(layer.digest) for layer in manifest.layers]
            layers.update(zip(names, manifest.layers, strict=True))
            config = path_of(manifest.config.digest)
            docker_list.append({"Config": config, "RepoTags": image.names, "Layers": names})
    lists = {} if is_docker else {"index.json": archive.index(roots), "oci-layout": archive.LAYOUT}
    if platform != ALL_PLATFORMS:  # Docker's list knows no platforms
        lists["manifest.json"] = archive.written(docker_list)
    return _tar(client, {**lists, **documents}, layers)


def _for_platform(index: store.Index, platform: str, image: Image) -> Descriptor:
    for manifest in index.manifests:
        if store.runs_on(manifest.platform, platform):
            return manifest
    known = ", ".join(manifest.platform for manifest in index.manifests)
    message = f"{quote(image.known[0])} is not made for {platform}"
    raise ArchiveError(message, hint=f"only for {known}")


def _check_layers(client: ContainerdClient, manifest: store.Manifest, image: Image) -> None:
    infos = client.infos(layer.digest for layer in manifest.layers)
    count = sum(layer.digest not in infos for layer in manifest.layers)
    if count:
        raise ArchiveError(
            f"{count} of {len(manifest.layers)} layers of {quote(image.known[0])} are not in"
            " containerd's store",
            hint="with discard_unpacked_layers, containerd removes layers after unpacking them",
        )


def _tar(
    client: ContainerdClient, documents: dict[str, bytes], layers: dict[str, Descriptor]
) -> Iterator[bytes]:
    def entry(name: str, size_bytes: int) -> bytes:
        return header.encode_entry(header.Entry(name.encode(), header.EntryType.FILE, size_bytes))

    for name, data in documents.items():
        yield entry(name, len(data)) + data + header.padding_after(len(data))
    for name, layer in layers.items():
        yield entry(name, layer.size_bytes)
        yield from client.pieces(layer.digest, layer.size_bytes)
        yield header.padding_after(layer.size_bytes)
    yield header.END_OF_ARCHIVE
