"""Phases of layers, derived from sights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.pulls.sources.layers import Ingest, Layers, StoreState
from pycrictl.pulls.state import Phase
from pycrictl.runtime.containerd.store import Descriptor

GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"
STARTED_S = 1000.0
SNAPSHOTTER = "overlayfs"


def make(*names: str, size_bytes: int = 100, media_type: str = GZIP) -> Layers:
    """Layers named ``a``, ``b``, … with the chain IDs ``chain-0``, ``chain-1``, …"""
    layers = Layers(STARTED_S)
    descriptors = [Descriptor(name, size_bytes, media_type) for name in names]
    layers.add(descriptors)
    layers.place(descriptors, [f"chain-{number}" for number in range(len(names))])
    return layers


def stores(
    ingests: Mapping[str, int] | None = None,
    blobs: str = "",
    committed: Iterable[int] = (),
    active: Iterable[int] = (),
    is_crowded: bool = False,
) -> StoreState:
    return StoreState(
        {name: Ingest(offset, STARTED_S, is_held=True) for name, offset in (ingests or {}).items()},
        set(blobs),
        {(SNAPSHOTTER, f"chain-{number}") for number in committed},
        {(SNAPSHOTTER, f"chain-{number}"): f"extract-{number}" for number in active},
        is_crowded,
    )


def update(layers: Layers, seen: StoreState, wall_s: float = STARTED_S) -> None:
    if layers.update(seen, SNAPSHOTTER, wall_s):
        layers.confirm({}, {chain_id: STARTED_S + 1 for _, chain_id in seen.committed})


def states(layers: Layers) -> list[tuple[Phase, int]]:
    return [(layer.phase, layer.progress) for layer in layers]


def test_a_layer_that_is_twice_in_an_image() -> None:
    """It is fetched once, and done when both of its places are unpacked."""
    layers = make("a", "b", "a")
    assert [layer.digest for layer in layers] == ["a", "b"]
    update(layers, stores(blobs="ab", committed=(0, 1)))
    assert states(layers) == [(Phase.WAITING, 100), (Phase.DONE, 100)]
    update(layers, stores(blobs="ab", committed=(0, 1, 2)))
    assert states(layers) == [(Phase.DONE, 100)] * 2


@pytest.mark.parametrize(
    ("offset", "is_crowded", "is_held", "updated_s", "phase"),
    [
        (0, False, True, STARTED_S, Phase.DOWNLOADING),
        (0, True, True, STARTED_S, Phase.WAITING),
        (1, True, True, STARTED_S, Phase.DOWNLOADING),
        (1, False, True, STARTED_S - 50, Phase.DOWNLOADING),
        (1, False, False, STARTED_S - 50, Phase.WAITING),
        (1, False, False, STARTED_S, Phase.DOWNLOADING),
    ],
)
def test_who_waits(
    offset: int, is_crowded: bool, is_held: bool, updated_s: float, phase: Phase
) -> None:
    layers = make("a")
    seen = stores(is_crowded=is_crowded)
    seen.ingests["a"] = Ingest(offset, updated_s, is_held)
    update(layers, seen, STARTED_S + 20)
    assert states(layers) == [(phase, offset)]
    idle_s = 20.0 if phase is Phase.DOWNLOADING else 0.0
    assert next(iter(layers)).idle_s == idle_s


@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from("abc"), st.integers(0, 200)),
            st.text("abc", max_size=3),
            st.sets(st.integers(0, 2)),
            st.sets(st.integers(0, 2)),
            st.booleans(),
        ),
        max_size=12,
    )
)
def test_whatever_is_seen_the_numbers_hold(
    steps: list[tuple[dict[str, int], str, set[int], set[int], bool]],
) -> None:
    layers = make("a", "b", "c")
    settled: dict[str, Phase] = {}
    for step in steps:
        update(layers, stores(*step))
        for layer in layers:
            assert 0 <= layer.progress <= layer.size_bytes
            if layer.phase in (Phase.EXTRACTING, Phase.DONE, Phase.PRESENT):
                assert layer.progress == layer.size_bytes
            assert settled.get(layer.digest, layer.phase) is layer.phase
            if layer.is_settled:
                settled[layer.digest] = layer.phase


@pytest.mark.parametrize(
    ("idle_s", "quiet_s", "stalled_s"),
    [
        (30.0, None, 0.0),  # the last step took 35 s
        (139.0, None, 0.0),
        (141.0, None, 141.0),
        (30.0, 2.0, 0.0),
        (30.0, 12.0, 12.0),  # containerd itself has received nothing
        (11.0, 12.0, 11.0),
    ],
)
def test_a_stall_begins_after_what_a_step_may_take(
    idle_s: float, quiet_s: float | None, stalled_s: float
) -> None:
    layers = make("a", size_bytes=10 << 20)
    for number in range(3):
        seen = stores()
        at_s = STARTED_S + 35.0 * number
        seen.ingests["a"] = Ingest(number << 20, at_s, is_held=True)
        update(layers, seen, at_s)
    update(layers, seen, at_s + idle_s)
    (layer,) = layers
    assert layer.state(quiet_s=quiet_s).stalled_s == stalled_s


@pytest.mark.parametrize(("size_bytes", "stalled_s"), [(1000, 20.0), (10 << 20, 0.0)])
def test_before_the_first_step_a_slow_network_is_assumed(size_bytes: int, stalled_s: float) -> None:
    layers = make("a", size_bytes=size_bytes)
    update(layers, stores({"a": 0}), STARTED_S + 20.0)
    (layer,) = layers
    assert layer.state().stalled_s == stalled_s
