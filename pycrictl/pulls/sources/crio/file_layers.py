"""The layers of one pull and their progress, derived from the files they are downloaded to. Pure.

A file grows to the compressed size of its layer but does not name it (``files``). The manifest
lists all layers and their sizes; containers/storage lists those already stored. A complete file is
matched to a layer by size. Until then it is ``layer 3 of 7``, and it keeps that name, which is a
key for watchers; the digest is reported beside it.

The other files are assigned to the remaining layers in order, or by descending size if a file is
too large for its layer. So the sums are right from the beginning.

Without a manifest, layers appear as their files do and have no totals, as a partial sum would be
taken for the whole. So none of them is done before the pull is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pycrictl.pulls.sources.crio.files import BlobFile, StoredLayer
from pycrictl.pulls.state import COMPLETE, LayerState, Phase
from pycrictl.runtime.containerd.store import Descriptor


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

    def finish(self, stored: Mapping[str, StoredLayer]) -> None:
        self._sizes = self._sizes or {
            digest: stored_layer.size_bytes for digest, stored_layer in stored.items()
        }
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
        count = len(self._sizes)
        for digest in present[: max(count - len(files), 0)]:
            layer = FileLayer(digest, digest, self._sizes[digest])
            layer.settle(Phase.PRESENT)
            self._present.append(layer)
        left = list(self._left())
        for number in range(1, len(left) + 1):
            name = f"layer {len(self._present) + number} of {count}" if left[1:] else left[0]
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
