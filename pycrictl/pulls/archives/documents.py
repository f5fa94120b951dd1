"""The documents of image archives, and which images they name. Pure.

Sources: OCI image specification (image layout, index, manifest), Docker's ``manifest.json``, and
the annotation by which Docker and containerd name images.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from pycrictl.base.errors import ArchiveError
from pycrictl.base.foreign import mapping, mappings, parsed, text, texts
from pycrictl.base.units import quote
from pycrictl.pulls.reference import canonical, flaw, parse
from pycrictl.runtime.containerd.store import Descriptor, Manifest, descriptor

LISTS: Final = ("index.json", "manifest.json")
"""The files of an archive that say which images are in it."""

LAYOUT: Final = b'{"imageLayoutVersion":"1.0.0"}'
INDEX: Final = "application/vnd.oci.image.index.v1+json"
MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
CONFIG: Final = "application/vnd.oci.image.config.v1+json"
LAYER: Final = "application/vnd.oci.image.layer.v1.tar"

PLATFORM: Final = re.compile(r"[a-z0-9]+/[a-z0-9]+(/[a-z0-9]+)?")

_NAME: Final = "io.containerd.image.name"
_REF_NAME: Final = "org.opencontainers.image.ref.name"
_COMPRESSIONS: Final = {b"\x1f\x8b": "+gzip", b"\x28\xb5\x2f\xfd": "+zstd"}


class Root(NamedTuple):
    """An image in an archive: its manifest or index, and its names, of which it may have none."""

    target: Descriptor
    names: tuple[str, ...]


class DockerImage(NamedTuple):
    """An entry of ``manifest.json``: names of files in the archive, and the image's names."""

    config: str
    layers: tuple[str, ...]
    names: tuple[str, ...]


def described(data: bytes, media_type: str) -> Descriptor:
    return Descriptor(f"sha256:{hashlib.sha256(data).hexdigest()}", len(data), media_type)


def path_of(digest: str) -> str:
    """Return the name of a blob in an archive."""
    return f"blobs/{digest.replace(':', '/')}"


def listed(lists: Mapping[str, bytes]) -> list[Root] | list[DockerImage]:
    """Return the images that an archive names in its ``LISTS``, given by name.

    Docker's list counts only without an index.
    """
    if "index.json" in lists:
        return [_root(entry) for entry in mappings(parsed(lists["index.json"]).get("manifests"))]
    entries = parsed(b'{"images":%b}' % lists.get("manifest.json", b"[]")).get("images")
    return [
        DockerImage(
            text(entry.get("Config")),
            tuple(texts(entry.get("Layers"))),
            tuple(texts(entry.get("RepoTags"))),
        )
        for entry in mappings(entries)
    ]


def _root(entry: Mapping[str, Any]) -> Root:
    if (target := descriptor(entry)) is None:
        raise ArchiveError("the archive names an image without its digest and size")
    annotations = mapping(entry, "annotations")
    name = text(annotations.get(_NAME)) or text(annotations.get(_REF_NAME))
    # A mere tag names no image.
    return Root(target, (name,) if ":" in name or "/" in name else ())


def layer_type(head: bytes) -> str:
    """Return the media type of a layer from its first bytes."""
    found = (name for magic, name in _COMPRESSIONS.items() if head.startswith(magic))
    return LAYER + next(found, "")


def manifest(document: Manifest) -> bytes:
    parts = {"config": _entry(document.config), "layers": list(map(_entry, document.layers))}
    return _written({"schemaVersion": 2, "mediaType": MANIFEST, **parts})


def index(images: Iterable[Root]) -> bytes:
    """Return ``index.json``, with names for containerd and Docker, and tags for other readers."""
    entries = []
    for target, names in images:
        for name in names or ("",):
            annotations = {_NAME: name, _REF_NAME: parse(name).tag} if name else {}
            entries.append({**_entry(target), "annotations": annotations})
    return _written({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries})


def docker_list(images: Iterable[DockerImage]) -> bytes:
    """Return ``manifest.json``."""
    return _written(
        [
            {"Config": config, "RepoTags": names, "Layers": layers}
            for config, layers, names in images
        ]
    )


def by_name(roots: Iterable[Root], name: str) -> Mapping[str, Root]:
    """Return images by canonical name; ``name`` is that of the only one without a name.

    Raises:
        ArchiveError: an image has no name, or two have the same one.
    """
    found: dict[str, Root] = {}
    for root in roots:
        if not (names := root.names or (name and (name,))):
            raise ArchiveError("an image in the archive has no name", hint="name it with --name")
        for each in map(checked_name, names):
            if found.setdefault(each, root).target.digest != root.target.digest:
                raise ArchiveError(f"two images in the archive are named {quote(each)}")
    return found


def checked_name(name: str) -> str:
    """Return the canonical form of a name; raise ``ArchiveError`` if no runtime accepts it."""
    if (wrong := flaw(name)) is not None:
        raise ArchiveError(f"{quote(name)} names no image: {wrong.text}", hint=wrong.advice)
    return canonical(name)


def _entry(blob: Descriptor) -> dict[str, Any]:
    entry: dict[str, Any] = {"mediaType": blob.media_type, "digest": blob.digest}
    entry["size"] = blob.size_bytes
    if blob.platform:
        keys = ("os", "architecture", "variant")
        entry["platform"] = dict(zip(keys, blob.platform.split("/"), strict=False))
    return entry


def _written(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
