"""Removing images, by name or all that are unused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import NotFound, PycrictlError, RemoteProtocolError, RuntimeFault
from pycrictl.base.foreign import parsed, text
from pycrictl.runtime.cri.calls.client import CriClient, each
from pycrictl.runtime.cri.calls.redact import quote_reference
from pycrictl.runtime.cri.lists import fetch
from pycrictl.runtime.cri.lists.images import DIGEST_PREFIX
from pycrictl.runtime.cri.lists.lookup import IMAGES_HINT


@dataclass(frozen=True, slots=True)
class ImageRemoval:
    """An image to remove or already removed, or the error that prevents its removal."""

    target: str
    image: cri_pb2.Image | None = None
    error: PycrictlError | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.image.repo_tags or self.image.repo_digests) if self.image else ()

    @property
    def size_bytes(self) -> int:
        return self.image.size if self.image else 0

    @property
    def other_tags(self) -> tuple[str, ...]:
        """All tags of an image if the target is one of several: all are removed with it."""
        tags = tuple(self.image.repo_tags) if self.image else ()
        is_name = not self.target.startswith(DIGEST_PREFIX) and (
            ":" in self.target or "/" in self.target
        )
        return tags if is_name and len(tags) > 1 else ()


def find_images(client: CriClient, targets: Sequence[str]) -> list[ImageRemoval]:
    """Look up the images to remove; two names of one image are one removal."""
    distinct: dict[str, ImageRemoval] = {}
    for entry in each(client, _find, targets):
        distinct.setdefault(entry.image.id if entry.image else entry.target, entry)
    return list(distinct.values())


def remove_images(client: CriClient, removals: Iterable[ImageRemoval]) -> Iterator[ImageRemoval]:
    return each(client, _remove, removals)


def _find(client: CriClient, target: str) -> ImageRemoval:
    name = quote_reference(target)
    try:
        image = fetch.image(client, target, f"removing image {name}")
        if image is None:
            raise NotFound(f"no such image {name}", hint=IMAGES_HINT)
        if not image.id:  # needed to detect two names of one image
            raise RemoteProtocolError(f"the runtime gave no ID of image {name}")
    except PycrictlError as error:
        return ImageRemoval(target, error=error)
    return ImageRemoval(target, image)


def _remove(client: CriClient, removal: ImageRemoval) -> ImageRemoval:
    if removal.error is not None:
        return removal
    request = cri_pb2.RemoveImageRequest(image=cri_pb2.ImageSpec(image=removal.target))
    try:
        client.call(
            "RemoveImage", request, what=f"removing image {quote_reference(removal.target)}"
        )
    except PycrictlError as error:
        return replace(removal, error=error)
    return removal


def unused_images(
    runtime: CriClient, images: CriClient, present: Sequence[cri_pb2.Image]
) -> tuple[str, ...]:
    """Return the IDs of the unused images.

    Pinned images, images of containers, and the image of pod sandboxes, if the runtime reports it,
    count as used.
    """
    candidates = [image for image in present if not image.pinned]
    if not candidates:
        return ()
    used = images_in_use(runtime, images, present)
    return tuple(image.id for image in candidates if image.id not in used)


def images_in_use(
    runtime: CriClient, images: CriClient, present: Sequence[cri_pb2.Image]
) -> frozenset[str]:
    used: set[str] = set()
    unresolved: dict[str, None] = {}
    for names in _names_in_use(runtime):
        used |= names
        if not any(_is_used(image, names) for image in present):
            unresolved.update(dict.fromkeys(names))
    used.update(each(images, _image_id, unresolved))
    return frozenset(image.id for image in present if _is_used(image, used))


def _names_in_use(client: CriClient) -> Iterator[set[str]]:
    """Yield, for each user of an image, all names that the runtime has for the image."""
    for container in fetch.containers(client):
        yield {container.image.image, container.image_ref, container.image_id} - {""}
    status = cri_pb2.StatusRequest(verbose=True)
    with suppress(RuntimeFault):
        yield {sandbox_image(client.call("Status", status).info)} - {""}


def _is_used(image: cri_pb2.Image, used: set[str]) -> bool:
    bare_id = image.id.removeprefix(DIGEST_PREFIX)
    return not used.isdisjoint((image.id, bare_id, *image.repo_tags, *image.repo_digests))


def _image_id(client: CriClient, name: str) -> str:
    """Return the ID of an image that is listed under another name; empty if it is gone."""
    image = fetch.image(client, name, f"finding the image {quote_reference(name)}, which is in use")
    return image.id if image else ""


def sandbox_image(info: Mapping[str, str]) -> str:
    """Return containerd's image of pod sandboxes from the ``info`` of a verbose Status, or ""."""
    return text(parsed(info.get("config", "")).get("sandboxImage"))
