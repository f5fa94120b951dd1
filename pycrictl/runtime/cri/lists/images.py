"""The images of the node, sorted and filtered here, and their removal.

containerd ignores the CRI's own filter, so names are matched here, with the same result on every
runtime.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import (
    NotFound,
    PycrictlError,
    RemoteProtocolError,
    RuntimeFault,
    UsageError,
)
from pycrictl.base.foreign import parsed, text
from pycrictl.base.units import DIGEST_PREFIX, quote
from pycrictl.runtime.cri.calls.client import CriClient, for_each
from pycrictl.runtime.cri.calls.redact import quote_reference
from pycrictl.runtime.cri.lists import lookup, queries
from pycrictl.runtime.cri.lists.lookup import IMAGES_HINT

UNNAMED: Final = "<none>"
"""The placeholder of runtimes and tables for a missing repository or tag."""

MIN_ID_CHARS: Final = 4
"""Shorter words are always taken as names, never as the beginning of an ID."""

FILTERS: Final = ("dangling", "reference", "before", "since")

_ID: Final = r"[0-9a-f]+"


class ImageFilter(NamedTuple):
    """One condition of ``--filter``; ``is_exact`` compares an ID as the runtime writes it."""

    name: str
    value: str
    pattern: re.Pattern[str] | None = None
    is_exact: bool = False


def parse_filters(items: Iterable[str], *, is_exact: bool = False) -> tuple[ImageFilter, ...]:
    return tuple(_parse_filter(item, is_exact) for item in items)


def _parse_filter(item: str, is_exact: bool) -> ImageFilter:
    name, equals, value = item.partition("=")
    if not equals or name not in FILTERS:
        raise UsageError(
            f"unknown filter {quote(item)}",
            hint=f"filters are {', '.join(f'{known}=…' for known in FILTERS)}",
        )
    pattern = queries.pattern(value, option="--filter") if name == "reference" else None
    return ImageFilter(name, value, pattern, is_exact)


def list_images(
    client: CriClient, name: str = "", filters: Iterable[ImageFilter] = ()
) -> list[cri_pb2.Image]:
    images = sort_images(lookup.images(client))
    return apply_filters(select_by_name(images, name), filters)


def sort_images(images: Iterable[cri_pb2.Image]) -> list[cri_pb2.Image]:
    """Sort images by the first name that tables show for them.

    An image without tag and digest is placed after the last image with a smaller ID, as in crictl's
    lists.
    """
    by_id = sorted(images, key=lambda image: image.id)
    result = sorted((image for image in by_id if _has_name(image)), key=_first_name)
    for image in by_id:
        if not _has_name(image):
            places = (place for place, other in enumerate(result, 1) if other.id < image.id)
            result.insert(max(places, default=0), image)
    return result


def select_by_name(images: Sequence[cri_pb2.Image], name: str) -> list[cri_pb2.Image]:
    """Return the images that ``name`` selects.

    A name is a whole repository or its last components, with or without a tag or digest; or the
    beginning of an ID. ``busybox`` also selects ``docker.io/library/busybox:1``.
    """
    return [image for image in images if not name or _is_named(image, name)]


def apply_filters(
    images: Sequence[cri_pb2.Image], filters: Iterable[ImageFilter]
) -> list[cri_pb2.Image]:
    remaining = list(images)
    for condition in filters:
        remaining = _apply(remaining, condition)
    return remaining


def _apply(images: list[cri_pb2.Image], condition: ImageFilter) -> list[cri_pb2.Image]:
    value, pattern = condition.value, condition.pattern
    if condition.name == "dangling":
        # Any other value selects nothing, as in crictl.
        return [image for image in images if value == ("false" if image.repo_tags else "true")]
    if pattern is not None:
        return [image for image in images if any(map(pattern.search, _repositories(image)))]
    # The CRI has no creation or pull times of images, so the list's order counts.
    position = next((i for i, image in enumerate(images) if _is_identified(image, condition)), None)
    if position is None:
        return images
    return images[position + 1 :] if condition.name == "before" else images[:position]


def _is_named(image: cri_pb2.Image, name: str) -> bool:
    if _has_id(image, name):
        return True
    repository, at, digest = name.partition("@")
    # A name without tag or digest selects all tags and digests of its repository.
    references = [*image.repo_tags, *image.repo_digests]
    known = [tag.rpartition(":")[0] for tag in image.repo_tags]
    known += [reference.partition("@")[0] for reference in references]
    if at:
        suffix = f"@{digest}"
        known = [
            entry.removesuffix(suffix) for entry in image.repo_digests if entry.endswith(suffix)
        ]
    return any(item == repository or item.endswith(f"/{repository}") for item in known)


def _is_identified(image: cri_pb2.Image, condition: ImageFilter) -> bool:
    """Return whether the value is a tag, or the beginning of a repository digest or an ID."""
    value = condition.value
    if "@" in value:
        return any(digest.startswith(value) for digest in image.repo_digests)
    if condition.is_exact and ":" not in value:
        return image.id.startswith(value)
    return value in image.repo_tags or _has_id(image, value)


def _has_id(image: cri_pb2.Image, word: str) -> bool:
    start = word.removeprefix(DIGEST_PREFIX)
    is_long_enough = len(start) >= MIN_ID_CHARS and re.fullmatch(_ID, start)
    return bool(is_long_enough) and image.id.removeprefix(DIGEST_PREFIX).startswith(start)


def _repositories(image: cri_pb2.Image) -> list[str]:
    """Return the repositories that crictl searches: of the tags, and of the first digest."""
    repositories = [_digest_repository(image)]
    return repositories + [tag.rpartition(":")[0] for tag in image.repo_tags]


def _digest_repository(image: cri_pb2.Image) -> str:
    return image.repo_digests[0].partition("@")[0] if image.repo_digests else UNNAMED


def _has_name(image: cri_pb2.Image) -> bool:
    return bool(image.repo_tags or image.repo_digests)


def _first_name(image: cri_pb2.Image) -> str:
    tag = image.repo_tags[0] if image.repo_tags else f"{UNNAMED}:{UNNAMED}"
    if tag.startswith(f"{UNNAMED}:"):
        return _digest_repository(image) + tag.removeprefix(UNNAMED)
    return tag


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
    for entry in for_each(client, _find, targets):
        distinct.setdefault(entry.image.id if entry.image else entry.target, entry)
    return list(distinct.values())


def remove_images(client: CriClient, removals: Iterable[ImageRemoval]) -> Iterator[ImageRemoval]:
    return for_each(client, _remove, removals)


def _find(client: CriClient, target: str) -> ImageRemoval:
    name = quote_reference(target)
    try:
        image = lookup.image(client, target, f"removing image {name}")
        if image is None:
            raise NotFound(f"no such image {name}", hint=IMAGES_HINT)
        if not image.id:  # needed to detect two names of one image
            raise RemoteProtocolError(f"the runtime gave no ID for image {name}")
    except PycrictlError as error:
        return ImageRemoval(target, error=error)
    return ImageRemoval(target, image)


def _remove(client: CriClient, removal: ImageRemoval) -> ImageRemoval:
    if removal.error is not None:
        return removal
    request = cri_pb2.RemoveImageRequest(image=cri_pb2.ImageSpec(image=removal.target))
    try:
        client.call(
            "RemoveImage", request, action=f"removing image {quote_reference(removal.target)}"
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
    used: set[str] = set()
    unresolved: dict[str, None] = {}
    for names in _names_in_use(runtime):
        used |= names
        if not any(_is_used(image, names) for image in present):
            unresolved.update(dict.fromkeys(names))
    used.update(for_each(images, _image_id, unresolved))
    return tuple(image.id for image in candidates if not _is_used(image, used))


def _names_in_use(client: CriClient) -> Iterator[set[str]]:
    """Yield, for each user of an image, all names that the runtime has for the image."""
    for container in lookup.containers(client):
        yield {container.image.image, container.image_ref, container.image_id} - {""}
    status = cri_pb2.StatusRequest(verbose=True)
    with suppress(RuntimeFault):
        yield {sandbox_image(client.call("Status", status).info)} - {""}


def _is_used(image: cri_pb2.Image, used: set[str]) -> bool:
    bare_id = image.id.removeprefix(DIGEST_PREFIX)
    return not used.isdisjoint((image.id, bare_id, *image.repo_tags, *image.repo_digests))


def _image_id(client: CriClient, name: str) -> str:
    """Return the ID of an image that is listed under another name; empty if it is gone."""
    image = lookup.image(
        client, name, f"finding the image {quote_reference(name)}, which is in use"
    )
    return image.id if image else ""


def sandbox_image(info: Mapping[str, str]) -> str:
    """Return containerd's image of pod sandboxes from the ``info`` of a verbose Status, or ""."""
    return text(parsed(info.get("config", "")).get("sandboxImage"))
