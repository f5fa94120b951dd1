"""Images on the node: as the CRI knows them, and containerd's records of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from pycrictl._proto.containerd import types_pb2
from pycrictl.base.errors import AlreadyExists, NotFound
from pycrictl.base.units import quote
from pycrictl.pulls.reference import canonical
from pycrictl.runtime.containerd.grpc_client import ContainerdClient
from pycrictl.runtime.containerd.store import Descriptor
from pycrictl.runtime.cri.calls.client import CriClient
from pycrictl.runtime.cri.lists import fetch
from pycrictl.runtime.cri.lists.lookup import IMAGES_HINT

_LABELS: Final = {"io.cri-containerd.image": "managed"}


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
    # CRI-O has registries of its own for short names.
    end = "/" + canonical(word).removeprefix("docker.io/").removeprefix("library/")
    named = tuple(tag for tag in tags if tag == canonical(word)) or tuple(
        tag for tag in tags if tag.endswith(end)
    )
    return Image((*tags, *image.repo_digests, image.id), named or tags)


def find_target(client: ContainerdClient, names: Iterable[str]) -> Descriptor:
    """Return the manifest or index that any of these names points to; else raise ``NotFound``."""
    for record in client.images(*(f"name=={name}" for name in names)):
        target = record.target
        return Descriptor(target.digest, target.size, target.media_type)
    raise NotFound("containerd has no record of the image")


def write_record(client: ContainerdClient, name: str, target: Descriptor) -> None:
    """Let a canonical name point to a manifest or index, whatever it has pointed to before."""
    image = {"name": name, "labels": _LABELS, "target": as_message(target)}
    try:
        client.call("Images.Create", image=image)
    except AlreadyExists:
        client.call("Images.Update", image=image, update_mask={"paths": ["target"]})


def as_message(blob: Descriptor) -> types_pb2.Descriptor:
    return types_pb2.Descriptor(
        media_type=blob.media_type, digest=blob.digest, size=blob.size_bytes
    )
