"""The layers and images that containers/storage keeps on a node (CRI-O's, podman's). Read only.

Its lists are JSON files, each replaced as a whole, so they are read without its locks and always
whole: ``<driver>-layers/layers.json`` and ``<driver>-images/images.json`` below its root. A list is
read again only when its file has changed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from pycrictl.containerd.store import is_digest
from pycrictl.foreign import count, mapping, mappings, parse, text, texts

DEFAULT_ROOT: Final = "/var/lib/containers/storage"
_LIMIT_BYTES: Final = 64 * 1024 * 1024

T = TypeVar("T")


class StoredLayer(NamedTuple):
    """A layer that is unpacked; ``digest`` and ``size_bytes`` are those of its compressed form.

    ``name`` and ``parent`` are the storage's own names; ``digest`` is empty if there is none yet.
    """

    digest: str
    size_bytes: int
    created: str = ""
    name: str = ""
    parent: str = ""


class StoredImage(NamedTuple):
    """An image; ``id`` is its config's digest without the algorithm, or made of more than that.

    ``top`` is the storage's own name of its uppermost layer.
    """

    id: str
    names: tuple[str, ...]
    top: str


class Storage:
    def __init__(self, root: str) -> None:
        self._root = Path(root)
        self._known: dict[str, tuple[tuple[int, int, int], list[Any]]] = {}

    def layers(self) -> dict[str, StoredLayer]:
        return {one.digest: one for one in self._list("layer", _layer) if one.digest}

    def images(self) -> list[StoredImage]:
        return [image for image in self._list("image", _image) if image.id]

    def layers_of(self, image: StoredImage) -> dict[str, StoredLayer]:
        by_name = {one.name: one for one in self._list("layer", _layer)}
        found: list[StoredLayer] = []
        name = image.top
        while (layer := by_name.pop(name, None)) is not None:  # each once, whatever it says
            found.append(layer)
            name = layer.parent
        return {layer.digest: layer for layer in reversed(found) if layer.digest}

    def _list(self, kind: str, read: Callable[[dict[str, Any]], T]) -> list[T]:
        with suppress(OSError, ValueError):
            for path in sorted(self._root.glob(f"*-{kind}s/{kind}s.json"))[:1]:
                facts = path.stat()
                stamp = facts.st_ino, facts.st_mtime_ns, facts.st_size
                is_known = kind in self._known and self._known[kind][0] == stamp
                if not is_known and facts.st_size <= _LIMIT_BYTES:
                    document = parse(path.read_bytes())
                    self._known[kind] = stamp, [read(one) for one in mappings(document)]
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
