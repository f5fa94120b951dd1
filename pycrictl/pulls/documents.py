"""Pulls as they are written for clients, and as clients read them. Pure.

A progress stream has a report on each item (``wire.progress``), one of which carries the sums. An
ImagePull object has the sums as well and, for people, the fields that its schema explains. A client
that gets sums shows them, and adds up nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pycrictl.foreign import count, mapping, mappings, text
from pycrictl.pulls.model import COMPLETE, Phase, Pull, PullItem, Totals, stall
from pycrictl.units import escape, format_bytes, format_duration, format_part
from pycrictl.wire.progress import MAX_TEXT, Report

MAX_LAYERS: Final = 200
"""The maximum number of layers in an ImagePull object."""

_PHASES: Final = frozenset(Phase)


def report_of(item: PullItem, image: str, *, is_done: bool = False) -> Report:
    """Return the report on an item; ``is_done``: its pull has succeeded since."""
    phase, progress = item.phase, item.progress
    if is_done and phase not in COMPLETE:
        phase, progress = Phase.DONE, item.total
    extracted_total = 0 if item.is_estimated else item.extracted_total
    return Report(
        image=image,
        layer=item.layer,
        progress=progress,
        total=item.total,
        error=item.error[:MAX_TEXT] if phase is Phase.FAILED else "",
        phase=phase,
        queue_position=item.queue_position,
        extracted=extracted_total if phase is Phase.DONE else item.extracted,
        extracted_total=extracted_total,
        resumed=item.resumed,
        behind=item.behind,
        digest=item.digest,
        idle_s=round(item.idle_s, 1),
    )


def with_sums(reports: list[Report], sums: Totals | None) -> list[Report]:
    """Return the reports on an image, with its sums in the first one."""
    if reports and sums is not None:
        reports[0] = reports[0]._replace(sums=sums.to_json())
    return reports


def status_of(pull: Pull, *, is_moving: bool) -> dict[str, Any]:
    """Return the status of an ImagePull, from a pull whose sums are known.

    Args:
        is_moving: it is being pulled or unpacked, so rate and time left are meaningful.
    """
    totals = pull.totals
    assert totals is not None
    found: dict[str, Any] = {
        "progressBytes": totals.progress,
        "totalBytes": totals.total,
        "sums": totals.to_json(),
    }
    if totals.extracted_total:
        found |= {
            "extractedBytes": totals.extracted,
            "extractedTotalBytes": totals.extracted_total,
            **({"extractedEstimated": True} if totals.is_estimated else {}),
        }
    if totals.percent is not None:
        found["percent"] = totals.percent
    if is_moving:
        if totals.rate is not None:
            found["bytesPerSecond"] = round(totals.rate)
        if totals.eta_whole_s is not None:
            found["etaSeconds"] = totals.eta_whole_s
        if totals.is_stalled:
            found["stalledSeconds"] = int(totals.idle_s)
    if position := max((item.queue_position for item in pull.items), default=0):
        found["queuePosition"] = position
    if layers := [_layer(item) for item in pull.items[:MAX_LAYERS] if item.layer]:
        found["layers"] = layers
    return found


def _layer(item: PullItem) -> dict[str, Any]:
    digest = item.layer if ":" in item.layer else item.digest
    found: dict[str, Any] = {
        "name": escape(item.layer),
        **({"digest": escape(digest)} if digest else {}),
        "phase": item.phase.value,
        "progressBytes": item.progress,
        "totalBytes": item.total,
    }
    if item.extracted_total and not item.is_estimated:
        found |= {"extractedBytes": item.extracted, "extractedTotalBytes": item.extracted_total}
    return found


def reports_in(status: Mapping[str, Any], whole: Report) -> Iterator[Report]:
    """Iterate over the reports on a pull, read from the status of an ImagePull.

    Args:
        whole: the report on the image, with the fields that are known without the status.
    """
    layers = mappings(status.get("layers"))
    is_over = whole.phase in (Phase.DONE, Phase.FAILED)
    sums = None if is_over else mapping(status.get("sums")) or None
    for layer in layers:
        yield _report(layer, whole._replace(sums=sums))
        sums = None
    if not layers or is_over or whole.phase == Phase.PRESENT:
        yield _report({**status, "phase": whole.phase, "error": whole.error}, whole)


def _report(part: Mapping[str, Any], whole: Report) -> Report:
    phase = text(part.get("phase"))
    digest, name = text(part.get("digest")), text(part.get("name"))
    return whole._replace(
        layer=name or digest,
        progress=count(part.get("progressBytes")),
        total=count(part.get("totalBytes")),
        error=text(part.get("error")),
        phase=phase if phase in _PHASES else whole.phase,
        extracted=count(part.get("extractedBytes")),
        extracted_total=count(part.get("extractedTotalBytes")),
        digest=digest if name and name != digest else "",
    )


def event_text(
    image: str,
    phase: Phase,
    took_s: float,
    totals: Totals | None = None,
    *,
    place: str = "",
    error: str = "",
) -> str:
    """Return the text of an Event about a pull; ``took_s`` is the time since it began."""
    took = format_duration(round(took_s))
    if phase is Phase.WAITING:
        return f"Image {image} waits for a slot: {place or 'none is free'}"
    if phase is Phase.DONE:
        return f"Image {image} was pulled in {took}"
    if phase is Phase.FAILED:
        return f"Image {image} was not pulled: {error or 'it was given up'}"
    if totals is None or totals.percent is None:
        return f"Pulling image {image} for {took}"
    if totals.is_unpacking:
        return f"Pulling image {image}: {format_bytes(totals.total)} downloaded, unpacking"
    part = format_part(totals.progress, totals.total, of=" of ")
    text = f"Pulling image {image}: {totals.percent} % ({part})"
    if totals.is_stalled:
        return f"{text}, {stall(totals.idle_s)}"
    eta_s = totals.eta_whole_s
    return text if eta_s is None else f"{text}, ETA {format_duration(eta_s)}"
