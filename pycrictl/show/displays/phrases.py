"""The words of progress displays: of sizes and times, pulls and layers; cut to fit. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, Final
from unicodedata import east_asian_width

from pycrictl.base.units import duration_in_words, escape, format_bytes, format_part, plural
from pycrictl.pulls import words as pull_words
from pycrictl.pulls.state import COMPLETE, LayerState, Phase, PullState, Sums, View

DIGEST_WIDTH: Final = 12
TEXT_LIMIT: Final = 300
"""Maximum length of external text in a message."""

ACTIVE: Final = frozenset({Phase.DOWNLOADING, Phase.EXTRACTING})
AWAITED_S: Final = 10.0
"""Age from which the display shows how long a pull has been waiting for its registry."""


def clean(text: str) -> str:
    """Return external text as one short line that cannot control a terminal."""
    # Cut first: scanning 100 MB would take seconds.
    words = escape(" ".join(text[: TEXT_LIMIT + 1].split()))
    return words if len(words) <= TEXT_LIMIT else words[: TEXT_LIMIT - 3] + "..."


def short_digest(digest: str) -> str:
    """Return the first digits of ``sha256:…``, the usual short name of a layer."""
    return clean(digest.rpartition(":")[2][:DIGEST_WIDTH])[:DIGEST_WIDTH]


def layer(name: str, digest: str) -> str:
    """Return a layer's name: its digest, ``layer 3 of 7``, or ``layer 12/34``."""
    if ":" in name or digest:
        return short_digest(digest or name)
    name = clean(name)
    shorter = (name, name.replace(" of ", "/"), name.rpartition(" ")[2])
    return next((one for one in shorter if width(one) <= DIGEST_WIDTH), name[:DIGEST_WIDTH])


def short_image(reference: str) -> str:
    name, at, digest = reference.partition("@")
    algorithm, colon, digits = digest.partition(":")
    digits, space, rest = digits.partition(" ")
    return clean(f"{name}{at}{algorithm}{colon}{digits[:DIGEST_WIDTH]}{space}{rest}")


def percent(done: int, total: int) -> int:
    return min(max(done * 100 // total, 0), 100)


def words(sums: Sums) -> tuple[str, str, str, str, str]:
    """Return ``45%``, ``5.2/10.0 GiB``, ``unpacked 2.1/~25.0 GiB``, ``120.3 MiB/s``, ``ETA 0:05``.

    Unknown ones are empty.
    """
    done, total, unpacked, rate = sums.progress, sums.total, "", sums.current_rate
    share = percent(done, total) if sums.percent is None and total > 0 else sums.percent
    if sums.extracted_total:
        about = sums.is_estimated
        size = format_part(sums.extracted, sums.extracted_total, is_estimated=about)
        unpacked = f"unpacked {size}"
    return (
        f"{share}%" if total > 0 else "",
        format_part(done, total),
        unpacked,
        "" if rate is None else f"{format_bytes(rate):>9}/s",
        "" if sums.eta_s is None else f"ETA {clock(sums.eta_s)}",
    )


def sentence(verb: str, sums: Sums, *more: str) -> str:
    return " ".join(filter(None, (verb, *map(str.strip, words(sums)), *more)))


def fields(sums: Sums) -> dict[str, Any]:
    found: dict[str, Any] = {"progress": sums.progress, "total": sums.total}
    if sums.extracted_total:
        found |= {"extracted": sums.extracted, "extracted_total": sums.extracted_total}
    if sums.is_estimated:
        found["extracted_estimated"] = True
    return found


def speed(sums: Sums) -> dict[str, Any]:
    rate, eta_s = sums.current_rate, sums.eta_s
    known = {"rate": rate and round(rate), "eta_s": eta_s and round(eta_s, 1)}
    return {key: value for key, value in known.items() if value is not None}


def clock(seconds: float) -> str:
    """Return ``0:02``, ``1:02:03``, or ``>99 h``."""
    if not seconds < 360_000:
        return ">99 h"
    minutes, left = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def width(text: str) -> int:
    """Return the columns that a text takes: two for wide characters, at most one for others."""
    if text.isascii():
        return len(text)
    return sum(2 if east_asian_width(char) in "FW" else 1 for char in text)


def cut(text: str, columns: int) -> str:
    if width(text) <= columns:
        return text
    return _start(text, columns - 1) + "…"[:columns]


def cut_name(name: str, columns: int) -> str:
    """Return a pull's name (``IMAGE on NODE for POD``), shortened to fit ``columns``.

    The last part of the image's path and its tag matter most. The registry is dropped first, then
    the rest of the path, the pod's namespace, the pod and the node.
    """
    image, space, rest = name.partition(" ")
    if space and not rest.startswith(("on ", "for ")):
        return cut_middle(name, columns)
    registry, slash, path = image.partition("/")
    is_registry = slash and (registry == "localhost" or not {".", ":"}.isdisjoint(registry))
    path = path if is_registry else image
    parts = path.split("/")
    short = parts[-1]
    where, is_for, pod = f" {rest}".rpartition(" for ") if space else ("", "", "")
    choices = [
        name,
        f"{path}{space}{rest}",
        *(f"…/{'/'.join(parts[at:])}{space}{rest}" for at in range(1, len(parts))),
        f"{short}{space}{rest}",
        f"{short}{where}{is_for}{pod.rpartition('/')[2]}",
        f"{short}{where if is_for else ''}",
        short,
    ]
    return next((one for one in choices if width(one) <= columns), cut_middle(short, columns))


def cut_middle(text: str, columns: int) -> str:
    """Return a text, with an ellipsis instead of its middle if it is too wide.

    The result has at least the ellipsis, which takes one column.
    """
    if width(text) <= columns:
        return text
    columns = max(columns, 1)
    tail = (columns - 1) // 2
    head = columns - 1 - tail
    end = _start(text[::-1], tail)[::-1]
    return f"{_start(text, head)}…{end}"


def fill(text: str, columns: int) -> str:
    """Return a pull's name, padded or shortened to exactly ``columns``."""
    text = cut_name(text, columns)
    return text + " " * (columns - width(text))


def _start(text: str, columns: int) -> str:
    for length, char in enumerate(text):
        columns -= width(char)
        if columns < 0:
            return text[:length]
    return text


# Pulls


def awaited(pull: PullState, wall_s: float) -> str:
    """Return ``waiting for the registry, 12 s``, or the place in the line."""
    if pull.place:
        return queue(pull)
    waited_s = waited(pull, wall_s)
    age = f", {duration_in_words(int(waited_s))}" if waited_s >= AWAITED_S else ""
    return f"waiting for the {'registry' if pull.is_begun else 'runtime'}{age}"


def waited(pull: PullState, wall_s: float) -> float:
    return max(wall_s - pull.began_s, 0.0) if pull.began_s else 0.0


def awaited_name(pull: PullState) -> str:
    return short_image(pull.image) or "an image"


def stall(layer: LayerState) -> str:
    return pull_words.stall(layer.stalled_s)


def waits_to_unpack(layer: LayerState) -> bool:
    """Return whether a layer has fully arrived and is waiting to be unpacked."""
    return layer.phase is Phase.WAITING and 0 < layer.total == layer.progress


def queue(pull: PullState) -> str:
    behind = short_image(pull.behind)
    soon = "" if pull.starts_in_s is None else duration_in_words(math.ceil(pull.starts_in_s))
    return pull_words.queue(pull.place, behind, soon)


def failure(pull: PullState) -> str:
    reason = clean(pull.error)
    return f"failed: {reason}" if reason else "failed"


def name(pull: PullState) -> str:
    shown, pod = short_image(pull.name) or "pod", pull.pod
    return f"{shown} for {clean(pod)}" if pod else shown


def counts(pull: PullState) -> str:
    parts = [f"{pull.count(*COMPLETE)}/{len(pull.layers)} done"]
    parts += [
        f"{number} {phase}"
        for phase in (Phase.WAITING, Phase.FAILED)
        if (number := pull.count(phase))
    ]
    return " · ".join(parts)


def summary(pull: PullState, elapsed_s: float) -> str:
    parts = []
    progress, total = pull.sums.progress, pull.sums.total
    if pull.has_failed:
        parts.append(failure(pull))
    elif not pull.is_complete:
        parts.append(f"at {format_part(progress, total)}")
    if pull.has_layers:
        layers = plural(len(pull.layers), "layer")
        parts.append(layers if pull.is_complete else f"{pull.count(*COMPLETE)} of {layers} done")
    if pull.is_complete:
        parts.append(format_bytes(max(total, progress)))
    if pull.count(Phase.PRESENT) == len(pull.layers):
        parts.append("already present")
    elif pull.has_started or elapsed_s >= 1.0:  # else it has failed before it was seen
        verb = "in" if pull.is_complete else "after"
        parts.append(f"{verb} {duration_in_words(elapsed_s)}")
    return "  ".join(parts)


class History:
    def __init__(self, note: Callable[[str], object]) -> None:
        self._note = note
        self._spans: dict[str, tuple[float, float | None]] = {}
        self.last: View | None = None

    def look(self, view: View) -> list[PullState]:
        """Store a view, and when each pull began and ended; return its pulls."""
        if view.dropped and not (self.last and self.last.dropped):
            kept = sum(len(pull.layers) for pull in view.pulls.values())
            self._note(f"only {kept} items are kept; others were reported and are not shown")
        self.last = view
        for name, pull in view.pulls.items():
            began_s, ended_s = self._spans.get(name, (view.wall_s, None))
            if not pull.is_over:
                ended_s = None
            elif ended_s is None:
                ended_s = view.wall_s
            self._spans[name] = pull.began_s or began_s, ended_s
        return self.pulls

    @property
    def pulls(self) -> list[PullState]:
        return list(self.last.pulls.values()) if self.last else []

    def summary(self, pull: PullState) -> str:
        now_s = self.last.wall_s if self.last else 0.0
        began_s, ended_s = self._spans.get(pull.name, (now_s, None))  # Ctrl-C may interrupt look()
        return summary(pull, (now_s if ended_s is None else ended_s) - began_s)

    def forget(self, names: Collection[str]) -> None:
        """Forget pulls that have ended: the same name then means another pull."""
        for name in names:
            self._spans.pop(name, None)
        if self.last:
            left = {name: pull for name, pull in self.last.pulls.items() if name not in names}
            self.last = replace(self.last, pulls=left)


def words_of_sums(view: View) -> list[str]:
    sums, noun = view.sums, "pod"
    if any(pull.has_layers for pull in view.pulls.values()):
        noun = "layer"
    elif any(view.pulls):
        noun = "image"
    parts = [f"{sums.done}/{plural(sums.count, noun)}"]
    if sums.unpacking and sums.eta_s is None and noun == "layer":
        parts = [sums.unpacking]
    if sums.to_come:
        parts.append(f"{plural(sums.to_come, 'image')} to come")
    if sums.failed:
        parts.append(f"{sums.failed} failed")
    return parts
