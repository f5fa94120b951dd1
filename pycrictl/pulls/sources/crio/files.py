"""The files that containers/image downloads layers to: CRI-O's, podman's, skopeo's.

Each pull has a directory of its own, ``container_images_storage<digits>`` (before 2023
``storage<digits>``), below ``big_files_temporary_dir`` or ``TMPDIR``, by default ``/var/tmp``. Each
fetched blob becomes a file ``1``, ``2`` … in it, numbered in the order in which downloads begin.
It is open while it grows, is closed at its exact compressed size, and stays until the image is
committed. Nothing in it names the blob. ``/proc/PID/fd`` shows which directories a process uses,
so no configuration has to be read.

CRI-O's directories are those of the process behind its socket.

containers/storage keeps lists of layers and images, ``<driver>-layers/layers.json`` and
``<driver>-images/images.json`` below its root. Each is replaced as a whole, so they are read
without its locks, and reread only when changed.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from pycrictl.base import processes
from pycrictl.base.errors import PycrictlError
from pycrictl.base.foreign import count, mapping, mappings, parse, text, texts
from pycrictl.pulls.registries.endpoint import RegistryAccess
from pycrictl.pulls.registries.mirrors import crio_access
from pycrictl.runtime.containerd.daemon import runtime_pid
from pycrictl.runtime.containerd.store import is_digest
from pycrictl.runtime.cri.calls.errmap import Obstacle, connect_error, try_connect

_BLOB: Final = re.compile(r"(/.*/(?:container_images_)?storage[0-9]+)/([1-9][0-9]{0,6})")
_MOST_FILES: Final = 10_000
_DOCUMENT_BYTES: Final = 4 * 1024 * 1024


class BlobFile(NamedTuple):
    """One file; ``is_open`` while it is written, ``modified_s`` in wall time."""

    number: int
    size_bytes: int
    is_open: bool
    modified_s: float


def open_blobs(pid: int) -> dict[str, set[int]]:
    """Return the numbers of the files a process is writing, by directory as the process sees it."""
    blobs: dict[str, set[int]] = {}
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)  # noqa: PTH208  # pathlib takes five times as long
    except FileNotFoundError:  # it has just ended
        return blobs
    for name in names:
        with suppress(OSError):  # closed meanwhile
            target = os.readlink(f"{folder}/{name}")  # noqa: PTH115  # as above
            if (blob := _BLOB.fullmatch(target)) is not None:
                numbers = blobs.setdefault(blob[1], set())
                # The link's mode shows how the file is open: unpacking opens it for reading.
                if os.lstat(f"{folder}/{name}").st_mode & stat.S_IWUSR:
                    numbers.add(int(blob[2]))
    return blobs


def root_of(pid: int) -> str:
    own, other = Path("/proc/self/ns/mnt"), Path(f"/proc/{pid}/ns/mnt")
    with suppress(FileNotFoundError):
        if other.stat().st_ino != own.stat().st_ino:
            return f"/proc/{pid}/root"
    return ""


def read_folder(folder: str, open_numbers: set[int]) -> list[BlobFile] | None:
    """Return a pull's files in the order they were started; None once its directory is gone.

    The image's config, which also becomes a file, is left out. ``open_numbers`` are the files that
    were being written a moment before.
    """
    files: list[BlobFile] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.name.isdecimal() or len(files) == _MOST_FILES:
                    continue
                with suppress(FileNotFoundError):
                    facts, number = entry.stat(follow_symlinks=False), int(entry.name)
                    if facts.st_size > _DOCUMENT_BYTES or not _is_document(entry.path):
                        is_open = number in open_numbers
                        files.append(BlobFile(number, facts.st_size, is_open, facts.st_mtime))
    except (FileNotFoundError, NotADirectoryError):
        return None
    return sorted(files)


def _is_document(path: str) -> bool:
    with suppress(OSError), Path(path).open("rb") as file:
        return file.read(1) == b"{"
    return False


# Stored layers and images

DEFAULT_ROOT: Final = "/var/lib/containers/storage"
_LIST_BYTES: Final = 64 * 1024 * 1024

T = TypeVar("T")


class StoredLayer(NamedTuple):
    """An unpacked layer; ``digest`` and ``size_bytes`` are those of its compressed form.

    ``name`` and ``parent`` are the storage's own names; ``digest`` is empty if there is none yet.
    """

    digest: str
    size_bytes: int
    created: str = ""
    name: str = ""
    parent: str = ""


class StoredImage(NamedTuple):
    """An image; ``id`` is its config's digest without the algorithm, or derived from more.

    ``top`` is the storage's own name for its uppermost layer.
    """

    id: str
    names: tuple[str, ...]
    top: str


class Storage:
    def __init__(self, root: str) -> None:
        self._root = Path(root)
        self._known: dict[str, tuple[tuple[int, int, int], list[Any]]] = {}

    def layers(self) -> dict[str, StoredLayer]:
        return {layer.digest: layer for layer in self._list("layer", _layer) if layer.digest}

    def images(self) -> list[StoredImage]:
        return [image for image in self._list("image", _image) if image.id]

    def layers_of(self, image: StoredImage) -> dict[str, StoredLayer]:
        by_name = {layer.name: layer for layer in self._list("layer", _layer)}
        chain: list[StoredLayer] = []
        name = image.top
        while (layer := by_name.pop(name, None)) is not None:  # each once, even in a cycle
            chain.append(layer)
            name = layer.parent
        return {layer.digest: layer for layer in reversed(chain) if layer.digest}

    def _list(self, kind: str, read: Callable[[dict[str, Any]], T]) -> list[T]:
        with suppress(OSError, ValueError):
            for path in sorted(self._root.glob(f"*-{kind}s/{kind}s.json"))[:1]:
                facts = path.stat()
                stamp = facts.st_ino, facts.st_mtime_ns, facts.st_size
                is_known = kind in self._known and self._known[kind][0] == stamp
                if not is_known and facts.st_size <= _LIST_BYTES:
                    document = parse(path.read_bytes())
                    self._known[kind] = stamp, [read(item) for item in mappings(document)]
        return self._known[kind][1] if kind in self._known else []


def _layer(entry: dict[str, Any]) -> StoredLayer:
    digest = entry.get("compressed-diff-digest")
    is_whole = is_digest(digest) and not mapping(entry.get("flags")).get("incomplete")
    return StoredLayer(
        text(digest) if is_whole else "",
        count(entry.get("compressed-size")),
        text(entry.get("created")),
        text(entry.get("id")),
        text(entry.get("parent")),
    )


def _image(entry: dict[str, Any]) -> StoredImage:
    return StoredImage(
        text(entry.get("id")), tuple(texts(entry.get("names"))), text(entry.get("layer"))
    )


# The process


@dataclass(frozen=True, slots=True)
class Downloader:
    """A process that pulls, its storage, and how it reaches registries.

    ``root`` is the prefix of paths to its files, empty in our own mount namespace.
    """

    pid: int
    root: str
    storage: Storage
    access: RegistryAccess = field(default_factory=RegistryAccess)


@dataclass
class CrioProcess:
    endpoint: str
    store: str
    _known: Downloader | None = None

    def find(self) -> Downloader:
        if self._known is not None and processes.name_of(self._known.pid) == "crio":
            return self._known
        pid = self._find_pid()
        try:
            root = root_of(pid)
        except PermissionError:
            raise PycrictlError(
                "the pulls of CRI-O can be seen only by root, in its files",
                hint="run as root on the node, or ask pycrictl proxy",
            ) from None
        self._known = Downloader(pid, root, Storage(f"{root}{self.store}"), crio_access(pid, root))
        return self._known

    def _find_pid(self) -> int:
        if pid := runtime_pid(f"unix://{self.endpoint}", "crio"):
            return pid
        if isinstance(obstacle := try_connect(self.endpoint, 1.0), Obstacle):
            raise connect_error(obstacle, f"unix://{self.endpoint}")
        obstacle.close()
        raise PycrictlError(
            "the process of CRI-O cannot be seen from here, and only its files show its pulls",
            hint="run on the node itself, not in another PID namespace, or ask pycrictl proxy",
        )


def children(pid: int) -> list[int]:
    pids: list[int] = []
    with suppress(OSError):
        for file in Path(f"/proc/{pid}/task").glob("*/children"):
            pids += map(int, file.read_text().split())
    return pids
