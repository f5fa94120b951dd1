"""Image archives: read from a tar file or a folder, and written from the images on a node.

An archive that is read is an OCI image layout or, without an index, the format of ``docker save``.
One that is written is both by default, for docker, podman, skopeo, ctr and kind; for older versions
of Docker, it has only Docker's list of images. Documents come first, so that a reader of a stream
knows early what will follow. The same images always give the same bytes.

Files of an archive are never unpacked under their names. Still, names and links that could lead out
of an archive are refused: no tool that writes image archives makes them.

CRI-O has no API for archives; skopeo reads and writes its storage (containers/storage). If skopeo
is not installed, the error shows the skopeo command to run.

Sources: OCI image specification (image layout, index, manifest), Docker's ``manifest.json``, and
the annotation by which Docker and containerd name images.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, TypeAlias

from pycrictl.base import errors
from pycrictl.base.errors import ArchiveError, PycrictlError, RemoteProtocolError, reason_of
from pycrictl.base.foreign import mapping, mappings, parsed, text, texts
from pycrictl.base.replacing import replacing
from pycrictl.base.units import quote, quote_path
from pycrictl.copy.archive.archives import decompressed
from pycrictl.pulls.reference import canonical, flaw, parse
from pycrictl.runtime.containerd import store
from pycrictl.runtime.containerd.grpc_client import ContainerdClient
from pycrictl.runtime.cri.calls.client import CriClient
from pycrictl.runtime.cri.lists import lookup
from pycrictl.streams.wire.tar import header
from pycrictl.streams.wire.tar.reader import DataReceived, EntryStarted, Event, read

LISTS: Final = ("index.json", "manifest.json", "oci-layout")
"""An archive's files that are not blobs: lists of images (OCI, Docker), and the layout version."""

MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
CONFIG: Final = "application/vnd.oci.image.config.v1+json"
LAYER: Final = "application/vnd.oci.image.layer.v1.tar"
ALL_PLATFORMS: Final = "all"

Image: TypeAlias = tuple[str, ...]
"""An image: the name that the user gave, or all its names, and at the end its ID."""

_INDEX: Final = "application/vnd.oci.image.index.v1+json"
_NAME: Final = "io.containerd.image.name"
_REF_NAME: Final = "org.opencontainers.image.ref.name"
_PIECE_BYTES: Final = 256 * 1024
"""The size of pieces read from an archive; small, as gRPC buffers many of them."""


# Reading


class Member(NamedTuple):
    """A regular file of an archive."""

    name: str  # relative, with "/", without "." and ".."
    size_bytes: int
    pieces: Iterator[bytes | memoryview]  # can be read until the next member is asked for


@contextmanager
def opened(path: str) -> Iterator[Iterator[Member]]:
    """Open the archive in a file or folder, or on standard input if the path is ``-``."""
    try:
        if os.path.isdir(path):
            yield _of_folder(Path(path))
        else:
            with open(0 if path == "-" else path, "rb", buffering=0, closefd=path != "-") as file:
                yield of_tar(file)
    except OSError as exc:
        raise ArchiveError(f"cannot read {title(path)}: {reason_of(exc)}") from None


def title(path: str) -> str:
    """Return what an archive is called in messages."""
    return "standard input" if path == "-" else quote_path(path)


def of_tar(file: IO[bytes]) -> Iterator[Member]:
    """Yield the members of a tar archive, which may be compressed, in its order."""
    events = read(decompressed(_read(file)))
    for event in events:
        if not isinstance(event, EntryStarted):
            continue  # content that nobody has read
        entry, name = event.entry, _inside(os.fsdecode(event.entry.name))
        if entry.kind is header.EntryType.FILE:
            yield Member(name, entry.size_bytes, _content(events))
        elif entry.kind is header.EntryType.SYMLINK:
            # podman writes them for the readers of a format that is older than manifest.json.
            _inside(os.path.normpath(Path(name).parent / os.fsdecode(entry.link)))
        elif entry.kind is not header.EntryType.DIRECTORY:
            raise RemoteProtocolError(f"{quote(name)} in the archive is a {entry.kind.value}")


def _read(file: IO[bytes]) -> Generator[memoryview, None, None]:
    while piece := file.read(_PIECE_BYTES):
        yield memoryview(piece)


def _content(events: Iterator[Event]) -> Iterator[memoryview]:
    while isinstance(event := next(events), DataReceived):
        yield event.data


def _inside(name: str) -> str:
    if name.startswith("/") or ".." in name.split("/"):
        raise RemoteProtocolError(f"the name {quote(name)} points outside the archive")
    return name.removeprefix("./")


def _of_folder(folder: Path) -> Iterator[Member]:
    """Yield the files of an image layout: the index, then blobs by size, as documents are small."""
    blobs = sorted(filter(Path.is_file, folder.glob("blobs/*/*")), key=lambda p: p.stat().st_size)
    for path in (*folder.glob("index.json"), *blobs):
        with path.open("rb", buffering=0) as file:
            yield Member(path.relative_to(folder).as_posix(), path.stat().st_size, _read(file))


def images_in(lists: Mapping[str, bytes]) -> list[tuple[Sequence[str], dict[str, Any]]]:
    """Return the names and the entry of each image in an archive's files ``LISTS``.

    An entry is a descriptor or, if there is no index, an item of Docker's list.
    """
    if "index.json" not in lists:
        document = parsed(b'{"all":%b}' % lists.get("manifest.json", b"[]"))
        return [(texts(entry.get("RepoTags")), entry) for entry in mappings(document.get("all"))]
    images: list[tuple[Sequence[str], dict[str, Any]]] = []
    for entry in mappings(parsed(lists["index.json"]).get("manifests")):
        annotations = mapping(entry, "annotations")
        name = text(annotations.get(_NAME)) or text(annotations.get(_REF_NAME))
        # A mere tag names no image.
        images.append(([name] if ":" in name or "/" in name else [], entry))
    return images


def checked_name(name: str) -> str:
    """Return the canonical form of a name; raise ``ArchiveError`` if no runtime accepts it."""
    if (wrong := flaw(name)) is not None:
        raise ArchiveError(f"{quote(name)} is not an image name: {wrong.text}", hint=wrong.advice)
    return canonical(name)


# Writing


def find_image(client: CriClient, word: str) -> Image:
    """Return the image with this name or ID; an ID or a digest means all its tags."""
    image = lookup.image(client, word, f"looking for image {quote(word)}")
    if image is None or not image.id:
        raise errors.NotFound(f"no such image {quote(word)}", hint=lookup.IMAGES_HINT)
    tags, name = tuple(image.repo_tags), canonical(word)
    return (*((name,) if name in tags else tags), image.id)


def find_target(client: ContainerdClient, image: Image) -> store.Descriptor:
    """Return the manifest or index of an image; raise ``NotFound`` if containerd has no record."""
    for record in client.images(f"name=={image[0]}"):
        return store.Descriptor(record.target.digest, record.target.size, record.target.media_type)
    raise errors.NotFound(f"containerd has no record of the image {quote(image[0])}")


def saved(
    client: ContainerdClient, images: Iterable[Image], *, platform: str, is_docker: bool
) -> Iterator[bytes | memoryview]:
    """Return an archive of images piece by piece, once it is certain that the node has all parts.

    ``platform`` selects images of an index: ``OS/ARCHITECTURE[/VARIANT]``, ``ALL_PLATFORMS``, or
    empty for the node's own. ``ArchiveError`` says what is not on the node.
    """
    documents: dict[str, bytes] = {}
    layers: dict[str, Member] = {}
    index: list[dict[str, Any]] = []
    docker_list: list[dict[str, Any]] = []

    def read_document(blob: store.Descriptor) -> store.Document | None:
        data = client.read(blob.digest, size_bytes=store.DOCUMENT_LIMIT_BYTES)
        if data is None:
            missing = f"the image's content for {blob.platform or blob.digest}"
            hint = "a pull fetches only what the node needs"
            raise ArchiveError(f"{missing} is not on this node", hint=hint)
        documents[path_of(blob.digest)] = data
        return store.parse_document(data)

    for image in images:
        target = find_target(client, image)
        manifests: Sequence[store.Descriptor] = (target,)
        if isinstance(document := read_document(target), store.Index):
            manifests = document.manifests
            if platform != ALL_PLATFORMS:
                del documents[path_of(target.digest)]
                chosen = document.manifest_for(platform or store.own_platform())
                if chosen is None:
                    raise _not_made(image, platform, *(blob.platform for blob in manifests))
                target, manifests = chosen, (chosen,)
        for name in image[:-1] or ("",):
            named = {_NAME: name, _REF_NAME: parse(name).tag} if name else {}
            index.append({**_entry(target), "annotations": named})
        for blob in manifests:
            if not isinstance(manifest := read_document(blob), store.Manifest):
                raise ArchiveError(f"{blob.digest} is not the manifest of an image")
            config = read_document(manifest.config._replace(platform=blob.platform))
            built = config.platform if isinstance(config, store.ImageConfig) else ""
            is_other = not (blob.platform or store.runs_on(built, platform))
            if is_other and platform not in ("", ALL_PLATFORMS):
                raise _not_made(image, platform, built)
            infos = client.infos(layer.digest for layer in manifest.layers)
            if count := sum(layer.digest not in infos for layer in manifest.layers):
                missing = f"{count} of {len(manifest.layers)} layers of {quote(image[0])}"
                hint = "with discard_unpacked_layers, containerd removes what it has unpacked"
                raise ArchiveError(f"{missing} are not in containerd's store", hint=hint)
            for digest, size_bytes, *_ in manifest.layers:
                pieces = client.pieces(digest, size_bytes)
                layers[digest] = Member(path_of(digest), size_bytes, pieces)
            names = [path_of(layer.digest) for layer in manifest.layers]
            path = path_of(manifest.config.digest)
            docker_list.append({"Config": path, "RepoTags": image[:-1], "Layers": names})
    lists: dict[str, bytes] = {}
    if not is_docker:
        lists["index.json"] = _json({"schemaVersion": 2, "mediaType": _INDEX, "manifests": index})
        lists["oci-layout"] = b'{"imageLayoutVersion":"1.0.0"}'
    if platform != ALL_PLATFORMS:  # Docker's list knows no platforms
        lists["manifest.json"] = _json(docker_list)
    files = (lists | documents).items()
    small = [Member(name, len(data), iter((data,))) for name, data in files]
    return _tar([*small, *layers.values()])


def _not_made(image: Image, platform: str, *known: str) -> ArchiveError:
    message = f"{quote(image[0])} is not made for {platform or 'this node'}"
    return ArchiveError(message, hint=f"only for {', '.join(known)}")


def _tar(members: Iterable[Member]) -> Iterator[bytes | memoryview]:
    for name, size_bytes, pieces in members:
        yield header.encode_entry(header.Entry(name.encode(), header.EntryType.FILE, size_bytes))
        yield from pieces
        yield header.padding_after(size_bytes)
    yield header.END_OF_ARCHIVE


def path_of(digest: str) -> str:
    """Return the name of a blob in an archive."""
    return f"blobs/{digest.replace(':', '/')}"


def manifest(config: store.Descriptor, layers: Iterable[store.Descriptor]) -> bytes:
    """Return the manifest of an image."""
    parts = {"config": _entry(config), "layers": [_entry(layer) for layer in layers]}
    return _json({"schemaVersion": 2, "mediaType": MANIFEST, **parts})


def _entry(blob: store.Descriptor) -> dict[str, Any]:
    entry = {"mediaType": blob.media_type, "digest": blob.digest, "size": blob.size_bytes}
    keys = ("os", "architecture", "variant")
    platform = dict(zip(keys, filter(None, blob.platform.split("/")), strict=False))
    return {**entry, "platform": platform} if platform else entry


def _json(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


# CRI-O


def save_by_skopeo(client: CriClient, images: Sequence[Image], path: str, form: str) -> None:
    """Write one image to a new file; ``form`` is ``oci`` or ``docker``."""
    _require(path, len(images))
    *names, image_id = images[0]
    name = names[0] if names else ""
    with replacing(path) as file:  # skopeo takes an empty file for none
        _copy(f"{_storage(client)}@{image_id}", f"{form}-archive:{file.name}:{name}")


def load_by_skopeo(client: CriClient, path: str, name: str) -> str:
    """Load the image of an archive and return its name, or ``name`` if it has none there."""
    _require(path, 1)
    most = store.DOCUMENT_LIMIT_BYTES
    with opened(path) as members:
        wanted = (file for file in members if file.name in LISTS and file.size_bytes <= most)
        lists = {file.name: b"".join(file.pieces) for file in wanted}
    names = [known for image, _ in images_in(lists) for known in image] or [name]
    _require(path, len([*filter(None, names)]))
    form = "oci-archive" if "index.json" in lists else "docker-archive"
    source = f"{'oci' if os.path.isdir(path) else form}:{Path(path).absolute()}"
    _copy(source, _storage(client) + (target := checked_name(names[0])))
    return target


def tag_by_skopeo(client: CriClient, image: Image, name: str) -> None:
    storage = _storage(client)
    _copy(f"{storage}@{image[-1]}", storage + name)


def _require(path: str, count: int) -> None:
    if count != 1 or path == "-":
        message = "on CRI-O, only one image with one name can be saved or loaded at a time"
        hint = "name a file with -o or -i, and an image with --name"
        raise errors.Unimplemented(message, hint=hint)


def _storage(client: CriClient) -> str:
    """Return the prefix by which skopeo names the images of a CRI-O."""
    folder = lookup.image_folder(client)
    if folder is None or not folder.name.endswith("-images"):
        return "containers-storage:"
    return f"containers-storage:[{folder.name.removesuffix('-images')}@{folder.parent}]"


def _copy(source: str, target: str) -> None:
    words = ["skopeo", "copy", "--quiet", source, target]
    try:
        done = subprocess.run(words, check=False, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    except FileNotFoundError:
        message = "CRI-O needs skopeo for this, which is not installed here"
        hint = f"once it is installed: {shlex.join(words)}"
        raise errors.Unimplemented(message, hint=hint) from None
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise PycrictlError(f"skopeo failed: {lines[-1] if lines else done.returncode}")
