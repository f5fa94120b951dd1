"""The layers and images that containers/storage keeps on a node (CRI-O's, podman's). Read only.

Its lists are JSON files, each replaced as a whole, so they are read without its locks and always
whole: ``<driver>-layers/layers.json`` and ``<driver>-images/images.json`` below its root. A list is
read again only when its file has changed.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from pycrictl.containerd.store import is_digest
from pycrictl.foreign import count, mapping, mappings, parse, text, texts

DEFAULT_ROOT: Final = "/var/lib/containers/storage"
_LIMIT_BYTES: Final = 64 * 1024 * 1024


class StoredLayer(NamedTuple):
    """A layer that is unpacked; ``digest`` and ``size_bytes`` are those of its compressed form."""

    digest: str
    size_bytes: int
    created: str = ""


class StoredImage(NamedTuple):
    """An image; ``id`` is its config's digest without the algorithm, or made of more than that.

    ``top`` is the storage's own name of its uppermost layer.
    """

    id: str
    names: tuple[str, ...]
    top: str


class _JsonList:
    def __init__(self, root: Path, kind: str) -> None:
        self._root = root
        self._kind = kind
        self._path: Path | None = None
        self._stamp: tuple[int, int, int] | None = None
        self.entries: list[dict[str, Any]] = []

    def refresh(self) -> bool:
        """Read the file if it is another one than before; return whether it was read."""
        if self._path is None:
            with suppress(OSError):
                found = sorted(self._root.glob(f"*-{self._kind}s/{self._kind}s.json"))
                self._path = found[0] if found else None
        if self._path is None:
            return False
        with suppress(OSError, ValueError):
            facts = self._path.stat()
            stamp = facts.st_ino, facts.st_mtime_ns, facts.st_size
            if stamp == self._stamp or facts.st_size > _LIMIT_BYTES:
                return False
            document = parse(self._path.read_bytes())
            if isinstance(document, list):
                self.entries = mappings(document)
                self._stamp = stamp
                return True
        return False


class Storage:
    def __init__(self, root: str) -> None:
        self.root = root
        self._layer_list = _JsonList(Path(root), "layer")
        self._image_list = _JsonList(Path(root), "image")
        self._layers: dict[str, StoredLayer] = {}
        self._images: list[StoredImage] = []

    def layers(self) -> dict[str, StoredLayer]:
        if self._layer_list.refresh():
            found = (_layer(entry) for entry in self._layer_list.entries)
            self._layers = {layer.digest: layer for layer in found if layer is not None}
        return self._layers

    def images(self) -> list[StoredImage]:
        if self._image_list.refresh():
            self._images = [
                StoredImage(
                    identity,
                    tuple(texts(entry.get("names"))),
                    text(entry.get("layer")),
                )
                for entry in self._image_list.entries
                if (identity := text(entry.get("id")))
            ]
        return self._images

    def layers_of(self, image: StoredImage) -> dict[str, StoredLayer]:
        self.layers()
        entries = {str(entry.get("id")): entry for entry in self._layer_list.entries}
        found: list[StoredLayer] = []
        name = image.top
        while (entry := entries.pop(name, None)) is not None:  # each once, whatever it says
            if (layer := _layer(entry)) is not None:
                found.append(layer)
            name = str(entry.get("parent"))
        return {layer.digest: layer for layer in reversed(found)}


def _layer(entry: dict[str, Any]) -> StoredLayer | None:
    digest = entry.get("compressed-diff-digest")
    if not is_digest(digest) or mapping(entry.get("flags")).get("incomplete"):
        return None
    return StoredLayer(
        digest,
        count(entry.get("compressed-size")),
        text(entry.get("created")),
    )
