"""The files to which containers/image downloads layers, and the layers that follow from them.

*Files.* Each pull of CRI-O (podman, skopeo) has a directory of its own,
``container_images_storage<digits>`` (before 2023 ``storage<digits>``), below
``big_files_temporary_dir`` or ``TMPDIR``, by default ``/var/tmp``. Each fetched blob becomes a file
``1``, ``2`` … in it, numbered in the order in which downloads begin. It is open while it grows, is
closed at its exact compressed size, and stays until the image is committed. ``/proc/PID/fd`` of the
process behind the socket shows which directories it uses, so no configuration has to be read.

containers/storage keeps lists of layers and images, ``<driver>-layers/layers.json`` and
``<driver>-images/images.json`` below its root. Each is replaced as a whole, so they are read
without locks, and reread only when changed.

*Layers.* No file names its layer. The manifest lists all layers and their sizes, and the storage
those that are unpacked. A complete file is matched to a layer by size. Until then it is ``layer 3
of 7``, and it keeps that name, which is a key for watchers; the digest is reported beside it. The
other files are assigned to the remaining layers in order, or by descending size if a file is too
large for its layer, so the sums are right from the beginning. Without a manifest, layers appear
when their files do and have no totals, as a partial sum would be taken for the whole; none of them
is done before the pull is.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from pycrictl.base import processes
from pycrictl.base.errors import PycrictlError
from pycrictl.base.foreign import count, mapping, mappings, parse, text, texts
from pycrictl.pulls.registries.mirrors import RegistryAccess, crio_access
from pycrictl.pulls.state import COMPLETE, LayerState, Phase
from pycrictl.runtime.containerd.daemon import runtime_pid
from pycrictl.runtime.containerd.store import Descriptor, is_digest
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

    ``digest`` is empty if there is none yet; ``created`` is a time as the storage writes it.
    """

    digest: str
    size_bytes: int
    created: str = ""


class StoredImage(NamedTuple):
    """An image; ``id`` is its config's digest without the algorithm, or a hash of more data."""

    id: str
    names: tuple[str, ...]


class Storage:
    def __init__(self, root: str) -> None:
        self._root = Path(root)
        self._known: dict[str, tuple[tuple[int, int, int], list[Any]]] = {}

    def layers(self) -> dict[str, StoredLayer]:
        return {layer.digest: layer for layer in self._list("layer", _layer) if layer.digest}

    def images(self) -> list[StoredImage]:
        return [image for image in self._list("image", _image) if image.id]

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
    )


def _image(entry: dict[str, Any]) -> StoredImage:
    return StoredImage(text(entry.get("id")), tuple(texts(entry.get("names"))))


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
                "only root can see CRI-O's files, which show its pulls",
                hint="run as root on the node, or use pycrictl proxy",
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
            hint="run on the node itself, not in another PID namespace, or use pycrictl proxy",
        )


def children(pid: int) -> list[int]:
    pids: list[int] = []
    with suppress(OSError):
        for file in Path(f"/proc/{pid}/task").glob("*/children"):
            pids += map(int, file.read_text().split())
    return pids


@dataclass(slots=True, eq=False)
class FileLayer:
    """One layer of one pull; its name never changes.

    ``digest`` is empty until it is certain; until then, ``size_bytes`` (compressed) is a guess.
    ``is_complete``: its file has been closed.
    """

    name: str
    digest: str = ""
    size_bytes: int = 0
    progress: int = 0
    phase: Phase = Phase.WAITING
    is_complete: bool = False
    idle_s: float = 0.0

    def state(self, *, is_failed: bool = False) -> LayerState:
        """Return the layer for readers; ``is_failed``: its pull has failed."""
        is_broken = is_failed and self.phase not in COMPLETE
        return LayerState(
            name=self.name,
            digest=self.digest if self.digest != self.name else "",
            phase=Phase.FAILED if is_broken else self.phase,
            progress=self.progress,
            total=max(self.size_bytes, self.progress) if self.size_bytes else 0,
            is_unpacked=self.phase is not Phase.PRESENT,
            idle_s=self.idle_s,
        )

    def settle(self, phase: Phase) -> None:
        self.phase, self.idle_s = phase, 0.0
        self.progress = self.size_bytes = self.size_bytes or self.progress


class FileLayers:
    """All layers of one pull; ``manifest`` lists them lowest first, or is None if unavailable."""

    def __init__(self, manifest: Sequence[Descriptor] | None) -> None:
        self._sizes: dict[str, int] | None = None
        if manifest is not None:
            self._sizes = {layer.digest: layer.size_bytes for layer in manifest}
        self._present: list[FileLayer] = []
        self._fetched: dict[int, FileLayer] = {}
        self._seen: set[int] | None = None

    def __iter__(self) -> Iterator[FileLayer]:
        yield from self._present
        yield from self._fetched.values()

    def __len__(self) -> int:
        return len(self._present) + len(self._fetched)

    @property
    def unsettled(self) -> list[FileLayer]:
        return [layer for layer in self if layer.phase not in COMPLETE]

    def update(
        self, files: Sequence[BlobFile], stored: Mapping[str, StoredLayer], wall_s: float
    ) -> None:
        if self._seen is None:
            self._begin(files, stored)
            self._seen = {file.number for file in files}
        for file in files:
            layer = self._fetched.get(file.number)
            if layer is None and self._sizes is None:
                layer = self._fetched[file.number] = FileLayer(f"layer {file.number}")
            if layer is not None and layer.phase not in COMPLETE:
                layer.progress = max(layer.progress, file.size_bytes)
                # A new file may have been created after the open files were listed.
                layer.is_complete = not file.is_open and file.number in self._seen
                layer.idle_s = 0.0
                if not layer.is_complete:
                    layer.phase = Phase.DOWNLOADING
                    layer.idle_s = max(wall_s - file.modified_s, 0.0)
        self._seen = {file.number for file in files}
        self._identify()
        for layer in self.unsettled:
            if layer.is_complete and layer.digest in stored:
                layer.settle(Phase.DONE)
        turn = self._next_digest()
        for layer in self.unsettled:
            if layer.is_complete:
                layer.phase = Phase.EXTRACTING if turn in ("", layer.digest) else Phase.WAITING

    def finish(self) -> None:
        """Settle all layers of a successful pull; without a manifest, their digests are unknown."""
        self._identify(is_over=True)
        for layer in self.unsettled:
            layer.settle(Phase.DONE if layer.progress else Phase.PRESENT)

    def _begin(self, files: Sequence[BlobFile], stored: Mapping[str, StoredLayer]) -> None:
        """Decide which layers are already stored; each of the others gets a file."""
        if self._sizes is None:
            return
        closed = [file.size_bytes for file in files if not file.is_open]
        present = []
        for digest in sorted(self._sizes, key=stored.__contains__):
            if self._sizes[digest] in closed:
                closed.remove(self._sizes[digest])
            elif digest in stored:
                present.append(digest)
        # One of two concurrent pulls may have stored what the other is still fetching.
        present.sort(key=lambda digest: stored[digest].created)
        total = len(self._sizes)
        for digest in present[: max(total - len(files), 0)]:
            layer = FileLayer(digest, digest, self._sizes[digest])
            layer.settle(Phase.PRESENT)
            self._present.append(layer)
        left = list(self._left())
        for number in range(1, len(left) + 1):
            name = f"layer {len(self._present) + number} of {total}" if left[1:] else left[0]
            self._fetched[number] = FileLayer(name)

    def _identify(self, *, is_over: bool = False) -> None:
        """Match complete files to digests; assign the remaining layers to the other files."""
        left = self._left()
        unknown = []
        for layer in self._fetched.values():
            if not layer.digest and layer.is_complete:
                layer.digest = next(
                    (digest for digest in left if left[digest] == layer.progress), ""
                )
                layer.size_bytes = left.pop(layer.digest, layer.size_bytes)
            if not layer.digest:
                unknown.append(layer)
        pairs = list(zip(unknown, left, strict=False))
        if any(layer.progress > left[digest] for layer, digest in pairs):
            unknown.sort(key=lambda layer: -layer.progress)
            pairs = list(zip(unknown, sorted(left, key=lambda digest: -left[digest]), strict=False))
        for layer, digest in pairs:
            layer.size_bytes = left[digest]
            layer.digest = digest if is_over else ""

    def _left(self) -> dict[str, int]:
        known = {layer.digest for layer in self}
        sizes = self._sizes or {}
        return {digest: size for digest, size in sizes.items() if digest not in known}

    def _next_digest(self) -> str:
        """Return the digest of the layer to be unpacked next, in order; empty if unknown."""
        settled = {layer.digest for layer in self if layer.phase in COMPLETE}
        return next((digest for digest in self._sizes or () if digest not in settled), "")
