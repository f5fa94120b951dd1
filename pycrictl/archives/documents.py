"""The documents of image archives, and which images they name. Pure.

Descriptors stay as they are written (OCI ``descriptor``): ``mediaType``, ``digest``, ``size`` in
bytes, and perhaps ``platform``. Sources: OCI image specification (image layout, index, manifest),
Docker's ``manifest.json``, and the annotation by which Docker and containerd name images.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from pycrictl.containerd.store import is_digest
from pycrictl.errors import ArchiveError
from pycrictl.foreign import mapping, mappings, parsed, text, texts
from pycrictl.progress.reference import canonical, flaw, parse
from pycrictl.units import quote

Descriptor: TypeAlias = dict[str, Any]

LISTS: Final = ("index.json", "manifest.json", "oci-layout")
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
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}


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
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    return {"mediaType": media_type, "digest": digest, "size": len(data)}


def checked(entry: Descriptor) -> Descriptor:
    """Return a descriptor from an archive; raise ``ArchiveError`` if it lacks digest or size."""
    if not is_digest(entry.get("digest")) or type(entry.get("size")) is not int:
        raise ArchiveError("the archive refers to a blob without giving its digest and size")
    return entry


def children(data: bytes) -> tuple[list[Descriptor], bool]:
    """Return what a document refers to, and whether it is an index.

    A manifest refers to its config first, then to its layers; other documents to nothing.
    """
    document = parsed(data)
    if is_index := "manifests" in document:
        entries = mappings(document["manifests"])
    elif "layers" in document:
        entries = [mapping(document, "config"), *mappings(document["layers"])]
    else:
        entries = []
    return [checked(entry) for entry in entries], is_index


def diff_ids(config: bytes) -> list[str]:
    return texts(mapping(parsed(config), "rootfs").get("diff_ids"))


def own_platform() -> str:
    machine = os.uname().machine
    return f"linux/{_ARCHITECTURES.get(machine, machine)}"


def platform(entry: Descriptor) -> str:
    """Return ``OS/ARCHITECTURE[/VARIANT]``; empty for a descriptor that runs anywhere."""
    its = mapping(entry, "platform")
    return "/".join(text(its[key]) for key in ("os", "architecture", "variant") if key in its)


def runs_on(entry: Descriptor, wanted: str) -> bool:
    its = platform(entry)
    return not its or f"{its}/".startswith(f"{wanted}/") or f"{wanted}/".startswith(f"{its}/")


def roots_of_index(data: bytes) -> list[Root]:
    roots = []
    for entry in children(data)[0]:
        annotations = mapping(entry, "annotations")
        name = text(annotations.get(_NAME)) or text(annotations.get(_REF_NAME))
        # A mere tag names no image.
        roots.append(Root(entry, (name,) if ":" in name or "/" in name else ()))
    return roots


def docker_images(data: bytes) -> list[DockerImage]:
    return [
        DockerImage(
            text(entry.get("Config")),
            tuple(texts(entry.get("Layers"))),
            tuple(texts(entry.get("RepoTags"))),
        )
        for entry in mappings(parsed(b'{"images":%b}' % data).get("images"))
    ]


def layer_type(head: bytes) -> str:
    """Return the media type of a layer from its first bytes."""
    found = (name for magic, name in _COMPRESSIONS.items() if head.startswith(magic))
    return LAYER + next(found, "")


def manifest(config: Descriptor, layers: Sequence[Descriptor]) -> bytes:
    return written(
        {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": list(layers)}
    )


def index(images: Iterable[Root]) -> bytes:
    """Return ``index.json``, with names for containerd and Docker, and tags for other readers."""
    entries = []
    for target, names in images:
        for name in names or ("",):
            annotations = {_NAME: name, _REF_NAME: parse(name).tag} if name else {}
            entries.append({**target, "annotations": annotations})
    return written({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries})


def docker_manifest(images: Iterable[DockerImage]) -> bytes:
    return written(
        [
            {"Config": config, "RepoTags": names, "Layers": layers}
            for config, layers, names in images
        ]
    )


def by_name(roots: Sequence[Root], name: str) -> Mapping[str, Root]:
    """Return images by canonical name; ``name`` is that of the only one without a name.

    Raises:
        ArchiveError: an image has no name, or two have the same one.
    """
    unnamed = [root for root in roots if not root.names]
    if len(unnamed) > (1 if name else 0):
        hint = "--name names one image" if name else "name it with --name"
        raise ArchiveError(f"{len(unnamed)} of {len(roots)} images have no name", hint=hint)
    if name and not unnamed:
        raise ArchiveError("every image in the archive has a name", hint="leave out --name")
    found: dict[str, Root] = {}
    for root in roots:
        for each in map(checked_name, root.names or (name,)):
            if found.setdefault(each, root).target["digest"] != root.target["digest"]:
                raise ArchiveError(f"two images in the archive are named {quote(each)}")
    return found


def checked_name(name: str) -> str:
    """Return the canonical form of a name; raise ``ArchiveError`` if no runtime accepts it."""
    if (wrong := flaw(name)) is not None:
        raise ArchiveError(f"{quote(name)} names no image: {wrong.text}", hint=wrong.advice)
    return canonical(name)


def written(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
