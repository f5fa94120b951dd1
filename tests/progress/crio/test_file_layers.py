"""Which layer a file is, and that the sums are right while that is unknown."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from pycrictl.containerd.store import LayerDescriptor
from pycrictl.progress.crio.file_layers import FileLayer, FileLayers
from pycrictl.progress.crio.files import BlobFile
from pycrictl.progress.crio.storage import StoredLayer
from pycrictl.pulls.model import Phase


def digest(name: str) -> str:
    return f"sha256:{name.encode().hex():0>64}"


def manifest(**sizes: int) -> list[LayerDescriptor]:
    return [LayerDescriptor(digest(name), size, "") for name, size in sizes.items()]


def stored(**sizes: int) -> dict[str, StoredLayer]:
    return {
        digest(name): StoredLayer(digest(name), size, "2026-01-01T00:00:00Z")
        for name, size in sizes.items()
    }


def files(*sizes: int, closed: tuple[int, ...] = ()) -> list[BlobFile]:
    """Files 1, 2 …, all open but those whose numbers are ``closed``."""
    return [BlobFile(n, size, n not in closed, 0.0) for n, size in enumerate(sizes, 1)]


def by_name(layers: FileLayers) -> dict[str, FileLayer]:
    return {layer.name: layer for layer in layers}


def look(layers: FileLayers, *seen: BlobFile, there: dict[str, StoredLayer] | None = None) -> None:
    layers.look(seen, there or {}, 0.0)


def test_a_file_is_a_layer_when_it_is_complete_and_has_its_size() -> None:
    layers = FileLayers(manifest(a=10, b=20, c=30))
    look(layers, *files(10, 9))
    assert not any(layer.digest for layer in layers)  # it may go on growing
    look(layers, *files(10, 9), there={})
    look(layers, *files(10, 30, closed=(2,)))
    assert [layer.digest for layer in layers] == ["", digest("c"), ""]
    assert by_name(layers)["layer 2 of 3"].phase is Phase.WAITING  # the others come first
    look(layers, *files(10, 30, closed=(2,)), there=stored(c=30))
    assert [layer.phase for layer in layers][:2] == [Phase.DOWNLOADING, Phase.DONE]


def test_a_new_file_is_not_complete_at_its_first_look() -> None:
    """It may have been made after the look at what is open."""
    layers = FileLayers(manifest(a=10, b=20))
    look(layers, *files(1))
    look(layers, *files(2, 10, closed=(2,)))
    assert [layer.phase for layer in layers] == [Phase.DOWNLOADING] * 2
    look(layers, *files(2, 10, closed=(2,)))
    assert [layer.phase for layer in layers] == [Phase.DOWNLOADING, Phase.EXTRACTING]


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


def test_without_a_manifest_there_are_bytes_and_no_totals() -> None:
    layers = FileLayers(None)
    look(layers, *files(5))
    look(layers, *files(7, 3, closed=(1,)))
    assert [(layer.name, layer.progress, layer.size_bytes) for layer in layers] == [
        ("layer 1", 7, 0), ("layer 2", 3, 0),
    ]  # fmt: skip
    layers.finish(stored(a=7, b=9))
    assert [(layer.digest, layer.progress, layer.phase) for layer in layers] == [
        (digest("a"), 7, Phase.DONE), (digest("b"), 9, Phase.DONE),
    ]  # fmt: skip


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=12),
    st.integers(0, 2**32),
)
def test_any_pull(sizes: list[int], seed: int) -> None:
    """Names stay, bytes never get fewer, sums hold at each look, and the end is exact."""
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
        layers.look(seen, store, 0.0)
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
