"""The pull limiter's status and history, as tables made from its documents. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TextIO

from pycrictl.base.units import (
    format_bytes,
    format_duration,
    format_part,
    plural,
    shorten,
)
from pycrictl.show.render import Table, write_lines, write_table

NONE: Final = "-"
_ERROR_CHARS: Final = 100


def write_status(document: Mapping[str, Any], out: TextIO) -> None:
    limit = document["limit"]
    slots = f"{document['slotsTaken']}/{limit}" if limit else str(document["slotsTaken"])
    policy = document["policy"]
    if policy == "retry":
        policy += f" ({plural(document['retries'], 'time')}, {document['retryInterval']} apart)"
    header = ("LIMIT", "SLOTS TAKEN", "WHEN FULL", "LIMIT FROM")
    row = (str(limit) if limit else "none", slots, policy, document["limitOrigin"])
    write_table(Table(header, [row], min_width=0), out)
    sections = (
        (
            ("RUNNING", "POD", "FOR", "DONE", "BYTES", "RATE", "ETA", "ATTEMPT", "JOINED"),
            map(_running, document["running"]),
        ),
        (
            ("WAITING", "POD", "FOR", "PLACE", "STARTS IN", "BEHIND", "JOINED"),
            map(_waiting, document["waiting"]),
        ),
        (
            ("JOINED", "POD", "WAITS FOR THE PULL OF"),
            (_cells(pull["image"], pull["pod"], pull["leader"]) for pull in document["joined"]),
        ),
        (("FAILED", "POD", "AGO", "ATTEMPTS", "ERROR"), map(_failure, document["failures"])),
    )
    for columns, rows in sections:
        if listed := list(rows):
            out.write("\n")
            write_table(Table(columns, listed, min_width=0), out)
    out.write("\n")
    lines = [_kubelet(document["kubelet"])]
    if (old := document.get("predecessor")) is not None:
        pulls = f" and still makes {plural(old['pulls'], 'pull')}" if old["pulls"] else ""
        lines.append(f"The previous proxy, process {old['pid']}, has not ended yet{pulls}.")
    write_lines(lines, out)


def _cells(*values: object) -> tuple[str, ...]:
    return tuple(NONE if value in (None, "") else str(value) for value in values)


def _running(pull: Mapping[str, Any]) -> tuple[str, ...]:
    done, percent = pull["bytes"], pull["percent"]
    size = NONE if done is None else format_part(done, pull["total"] or 0, of=" of ")
    if not pull["takesSlot"]:
        size = f"{size} (present, no slot)"
    share = None if percent is None else f"{percent} %"
    left = pull.get("stalled") or pull["eta"] or pull["unpacking"]
    rate, counts = _rate(pull["rate"]), (pull["attempt"], pull["joined"])
    return _cells(pull["image"], pull["pod"], pull["elapsed"], share, size, rate, left, *counts)


def _waiting(pull: Mapping[str, Any]) -> tuple[str, ...]:
    behind = pull["behind"] or "any running pull"
    if pull["behindPod"]:
        behind += f" ({pull['behindPod']})"
    if pull["nextTry"]:
        behind = f"tries again at {pull['nextTry']}"
    keys = ("image", "pod", "elapsed", "place", "startsIn")
    return _cells(*(pull[key] for key in keys), behind, pull["joined"])


def _failure(failure: Mapping[str, Any]) -> tuple[str, ...]:
    keys = ("image", "pod", "ago", "attempts")
    return _cells(*(failure[key] for key in keys), shorten(failure["error"], _ERROR_CHARS))


def _rate(bytes_per_s: float | None) -> str:
    return NONE if bytes_per_s is None else f"{format_bytes(bytes_per_s)}/s"


def _kubelet(kubelet: Mapping[str, Any]) -> str:
    if problem := kubelet.get("problem"):
        return f"kubelet: unknown ({problem})"
    limit = kubelet["limit"]
    if limit == 1:
        text = "sends one pull at a time (serializeImagePulls), so the limit above is never reached"
    elif limit:
        text = f"sends at most {limit} pulls at once (maxParallelImagePulls)"
    else:
        text = "sends any number of pulls at once"
    return f"kubelet: {text}; {kubelet['config']}"


# History


_HISTORY: Final = tuple("ENDED IMAGE POD WAITED PULLED GOT REUSED RATE ATTEMPTS OUTCOME".split())


def write_history(document: Mapping[str, Any], out: TextIO) -> None:
    if rows := [_past(pull) for pull in document["pulls"]]:
        write_table(Table(_HISTORY, rows, min_width=0), out)
    else:
        write_lines(["no pulls"], out)


def _past(pull: Mapping[str, Any]) -> tuple[str, ...]:
    waited, pulled = (_duration(pull[key]) for key in ("waitedSeconds", "pulledSeconds"))
    got, reused = (_bytes(pull[key]) for key in ("gotBytes", "reusedBytes"))
    ended = pull["ended"][:19] + "Z"
    figures = waited, pulled, got, reused, _rate(pull["bytesPerSecond"]), pull["attempts"]
    return _cells(ended, pull["image"], pull["pod"], *figures, _outcome(pull))


def _outcome(pull: Mapping[str, Any]) -> str:
    outcome = f"{pull['outcome']} (shared)" if pull["joined"] else pull["outcome"]
    cause = pull["cause"]
    return f"{outcome}: {shorten(cause, _ERROR_CHARS)}" if cause else str(outcome)


def _duration(seconds: float) -> str:
    return format_duration(round(seconds, 1))


def _bytes(size: int | None) -> str:
    return NONE if size is None else format_bytes(size)
