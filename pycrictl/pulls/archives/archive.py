"""What is in an image archive: its files, its documents, and the images that these name.

Sources: OCI image specification (image layout, index, manifest), Docker's ``manifest.json``, and
the annotation by which Docker and containerd name images.

Nothing is ever written under the name of a file. Still, names and links that could lead out of an
archive are refused: no tool that writes image archives makes them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from pycrictl.base.errors import ArchiveError, RemoteProtocolError, reason_of
from pycrictl.base.foreign import mapping, mappings, parsed, text, texts
from pycrictl.base.units import quote
from pycrictl.copy.archive.archives import decompressed
from pycrictl.pulls.reference import canonical, flaw, parse
from pycrictl.runtime.containerd.store import Descriptor, Manifest, descriptor
from pycrictl.streams.wire.tar.header import EntryType
from pycrictl.streams.wire.tar.reader import DataReceived, EntryFinished, EntryStarted, Event, read

LISTS: Final = ("index.json", "manifest.json", "oci-layout")
"""The files of an archive that are no blobs: OCI's and Docker's lists of images, and a mark."""

LAYOUT: Final = b'{"imageLayoutVersion":"1.0.0"}'
MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
CONFIG: Final = "application/vnd.oci.image.config.v1+json"
LAYER: Final = "application/vnd.oci.image.layer.v1.tar"

_INDEX: Final = "application/vnd.oci.image.index.v1+json"
_NAME: Final = "io.containerd.image.name"
_REF_NAME: Final = "org.opencontainers.image.ref.name"
_PIECE_BYTES: Final = 256 * 1024
"""gRPC keeps many of them on their way."""


class Member(NamedTuple):
    """A regular file of an archive.

    Attributes:
        name: relative, with ``/``, without ``.`` and ``..``.
        pieces: the content; it can be read until the next member is asked for.
    """

    name: str
    size_bytes: int
    pieces: Iterator[bytes | memoryview]


@contextmanager
def opened(path: str) -> Iterator[Iterator[Member]]:
    """Open the archive in a file or folder, or on standard input if the path is ``-``.

    Raises:
        ArchiveError: it cannot be read.
    """
    try:
        if os.path.isdir(path):
            yield _of_folder(Path(path))
        else:
            with open(0 if path == "-" else path, "rb", buffering=0, closefd=path != "-") as file:
                yield of_tar(file)
    except OSError as exc:
        reason = reason_of(exc)
        raise ArchiveError(f"cannot read {title(path)}: {reason}") from None


def title(path: str) -> str:
    """Return what an archive is called in messages."""
    return "standard input" if path == "-" else quote(path, 4096)


def of_tar(file: IO[bytes]) -> Iterator[Member]:
    """Yield the members of a tar archive, which may be compressed, in its order."""
    events = read(decompressed(_read(file)))
    for event in events:
        if not isinstance(event, EntryStarted):
            continue
        entry, content = event.entry, _content(events)
        name = _name(os.fsdecode(entry.name))
        if entry.kind is EntryType.FILE:
            yield Member(name, entry.size_bytes, content)
        elif entry.kind is EntryType.SYMLINK:
            # podman writes them for the readers of a format that is older than manifest.json.
            _name(os.path.normpath(Path(name).parent / os.fsdecode(entry.link)))
        elif entry.kind is not EntryType.DIRECTORY:
            raise RemoteProtocolError(f"{quote(name)} in the archive is a {entry.kind.value}")
        for _ in content:  # what was not read
            pass


def _read(file: IO[bytes]) -> Generator[memoryview, None, None]:
    while piece := file.read(_PIECE_BYTES):
        yield memoryview(piece)


def _content(events: Iterator[Event]) -> Iterator[memoryview]:
    for event in events:
        if isinstance(event, DataReceived):
            yield event.data
        elif isinstance(event, EntryFinished):
            return


def _name(name: str) -> str:
    if name.startswith("/") or ".." in name.split("/"):
        raise RemoteProtocolError(f"the name {quote(name)} points outside the archive")
    return name.removeprefix("./")


def _of_folder(folder: Path) -> Iterator[Member]:
    """Yield the files of an image layout: the index, then blobs, documents first as small ones."""
    index_file = folder / "index.json"
    if not index_file.is_file():
        raise ArchiveError(f"{quote(str(folder), 4096)} is not an OCI image layout")
    blobs = sorted(filter(Path.is_file, folder.glob("blobs/*/*")), key=lambda p: p.stat().st_size)
    for path in (index_file, *blobs):
        with path.open("rb", buffering=0) as file:
            size_bytes = path.stat().st_size
            yield Member(path.relative_to(folder).as_posix(), size_bytes, _read(file))


def path_of(digest: str) -> str:
    """Return the name of a blob in an archive."""
    return f"blobs/{digest.replace(':', '/')}"


class Root(NamedTuple):
    """An image in an archive: its manifest or index, and its names, of which it may have none."""

    target: Descriptor
    names: tuple[str, ...]


class DockerImage(NamedTuple):
    """An entry of ``manifest.json``: names of files in the archive, and the image's names."""

    config: str
    layers: list[str]
    names: tuple[str, ...]


def listed(lists: Mapping[str, bytes]) -> list[Root] | list[DockerImage]:
    """Return the images that an archive names in its ``LISTS``, given by name.

    Docker's list counts only without an index.
    """
    if "index.json" in lists:
        return [_root(entry) for entry in mappings(parsed(lists["index.json"]).get("manifests"))]
    images = []
    for entry in mappings(parsed(b'{"all":%b}' % lists.get("manifest.json", b"[]")).get("all")):
        layers, names = (texts(entry.get(key)) for key in ("Layers", "RepoTags"))
        images.append(DockerImage(text(entry.get("Config")), layers, tuple(names)))
    return images


def _root(entry: Mapping[str, Any]) -> Root:
    if (target := descriptor(entry)) is None:
        raise ArchiveError("the archive names an image without its digest and size")
    annotations = mapping(entry, "annotations")
    name = text(annotations.get(_NAME)) or text(annotations.get(_REF_NAME))
    # A mere tag names no image.
    return Root(target, (name,) if ":" in name or "/" in name else ())


def by_name(roots: Iterable[Root], name: str) -> Mapping[str, Root]:
    """Return images by canonical name; ``name`` is that of the only one without a name.

    Raises:
        ArchiveError: an image has no name, two have the same one, or there is no image.
    """
    images: dict[str, Root] = {}
    for root in roots:
        if not (names := root.names or (name and (name,))):
            raise ArchiveError("an image in the archive has no name", hint="name it with --name")
        for known in map(checked_name, names):
            if images.setdefault(known, root).target.digest != root.target.digest:
                raise ArchiveError(f"two images in the archive are named {quote(known)}")
    if not images:
        raise ArchiveError("no image is in the archive")
    return images


def checked_name(name: str) -> str:
    """Return the canonical form of a name; raise ``ArchiveError`` if no runtime accepts it."""
    if (wrong := flaw(name)) is not None:
        raise ArchiveError(f"{quote(name)} is not an image name: {wrong.text}", hint=wrong.advice)
    return canonical(name)


def manifest(document: Manifest) -> bytes:
    parts = {"config": _entry(document.config), "layers": list(map(_entry, document.layers))}
    return written({"schemaVersion": 2, "mediaType": MANIFEST, **parts})


def index(images: Iterable[Root]) -> bytes:
    """Return ``index.json``, with names for containerd and Docker, and tags for other readers."""
    entries = [
        {**_entry(target), "annotations": {_NAME: name, _REF_NAME: parse(name).tag} if name else {}}
        for target, names in images
        for name in names or ("",)
    ]
    return written({"schemaVersion": 2, "mediaType": _INDEX, "manifests": entries})


def _entry(blob: Descriptor) -> dict[str, Any]:
    entry = {"mediaType": blob.media_type, "digest": blob.digest, "size": blob.size_bytes}
    keys = ("os", "architecture", "variant")
    platform = dict(zip(keys, filter(None, blob.platform.split("/")), strict=False))
    return {**entry, "platform": platform} if platform else entry


def written(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
