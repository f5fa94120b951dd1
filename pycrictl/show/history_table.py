"""The history of pulls for people: a table, and a line that sums it up. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TextIO

from pycrictl.show.render import Table, write_lines, write_table
from pycrictl.units import format_bytes, format_duration, plural, shorten

_NONE: Final = "-"
_CAUSE_CHARS: Final = 100
_HEADER: Final = (
    *("ENDED", "IMAGE", "POD", "WAITED", "PULLED", "GOT", "REUSED", "RATE", "ATTEMPTS", "OUTCOME"),
)


def write_history(document: Mapping[str, Any], out: TextIO, *, header: bool = True) -> None:
    """Write pulls and, with headings, the sum of them."""
    pulls, text = document["pulls"], _sum(document["summary"])
    if pulls:
        table = Table(_HEADER, list(map(_row, pulls)), min_width=0, footer=text)
        write_table(table, out, header=header)
    elif header:
        write_lines([text], out)


def _row(pull: Mapping[str, Any]) -> tuple[str, ...]:
    outcome = f"{pull['outcome']} (shared)" if pull["joined"] else pull["outcome"]
    if cause := pull["cause"]:
        outcome = f"{outcome}: {shorten(cause, _CAUSE_CHARS)}"
    rate = pull["bytesPerSecond"]
    return (
        pull["ended"][:19] + "Z",
        pull["image"],
        pull["pod"] or _NONE,
        _duration(pull["waitedSeconds"]),
        _duration(pull["pulledSeconds"]),
        _bytes(pull["gotBytes"]),
        _bytes(pull["reusedBytes"]),
        _NONE if rate is None else f"{format_bytes(rate)}/s",
        str(pull["attempts"]),
        outcome,
    )


def _sum(summary: Mapping[str, Any]) -> str:
    if not summary["count"]:
        return "no pulls"
    parts = [f"{plural(summary['count'], 'pull')}, {summary['failed']} failed"]
    for key, name in (("waitedSeconds", "waited"), ("pulledSeconds", "pulled")):
        median, p95 = summary[key]["median"], summary[key]["p95"]
        if median is not None:
            parts.append(f"{name} {_duration(median)} median, {_duration(p95)} p95")
    got, reused = format_bytes(summary["gotBytes"]), format_bytes(summary["reusedBytes"])
    return "; ".join([*parts, f"{got} got, {reused} reused"])


def _duration(seconds: float) -> str:
    return format_duration(round(seconds, 1))


def _bytes(size: int | None) -> str:
    return _NONE if size is None else format_bytes(size)
