"""The words for a pull in running text: of diagnoses, Events and tables. Pure."""

from __future__ import annotations

import math
from typing import Any, Final

from pycrictl.base.units import (
    duration_in_words,
    format_bytes,
    format_duration,
    format_part,
    ordinal,
)
from pycrictl.pulls.messages import sums_json
from pycrictl.pulls.state import Phase, PullState, Sums

_ASKED: Final = "the registry is being queried"


def stall(stalled_s: float) -> str:
    """Return the text for a stall: ``no data for 42 s``."""
    return f"no data for {duration_in_words(int(stalled_s))}"


def far(pull: PullState) -> str:
    """Return how far a pull is: ``47 %, 47.0 of 100.0 MiB, 4.5 MiB/s, 18s left``."""
    sums, parts = pull.sums, []
    if sums.percent is not None:
        parts.append(f"{sums.percent} %")
    if sums.total:
        parts.append(format_part(sums.progress, sums.total, of=" of "))
    if sums.is_unpacking:
        parts.append(sums.unpacking)
    elif sums.stalled_s:
        parts.append(stall(sums.stalled_s))
    elif sums.rate is not None:
        parts.append(f"{format_bytes(sums.rate)}/s")
    if sums.eta_whole_s is not None:
        parts.append(f"{format_duration(sums.eta_whole_s)} left")
    return ", ".join(parts) or _ASKED


def standing(pull: PullState) -> str:
    """Return the place of a pull in the line, or how far it is."""
    if pull.place:
        return queue(pull.place, pull.behind, starts_in(pull))
    return f"being pulled, {far(pull)}"


def starts_in(pull: PullState) -> str:
    """Return when a pull is expected to leave the line: ``18s``; empty if that is unknown."""
    return "" if pull.starts_in_s is None else format_duration(math.ceil(pull.starts_in_s))


def document(pull: PullState) -> dict[str, Any]:
    """Return a pull as a part of a JSON document, with the sums and the place in the line."""
    fields = sums_json(pull.sums) if pull.sums.count else {}
    if pull.sums.percent is not None:
        fields["percent"] = pull.sums.percent
    own = {"place": pull.place, "behind": pull.behind, "starts_in": starts_in(pull)}
    return {**fields, **own, "text": standing(pull)}


def event_text(
    image: str, phase: Phase, took_s: float, sums: Sums, *, place: int = 0, error: str = ""
) -> str:
    """Return the text of an Event about a pull; ``took_s`` is the time since it began."""
    took = format_duration(round(took_s))
    if phase is Phase.WAITING:
        where = f"{ordinal(place)} in line" if place else "none is free"
        return f"Image {image} waits for a slot: {where}"
    if phase is Phase.DONE:
        return f"Image {image} was pulled in {took}"
    if phase is Phase.FAILED:
        return f"Image {image} was not pulled: {error or 'the pull was cancelled'}"
    if sums.percent is None:
        return f"Pulling image {image} for {took}"
    if sums.is_unpacking:
        return f"Pulling image {image}: {format_bytes(sums.total)} downloaded, unpacking"
    part = format_part(sums.progress, sums.total, of=" of ")
    text = f"Pulling image {image}: {sums.percent} % ({part})"
    if sums.stalled_s:
        return f"{text}, {stall(sums.stalled_s)}"
    eta_s = sums.eta_whole_s
    return text if eta_s is None else f"{text}, ETA {format_duration(eta_s)}"


def queue(place: int, behind: str, starts: str = "") -> str:
    """Return the text for a pull in the line: ``queued, 2nd, behind web, starts in 18s``."""
    words = [f"queued, {ordinal(place)}"]
    words += [f"behind {behind}"] if behind else []
    words += [f"starts in {starts}"] if starts else []
    return ", ".join(words)
