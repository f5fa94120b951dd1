"""What containerd's content store holds: image documents, references, chain IDs. Pure.

Sources: OCI image specification (manifest, index, config, chain ID), Docker's image manifest V2
schema 2, RFC 1952 (the gzip trailer), and containerd's own naming of ingests, labels and snapshots.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeGuard

from pycrictl.base.foreign import mapping, parsed, text

DOCUMENT_LIMIT_BYTES: Final = 4 * 1024 * 1024
"""A larger blob is not an image document: registries must accept manifests up to this size (OCI
distribution specification), and none in use comes close."""

_ENTRIES_LIMIT: Final = 10_000
_PLATFORM: Final = ("os", "architecture", "variant")
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}
_DIGEST = re.compile(r"[a-z0-9]+(?:[+._-][a-z0-9]+)*:[0-9a-fA-F]{32,128}")
_SOURCE_LABEL: Final = "containerd.io/distribution.source."
_CHILD_LABEL: Final = "containerd.io/gc.ref.content."
_GZIP_WRAP_BYTES: Final = 2**32
_LARGE_GZIP_BYTES: Final = 2**30


class Descriptor(NamedTuple):
    """A blob as a document refers to it (OCI descriptor).

    Attributes:
        size_bytes: the size of the blob as a registry sends it.
        platform: ``OS/ARCHITECTURE[/VARIANT]``; empty if the document does not give it.
    """

    digest: str
    size_bytes: int
    media_type: str
    platform: str = ""


class Manifest(NamedTuple):
    config: Descriptor
    layers: tuple[Descriptor, ...]


class Index(NamedTuple):
    manifests: tuple[Descriptor, ...]

    def manifest_for(self, platform: str) -> Descriptor | None:
        """Return the first manifest for a platform; None if there is none."""
        fitting = (entry for entry in self.manifests if runs_on(entry.platform, platform))
        return next(fitting, None)


class ImageConfig(NamedTuple):
    """The digests of the layers' tar streams in an image's config, and the image's platform."""

    diff_ids: tuple[str, ...]
    platform: str = ""


Document: TypeAlias = Manifest | Index | ImageConfig


def is_digest(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def parse_document(data: bytes) -> Document | None:
    """Read a manifest, an index or a config by its shape; None for anything else.

    Media types are optional in OCI documents, and containerd stores none with its blobs.
    """
    if len(data) > DOCUMENT_LIMIT_BYTES:
        return None
    document = parsed(data)
    if "layers" in document:
        return _manifest(document)
    if "manifests" in document:
        return _index(document)
    if "rootfs" in document:
        return _config(document)
    return None


def _entries(value: object) -> list[Any] | None:
    return value if isinstance(value, list) and len(value) <= _ENTRIES_LIMIT else None


def descriptor(entry: Mapping[str, Any]) -> Descriptor | None:
    """Return the descriptor in a document; None if its digest or size is missing or invalid."""
    digest, size = entry.get("digest"), entry.get("size")
    # A bool is an int for Python, not for JSON.
    if not is_digest(digest) or type(size) is not int or not 0 <= size < 2**63:
        return None
    platform = _platform(mapping(entry, "platform"))
    return Descriptor(digest, size, text(entry.get("mediaType")), platform)


def _platform(its: Mapping[str, Any]) -> str:
    return "/".join(text(its[key]) for key in _PLATFORM if key in its)


def own_platform() -> str:
    machine = os.uname().machine
    return f"linux/{_ARCHITECTURES.get(machine, machine)}"


def runs_on(platform: str, wanted: str) -> bool:
    """Return whether an image for ``platform``, empty for any, runs on the wanted platform."""
    its = f"{platform}/"
    return not platform or its.startswith(f"{wanted}/") or f"{wanted}/".startswith(its)


def _descriptors(value: object) -> tuple[Descriptor, ...] | None:
    if (entries := _entries(value)) is None:
        return None
    described = [descriptor(mapping(entry)) for entry in entries]
    return None if None in described else tuple(filter(None, described))


def _manifest(document: dict[str, Any]) -> Manifest | None:
    config = descriptor(mapping(document, "config"))
    layers = _descriptors(document["layers"])
    return None if config is None or layers is None else Manifest(config, layers)


def _index(document: dict[str, Any]) -> Index | None:
    manifests = _descriptors(document["manifests"])
    return None if manifests is None else Index(manifests)


def _config(document: dict[str, Any]) -> ImageConfig | None:
    diff_ids = _entries(mapping(document["rootfs"]).get("diff_ids"))
    if diff_ids is None or not all(map(is_digest, diff_ids)):
        return None
    return ImageConfig(tuple(diff_ids), _platform(document))


def chain_ids(diff_ids: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the snapshots that the layers are unpacked to, lowest first."""
    chain: list[str] = []
    for diff_id in diff_ids:
        if chain:
            name = f"{chain[-1]} {diff_id}".encode()
            chain.append(f"sha256:{hashlib.sha256(name).hexdigest()}")
        else:
            chain.append(diff_id)
    return tuple(chain)


def ingest_digest(ref: str) -> str:
    """Return the digest in ``<kind>-<digest>`` or ``<kind>-<name>@<digest>``; empty if none."""
    kind, _, rest = ref.partition("-")
    # A name may hold any character, so the digest is what follows the last "@".
    digest = rest.rpartition("@")[2]
    return digest if kind and is_digest(digest) else ""


def extracted_chain_id(snapshot_key: str) -> str | None:
    """Return the chain ID in ``extract-<nanoseconds>-<random> <chain ID>``; None for other keys."""
    prefix, _, chain_id = snapshot_key.partition(" ")
    return chain_id if prefix.startswith("extract-") and is_digest(chain_id) else None


def has_children(labels: Mapping[str, str]) -> bool:
    """Return whether a blob's labels say that it refers to other blobs, as only documents do."""
    return any(key.startswith(_CHILD_LABEL) for key in labels)


def repositories(labels: Iterable[Mapping[str, str]]) -> tuple[str, ...]:
    """Return where an image's documents were fetched from, as ``host/path``, best first.

    Each mapping holds the labels of one document of the image. containerd drops the host's port
    and the tag, and only ever adds repositories: one that all documents name is likelier than one
    that a single document has kept from an earlier pull.
    """
    votes: dict[str, int] = {}
    for mapping_ in labels:
        for key, value in mapping_.items():
            if host := key.removeprefix(_SOURCE_LABEL) if key.startswith(_SOURCE_LABEL) else "":
                for path in filter(None, value.split(",")):
                    name = f"{host}/{path}"
                    votes[name] = votes.get(name, 0) + 1
    return tuple(sorted(votes, key=lambda name: (-votes[name], name)))


def unpacked_estimate(trailer: bytes, compressed_bytes: int) -> int | None:
    """Estimate the unpacked size of a gzip stream from its end; None if that is not possible.

    RFC 1952 stores the size modulo 2^32, and only for the last member. A number below the
    compressed size is not the total: in a large stream it has wrapped around; a small stream has
    several members, whose total is unknown. Formats with an empty last member store 0 (eStargz).
    """
    size_bytes = int.from_bytes(trailer, "little")
    if len(trailer) != 4 or size_bytes == 0:
        return None
    # Incompressible data grows a little: a few bytes per block, plus the header and trailer.
    incompressible_bytes = compressed_bytes - compressed_bytes // 1000 - 1024
    if size_bytes >= incompressible_bytes:
        return size_bytes
    if compressed_bytes < _LARGE_GZIP_BYTES:
        return None
    while size_bytes < incompressible_bytes:
        size_bytes += _GZIP_WRAP_BYTES
    return size_bytes
