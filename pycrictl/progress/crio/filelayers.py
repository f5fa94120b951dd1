"""The layers of one pull, and how far each is, as the files that they are downloaded to show. Pure.

A file grows to the compressed size of its layer and does not say which one that is (``bigfiles``).
The manifest says which layers there are and how large; containers/storage says which are there. So
a file is a layer's once it is complete and has that layer's size, once nothing else is left that it
could be. Until then it is ``layer 3 of 7``, and under that name it is
reported to the end, since a name is a key for whoever watches; its digest comes beside the name.

The totals are right from the beginning: each unknown file is supposed to be one of the layers that
are left, no two the same one, and never one that is smaller than the file already is. What is
supposed may change as files grow. The sum does not.

A layer that is complete waits until it is its turn to be unpacked, which goes in their order.

Without a manifest, layers appear as their files do, and have no totals: a part of a sum would be
taken for the whole. So none of them is done before the pull is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pycrictl.pulls.model import Phase

if TYPE_CHECKING:
    from pycrictl.containerd.store import LayerDescriptor
    from pycrictl.progress.crio.bigfiles import BlobFile
    from pycrictl.progress.crio.storage import StoredLayer

_FINAL: Final = (Phase.DONE, Phase.PRESENT)


@dataclass(slots=True, eq=False)
class FileLayer:
    """One layer of one pull.

    Attributes:
        name: by which it is reported, for good.
        number: of its file; 0 for a layer that was there before.
        digest: empty while it is not known for certain.
        supposed: a layer that it may be, for the total; empty without a manifest.
        size_bytes: compressed; 0 while unknown, a supposition while ``digest`` is empty.
        progress: bytes, which never get fewer.
        file_bytes: the size of its file.
        is_complete: its file has been closed.
        idle_s: how long no byte has come while it should.
    """

    name: str
    number: int
    digest: str = ""
    supposed: str = ""
    size_bytes: int = 0
    progress: int = 0
    phase: Phase = Phase.WAITING
    file_bytes: int = 0
    is_complete: bool = False
    idle_s: float = 0.0
    extracted: int = 0
    extracted_total: int = 0

    def settle(self, phase: Phase) -> None:
        self.phase, self.idle_s = phase, 0.0
        self.size_bytes = self.size_bytes or self.progress
        self.progress, self.extracted = self.size_bytes, self.extracted_total


class FileLayers:
    """All layers of one pull.

    Args:
        manifest: the layers of the image, lowest first; None if it is unknown for good.
    """

    def __init__(self, manifest: Sequence[LayerDescriptor] | None) -> None:
        self._sizes: dict[str, int] | None = None
        if manifest is not None:
            self._sizes = {layer.digest: layer.size_bytes for layer in manifest}
        self._layers: list[FileLayer] = []
        self._by_number: dict[int, FileLayer] = {}
        self._left: dict[str, int] = dict(self._sizes or {})
        self._has_begun = False
        self._seen: set[int] = set()
        self.is_doubtful = False
        """Whether a file cannot be a layer of this manifest, so that it may be another image's."""

    def __iter__(self) -> Iterator[FileLayer]:
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)

    @property
    def unsettled(self) -> list[FileLayer]:
        return [layer for layer in self if layer.phase not in _FINAL]

    @property
    def _unknown(self) -> list[FileLayer]:
        return [layer for layer in self if not layer.digest]

    @property
    def applied_next(self) -> FileLayer | None:
        """The complete layer that is unpacked now, as far as is known: they are taken in order."""
        left = {layer.digest: layer for layer in self.unsettled}
        settled = {layer.digest for layer in self} - left.keys()
        for digest in self._sizes or ():
            if digest not in settled:
                layer = left.get(digest)
                return layer if layer is not None and layer.is_complete else None
        return None

    def look(
        self, files: Sequence[BlobFile], stored: Mapping[str, StoredLayer], wall_s: float
    ) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._begin(files, stored)
            self._seen = {file.number for file in files}
        for file in files:
            layer = self._by_number.get(file.number)
            if layer is None and self._sizes is None:
                layer = self._add(FileLayer(f"layer {file.number}", file.number))
            if layer is not None and layer.phase not in _FINAL:
                self._grow(layer, file, wall_s)
        self._seen = {file.number for file in files}
        if self._sizes is not None:
            self._identify()
            self._suppose()
            for layer in self.unsettled:
                if layer.digest in stored and layer.is_complete:
                    layer.settle(Phase.DONE)
        turn = self.applied_next
        for layer in self.unsettled:
            if layer.is_complete:
                is_its_turn = self._sizes is None or layer is turn
                layer.phase = Phase.EXTRACTING if is_its_turn else Phase.WAITING

    def fit(self, stored: Mapping[str, StoredLayer]) -> bool:
        return set(self._sizes or ()) <= stored.keys() and len(self) <= len(stored)

    def finish(self, stored: Mapping[str, StoredLayer]) -> None:
        left = {digest: one.size_bytes for digest, one in stored.items()}
        for layer in sorted(self if self._sizes is None else (), key=lambda layer: -layer.progress):
            fits = [digest for digest, size in left.items() if size >= layer.progress]
            if fits:
                layer.digest = min(fits, key=left.__getitem__)
                layer.size_bytes = left.pop(layer.digest)
        for layer in self.unsettled:
            layer.settle(Phase.DONE if layer.progress else Phase.PRESENT)

    def _begin(self, files: Sequence[BlobFile], stored: Mapping[str, StoredLayer]) -> None:
        """Decide which layers are there already; the others each get a file, in some order."""
        if self._sizes is None:
            return
        fetched = dict[str, int]()
        for file in files:
            fits = [
                digest
                for digest, size in self._sizes.items()
                if size == file.size_bytes and digest not in fetched
            ]
            if fits and not file.is_open:
                fetched[min(fits, key=stored.__contains__)] = file.number
        present = [name for name in self._sizes if name in stored and name not in fetched]
        # Of two pulls at once, one may have stored what the other is still fetching.
        newest = sorted(present, key=lambda digest: stored[digest].created)
        while newest and len(present) + len(files) > len(self._sizes):
            present.remove(newest.pop())
        for digest in present:
            layer = self._add(FileLayer(digest, 0, digest, digest, self._left.pop(digest)))
            layer.settle(Phase.PRESENT)
        numbers = {number: digest for digest, number in fetched.items()}
        missing = [digest for digest in self._left if digest not in fetched]
        most = max([len(self._left), *numbers])
        for number in range(1, most + 1):
            digest = numbers.get(number, "")
            if digest or missing:
                name = digest or f"layer {len(present) + number} of {len(self._sizes)}"
                if not digest and len(missing) == 1 and len(self._left) == 1:
                    name = digest = missing[0]
                layer = self._add(FileLayer(name, number))
                self._suppose_one(layer, digest or missing[0])
                if digest:
                    self._know(layer, digest)
                if layer.supposed in missing:
                    missing.remove(layer.supposed)

    def _add(self, layer: FileLayer) -> FileLayer:
        self._layers.append(layer)
        if layer.number:
            self._by_number[layer.number] = layer
        return layer

    def _grow(self, layer: FileLayer, file: BlobFile, wall_s: float) -> None:
        layer.file_bytes = file.size_bytes
        layer.progress = max(layer.progress, file.size_bytes)
        if layer.digest and self._sizes is not None:
            layer.progress = min(layer.progress, layer.size_bytes)
        # A new file may have been made after the look at what is open.
        layer.is_complete = not file.is_open and file.number in self._seen
        if layer.is_complete:
            layer.idle_s = 0.0
        else:
            layer.phase = Phase.DOWNLOADING
            layer.idle_s = max(wall_s - file.modified_s, 0.0)

    def _identify(self) -> None:
        for layer in self._unknown:
            if layer.is_complete:
                fits = [digest for digest, size in self._left.items() if size == layer.file_bytes]
                if fits:
                    self._know(layer, layer.supposed if layer.supposed in fits else fits[0])
                elif any(other.digest and other.size_bytes == layer.file_bytes for other in self):
                    self._pass_over(layer)
        unknown = self._unknown
        if len(unknown) == len(self._left) == 1:
            (digest,) = self._left
            if unknown[0].progress <= self._left[digest] and not unknown[0].is_complete:
                self._know(unknown[0], digest)

    def _pass_over(self, layer: FileLayer) -> None:
        """Expect a later file: this one is of a layer that has one, or that was there already."""
        del self._by_number[layer.number]
        layer.number = max(self._by_number, default=0) + 1
        self._by_number[layer.number] = layer
        layer.file_bytes, layer.is_complete, layer.phase = 0, False, Phase.WAITING

    def _know(self, layer: FileLayer, digest: str) -> None:
        """Take a layer for what it is; who was supposed to be that gets its supposition."""
        for other in self:
            if other is not layer and other.supposed == digest and layer.supposed in self._left:
                self._suppose_one(other, layer.supposed)
        del self._left[digest]
        assert self._sizes is not None
        layer.digest = layer.supposed = digest
        layer.size_bytes = self._sizes[digest]
        layer.progress = min(layer.progress, layer.size_bytes)

    def _suppose_one(self, layer: FileLayer, digest: str) -> None:
        assert self._sizes is not None
        layer.supposed, layer.size_bytes = digest, self._sizes[digest]

    def _suppose(self) -> None:
        """Suppose anew if a file has become too large for what it was supposed to be."""
        unknown = self._unknown
        self.is_doubtful = any(layer.is_complete for layer in unknown)
        if all(layer.progress <= layer.size_bytes for layer in unknown):
            return
        largest = sorted(self._left, key=lambda digest: -self._left[digest])
        unknown.sort(key=lambda layer: -layer.progress)
        for layer, digest in zip(unknown, largest, strict=False):
            self._suppose_one(layer, digest)
        self.is_doubtful |= any(layer.progress > layer.size_bytes for layer in unknown)
