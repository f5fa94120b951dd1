"""Views for tests, as a tracker would make them, and what the bars draw of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from pycrictl.pulls.model import Awaited, Phase, PullItem, Totals, View
from pycrictl.show.displays.phrases import width
from pycrictl.show.displays.pull_bars import Bars
from tests.show.screen import Terminal

MIB = 1024 * 1024
DEMO = "127.0.0.1:5000/demo:1"


def digest(number: int) -> str:
    """Return a digest whose short form is the number as twelve hexadecimal digits."""
    return f"sha256:{number:012x}{'0' * 52}"


def layer(
    number: int = 1,
    phase: Phase = Phase.DOWNLOADING,
    progress: int = 0,
    total: int = 0,
    *,
    image: str = DEMO,
    name: str | None = None,
    **more: Any,
) -> PullItem:
    """Return an item; ``name`` replaces the digest made from ``number``."""
    known: dict[str, Any] = {"error": "", "queue_position": 0, "extracted": 0, "extracted_total": 0}
    layer = digest(number) if name is None else name
    return PullItem(image, layer, phase, progress, total, **{**known, "idle_s": 0.0, **more})


def view(
    items: Sequence[PullItem],
    now: float = 0.0,
    *,
    changed: Sequence[PullItem] | None = None,
    resumed: int = 0,
    rate: float | None = None,
    eta_s: float | None = None,
    dropped: int = 0,
    awaited: Sequence[Awaited] = (),
    images: Mapping[str, Totals] | None = None,
    **more: Any,
) -> View:
    """Return a view of these items, all of them changed unless ``changed`` is given.

    ``more`` are fields of the totals.
    """
    names = dict.fromkeys(item.image for item in items)
    own = {name: sums([item for item in items if item.image == name]) for name in names}
    return View(
        tuple(items),
        tuple(items if changed is None else changed),
        sums(items, resumed=resumed, rate=rate, eta_s=eta_s, **more),
        now,
        dropped,
        tuple(awaited),
        own | {**(images or {})},
    )


def sums(items: Sequence[PullItem], **more: Any) -> Totals:
    """Return the sums of items; ``more`` overrides their fields."""
    known = [item for item in items if item.total]
    found = Totals(
        progress=sum(item.progress for item in known or items),
        total=sum(item.total for item in known),
        done=sum(item.phase in (Phase.DONE, Phase.PRESENT) for item in items),
        count=len(items),
        failed=sum(item.phase is Phase.FAILED for item in items),
        resumed=0,
        rate=None,
        eta_s=None,
    )
    return replace(found, **more)


IMAGES = (DEMO, "docker.io/library/postgres:16.4", "registry.k8s.io/pause:3.10")


def forty_layers(step: int, images: Sequence[str] = IMAGES) -> list[PullItem]:
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


def drawn(
    *items: PullItem, size: tuple[int, int] = (80, 24), aggregate: bool = False, **more: Any
) -> list[str]:
    with Terminal(*size) as terminal:
        bars = Bars(terminal.stderr, {}, aggregate=aggregate)
        bars.show(view(items, **more))
        lines = terminal.look()
        assert terminal.screen.cut == 0
        assert all(width(line) < max(size[0], 2) for line in lines)
        bars.close()
        return lines
