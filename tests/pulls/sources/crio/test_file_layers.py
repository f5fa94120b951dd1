"""Matching files to layers, with correct sums while the match is unknown."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.pulls.sources.crio.files import (
    BlobFile,
    FileLayer,
    FileLayers,
    Storage,
    StoredImage,
    StoredLayer,
)
from pycrictl.pulls.state import Phase
from pycrictl.runtime.containerd.store import Descriptor


def digest(name: str) -> str:
    return f"sha256:{name.encode().hex():0>64}"


def manifest(**sizes: int) -> list[Descriptor]:
    return [Descriptor(digest(name), size, "") for name, size in sizes.items()]


def stored(**sizes: int) -> dict[str, StoredLayer]:
    return {
        digest(name): StoredLayer(digest(name), size, "2026-01-01T00:00:00Z")
        for name, size in sizes.items()
    }


def files(*sizes: int, closed: tuple[int, ...] = ()) -> list[BlobFile]:
    """Return files 1, 2 …, all open except those numbered in ``closed``."""
    return [BlobFile(n, size, n not in closed, 0.0) for n, size in enumerate(sizes, 1)]


def by_name(layers: FileLayers) -> dict[str, FileLayer]:
    return {layer.name: layer for layer in layers}


def look(layers: FileLayers, *seen: BlobFile, there: dict[str, StoredLayer] | None = None) -> None:
    layers.update(seen, there or {}, 0.0)


def test_who_comes_late_knows_what_is_complete() -> None:
    layers = FileLayers(manifest(a=10, b=20, c=30, d=40))
    look(layers, *files(20, 7, 40, closed=(1, 3)), there=stored(a=10, b=20))
    found = by_name(layers)
    assert found[digest("a")].phase is Phase.PRESENT
    assert found["layer 2 of 4"].digest == digest("b")
    assert found["layer 2 of 4"].phase is Phase.DONE  # its file shows that this pull fetched it
    assert found["layer 3 of 4"].phase is Phase.DOWNLOADING
    assert found["layer 4 of 4"].digest == digest("d")
    assert found["layer 4 of 4"].phase is Phase.WAITING


def test_a_layer_that_another_pull_has_stored_meanwhile() -> None:
    layers = FileLayers(manifest(a=10, b=20, c=30))
    look(layers, *files(5, 9, 9), there=stored(a=10))
    assert [layer.phase for layer in layers] == [Phase.DOWNLOADING] * 3
    layers = FileLayers(manifest(a=10, b=20, c=30))
    look(layers, *files(5, 9), there=stored(a=10))
    assert [layer.progress for layer in layers] == [10, 5, 9]


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=12),
    st.integers(0, 2**32),
)
def test_any_pull(sizes: list[int], seed: int) -> None:
    """Names stay, bytes never decrease, sums hold at each poll, and the end is exact."""
    dice = random.Random(seed)
    image = {f"l{number}": size for number, size in enumerate(sizes)}
    there = {name: size for name, size in image.items() if dice.random() < 0.2}
    order = [name for name in image if name not in there]
    dice.shuffle(order)
    layers = FileLayers(manifest(**image))
    now = {number: 0 for number, _ in enumerate(order, 1)}
    opened: set[int] = set()
    before: dict[str, int] = {}
    store = stored(**there)
    for _ in range(200):
        for number, name in enumerate(order, 1):
            if number not in opened and len(opened) < 6 + len(store) and dice.random() < 0.5:
                if number == 1 or number - 1 in opened:
                    opened.add(number)
            if number in opened:
                now[number] = min(now[number] + dice.randint(0, 9), image[name])
        seen = [
            BlobFile(number, now[number], now[number] < image[order[number - 1]], 0.0)
            for number in sorted(opened)
        ]
        layers.update(seen, store, 0.0)
        for number in opened:
            if now[number] == image[order[number - 1]] and dice.random() < 0.3:
                store |= stored(**{order[number - 1]: now[number]})
        found = {layer.name: layer.progress for layer in layers}
        assert not before or found.keys() == before.keys()
        assert all(found[name] >= before.get(name, 0) for name in found)
        assert sum(layer.size_bytes for layer in layers) == sum(sizes)
        assert all(layer.progress <= layer.size_bytes for layer in layers)
        assert sum(found.values()) == sum(there.values()) + sum(file.size_bytes for file in seen)
        before = found
    assert {layer.digest: layer.size_bytes for layer in layers} == {
        digest(name): size for name, size in image.items()
    }
    assert {layer.phase for layer in layers} <= {Phase.DONE, Phase.PRESENT}


# The lists of containers/storage, as podman and CRI-O write them

A, B = digest("a"), digest("b")


def entry(name: str, digest: str, size: int, **more: Any) -> dict[str, Any]:
    return {"id": name, "compressed-diff-digest": digest, "compressed-size": size, **more}


def put(root: Path, kind: str, document: object) -> None:
    path = root / f"overlay-{kind}s" / f"{kind}s.json"
    path.parent.mkdir(parents=True)
    path.write_text(document if isinstance(document, str) else json.dumps(document))


def test_a_circle_of_layers_ends(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    put(tmp_path, "layer", [entry("1", A, 5, parent="2"), entry("2", B, 7, parent="1")])
    assert set(storage.layers_of(StoredImage("i", (), "1"))) == {A, B}


@pytest.mark.parametrize(
    "document",
    [
        "", "{", "{}", "5", "[5, null, {}]", "[" * 100_000,
        [{"id": [], "compressed-diff-digest": 5}], [entry("1", "sha256:x", 5)],
        [entry("1", A, 5, flags=7) | {"compressed-size": "5"}],
    ],
    ids=str,
)  # fmt: skip
def test_odd_lists(tmp_path: Path, document: object) -> None:
    put(tmp_path, "layer", document)
    put(tmp_path, "image", document)
    storage = Storage(str(tmp_path))
    assert all(one.size_bytes == 0 for one in storage.layers().values())
    assert not [image for image in storage.images() if image.id != "1"]
    assert storage.layers_of(StoredImage("i", (), "1")).keys() <= {A}
