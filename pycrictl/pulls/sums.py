"""Sums over the layers of one pull, or of several that share layers. Pure, and without a clock.

Each function adds up one aspect, and returns the fields of ``Sums`` that it knows. The layers given
to it are distinct; ``pulls.meter`` adds rates and times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from pycrictl.pulls.state import COMPLETE, LayerState, Phase

Work = Sequence[tuple[int, int]]
"""The bytes to download and to unpack of each layer, in their order."""

ALMOST: Final = 0.995
"""The largest share while something is missing."""


def sums_of(layers: Sequence[LayerState]) -> dict[str, Any]:
    """Return the fields of ``Sums`` over distinct layers, without rates, times and share."""
    return {**_bytes(layers), **_counts(layers), **_unpacking(layers), **_stall(layers)}


def _bytes(layers: Sequence[LayerState]) -> dict[str, Any]:
    known = [layer for layer in layers if layer.total]
    return {
        "progress": sum(layer.progress for layer in known or layers),
        "total": sum(layer.total for layer in known),
        "resumed": sum(layer.resumed for layer in layers if layer.phase is not Phase.PRESENT),
        "has_unknown": any(not layer.total and not layer.is_finished for layer in layers),
    }


def _counts(layers: Sequence[LayerState]) -> dict[str, Any]:
    named = [layer for layer in layers if layer.name]
    counted = named or layers
    whole = [layer for layer in layers if not layer.name]
    return {
        "count": len(counted),
        "done": sum(layer.phase in COMPLETE for layer in counted),
        "failed": sum(layer.phase is Phase.FAILED for layer in counted),
        "to_come": sum(not layer.is_finished for layer in whole) if named else 0,
    }


def _unpacking(layers: Sequence[LayerState]) -> dict[str, Any]:
    unpacked = [layer for layer in layers if layer.is_unpacked]
    return {
        "extracted": sum(layer.extracted for layer in unpacked),
        "extracted_total": sum(layer.extracted_total for layer in unpacked),
        "is_estimated": any(layer.is_estimated for layer in unpacked),
    }


def _stall(layers: Sequence[LayerState]) -> dict[str, Any]:
    if any(layer.phase is Phase.EXTRACTING for layer in layers):
        return {}
    downloading = [layer for layer in layers if layer.phase is Phase.DOWNLOADING]
    return {"stalled_s": min((layer.stalled_s for layer in downloading), default=0.0)}


def whole_work(layers: Iterable[LayerState]) -> list[tuple[int, int]]:
    """Return the work of the layers whose size is known."""
    return [
        (layer.total, layer.extracted_total if layer.is_unpacked else 0)
        for layer in layers
        if layer.total
    ]


def work_left(layers: Iterable[LayerState], *, failed: bool = False) -> list[tuple[int, int]]:
    """Return what is left of the work of the unfinished layers whose size is known.

    Args:
        failed: include the downloads of failed layers, too.
    """
    left: list[tuple[int, int]] = []
    for layer in layers:
        missing = layer.total - layer.progress
        if layer.phase is Phase.FAILED and failed:
            left.append((missing, 0))
        elif layer.total and not layer.is_finished:
            packed = layer.extracted_total - layer.extracted if layer.is_unpacked else 0
            left.append((missing, packed))
    return left


def duration(work: Work, rate: float, pace: float) -> float:
    """Return the seconds for this work: layers are unpacked in order, each after its download."""
    downloaded_s = unpacked_s = 0.0
    for download, unpack in work:
        downloaded_s += download / rate
        unpacked_s = max(unpacked_s, downloaded_s) + unpack / pace
    return unpacked_s


def share_of(layers: Sequence[LayerState], rate: float, pace: float) -> float | None:
    """Return the part of the work that is done at these speeds; None if no size is known."""
    all_s = duration(whole_work(layers), rate, pace)
    if not any(layer.total for layer in layers):
        return None
    if all(layer.phase in COMPLETE for layer in layers):
        return 1.0
    left_s = duration(work_left(layers, failed=True), rate, pace)
    return min(1.0 - left_s / all_s, ALMOST) if all_s else 0.0
