"""The lists of containers/storage, as podman and CRI-O write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pycrictl.progress.crio.files import Storage, StoredImage

A, B, C = (f"sha256:{letter * 64}" for letter in "abc")


def layer(name: str, digest: str, size: int, *, parent: str = "", **more: Any) -> dict[str, Any]:
    entry = {"id": name, "compressed-diff-digest": digest, "compressed-size": size, "diff-size": 99}
    return {**entry, **({"parent": parent} if parent else {}), **more}


def put(root: Path, kind: str, document: object) -> None:
    path = root / f"overlay-{kind}s" / f"{kind}s.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(document if isinstance(document, str) else json.dumps(document))
    new.rename(path)


def test_a_circle_of_layers_ends(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    put(tmp_path, "layer", [layer("1", A, 5, parent="2"), layer("2", B, 7, parent="1")])
    assert set(storage.layers_of(StoredImage("i", (), "1"))) == {A, B}


@pytest.mark.parametrize(
    "document",
    [
        "", "{", "{}", "5", "[5, null, {}]", "[" * 100_000,
        [{"id": [], "compressed-diff-digest": 5}], [layer("1", "sha256:x", 5)],
        [layer("1", A, 5, flags=7) | {"compressed-size": "5"}],
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
