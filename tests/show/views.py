"""Views for tests, as a tracker would make them, and what the bars draw of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from pycrictl.pulls.meter import sums_of
from pycrictl.pulls.state import LayerState, Phase, PullState, Sums, View
from pycrictl.show.displays.phrases import width
from pycrictl.show.displays.pull_bars import Bars
from tests.show.screen import Terminal

MIB = 1024 * 1024
DEMO = "127.0.0.1:5000/demo:1"


def digest(number: int) -> str:
    """Return a digest whose short form is the number as twelve hexadecimal digits."""
    return f"sha256:{number:012x}{'0' * 52}"


class Part(NamedTuple):
    """A layer of a test, with the fields of its pull."""

    layer: LayerState
    pull: dict[str, Any]


_OF_PULL = ("error", "place", "behind", "starts_in_s", "pods", "node", "began_s")


def layer(
    number: int = 1,
    phase: Phase = Phase.DOWNLOADING,
    progress: int = 0,
    total: int = 0,
    *,
    image: str = DEMO,
    name: str | None = None,
    **more: Any,
) -> Part:
    """Return a layer; ``name`` replaces the digest made from ``number``."""
    pull = {key: more.pop(key) for key in _OF_PULL if key in more}
    name = digest(number) if name is None else name
    layer = LayerState(name=name, phase=phase, progress=progress, total=total, **more)
    return Part(layer, {"image": image, **pull})


def pulls(parts: Sequence[Part]) -> dict[str, PullState]:
    """Return the pulls that these layers make up."""
    states: dict[str, PullState] = {}
    for part in parts:
        pull = PullState(**part.pull)
        before = states.get(pull.name, pull)
        error = pull.error or before.error
        states[pull.name] = replace(before, layers=(*before.layers, part.layer), error=error)
    return {name: replace(pull, sums=sums(pull.layers)) for name, pull in states.items()}


def view(
    parts: Sequence[Part],
    now: float = 0.0,
    *,
    changed: Sequence[Part] | None = None,
    awaited: Sequence[PullState] = (),
    images: Mapping[str, Sums] | None = None,
    **more: Any,
) -> View:
    """Return a view of these layers, all of them changed unless ``changed`` is given.

    ``more`` are fields of the sums.
    """
    states = {
        name: replace(pull, sums=(images or {}).get(name, pull.sums))
        for name, pull in pulls(parts).items()
    }
    changes = [
        (states[PullState(**part.pull).name], part.layer)
        for part in (parts if changed is None else changed)
    ]
    return View(
        pulls=states,
        changed=tuple(changes),
        sums=sums([part.layer for part in parts], **more),
        now=now,
        wall_s=now,
        awaited=tuple(awaited),
    )


def sums(layers: Sequence[LayerState], **more: Any) -> Sums:
    """Return the sums of layers; ``more`` overrides their fields."""
    return Sums(**{**sums_of(layers), "stalled_s": 0.0, **more})


IMAGES = (DEMO, "docker.io/library/postgres:16.4", "registry.k8s.io/pause:3.10")


def forty_layers(step: int, images: Sequence[str] = IMAGES) -> list[Part]:
    """40 layers over several images at ``step`` of 60: each waits, downloads, extracts, is done."""
    items = []
    for number in range(40):
        size = (number % 7 + 1) * MIB
        at = step - number
        phase = Phase.WAITING
        if at >= 14:
            phase = Phase.DONE
        elif at >= 10:
            phase = Phase.EXTRACTING
        elif at >= 0:
            phase = Phase.DOWNLOADING
        extracting = phase is Phase.EXTRACTING
        items.append(
            layer(
                number,
                phase,
                min(max(at, 0), 10) * size // 10,
                size,
                image=images[number * len(images) // 40],
                extracted=(at - 10) * size if extracting else 0,
                extracted_total=4 * size if extracting else 0,
            )
        )
    return items


# What the bars draw of them


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    with Terminal() as terminal:
        yield terminal


def drawn(*items: Part, size: tuple[int, int] = (80, 24), **more: Any) -> list[str]:
    with Terminal(*size) as terminal:
        bars = Bars(terminal.stderr, {})
        bars.show(view(items, **more))
        lines = terminal.visible_lines()
        assert terminal.screen.cut == 0
        assert all(width(line) < max(size[0], 2) for line in lines)
        bars.close()
        return lines
