"""Findings: what is wrong or worth knowing, its weight, and what to do; findings on disks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple

from pycrictl.base.units import format_bytes, quote, quote_path
from pycrictl.pulls.state import PullState
from pycrictl.pulls.words import document


def plain(value: Any) -> Any:
    """Convert a value to JSON data: objects, lists, strings and numbers."""
    if isinstance(value, PullState):
        return document(value)
    if hasattr(value, "document"):
        return plain(value.document())
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def document_with(**values: Any) -> dict[str, Any]:
    return {name: plain(value) for name, value in values.items()}


class Weight(IntEnum):
    NOTE = 1
    WARNING = 2
    SERIOUS = 3


class Finding(NamedTuple):
    """One finding.

    ``kind`` is a keyword for scripts. ``rank`` is that of the cause in the table: of two findings
    of equal weight, the higher comes first. ``container`` is the name of the container if only one
    is concerned, ``subject`` the object at fault if that is not the pod, such as ``node n1``.
    """

    kind: str
    weight: Weight
    text: str
    advice: str = ""
    rank: int = 0
    container: str = ""
    subject: str = ""

    def document(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "severity": self.weight.name.lower(),
            "text": self.text,
            "advice": self.advice or None,
        }


class Missing(NamedTuple):
    source: str
    reason: str


class RuntimeCondition(NamedTuple):
    """A condition of the runtime that does not hold, and why."""

    condition: str
    message: str


def no_sandbox_image(name: str) -> Finding:
    text = f"the image of every pod sandbox (pause), {quote(name)}, is not on the node"
    advice = f"'pycrictl pull {name}' shows whether the next pod can get it"
    return Finding("sandbox-image", Weight.WARNING, text, advice)


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings without duplicates, the most serious first, else in their order."""
    return sorted(dict.fromkeys(findings), key=lambda finding: (-finding.weight, -finding.rank))


# Disks: judged by the limits at which the kubelet evicts pods

LOW_FREE_SHARE: Final = 0.15
LOW_FREE_INODES_SHARE: Final = 0.05
"""The kubelet's default ``imagefs.available<15%`` and ``nodefs.inodesFree<5%``."""

FULL: Final = 0.025
"""With less than this free (2 % when rounded), the next image can hardly be unpacked."""


class Disk(NamedTuple):
    """A file system of the runtime; ``inodes`` is 0 for no limit."""

    path: str
    use: str
    size_bytes: int
    free_bytes: int
    inodes: int = 0
    free_inodes: int = 0

    @property
    def free_share(self) -> float:
        return self.free_bytes / self.size_bytes if self.size_bytes else 1.0

    @property
    def free_inodes_share(self) -> float:
        return self.free_inodes / self.inodes if self.inodes else 1.0

    def __str__(self) -> str:
        text = f"{format_bytes(self.free_bytes)} of {format_bytes(self.size_bytes)} free"
        text += f" ({100 * self.free_share:.0f} %)"
        if self.inodes:
            text += f", {100 * self.free_inodes_share:.0f} % of inodes"
        return text

    def document(self) -> dict[str, Any]:
        return {**self._asdict(), "text": str(self)}


def disk_findings(disks: Iterable[Disk]) -> Iterator[Finding]:
    for disk in disks:
        where = f"the file system of {disk.use} ({quote_path(disk.path)})"
        advice = "'pycrictl rmi --prune' removes images that no container uses"
        if disk.free_share < FULL or disk.free_inodes_share < FULL:
            state = "full" if disk.free_share < FULL else "out of inodes"
            yield Finding("disk-full", Weight.SERIOUS, f"{where} is {state}: {disk}", advice)
        elif disk.free_share < LOW_FREE_SHARE or disk.free_inodes_share < LOW_FREE_INODES_SHARE:
            text = f"{where} is nearly full; the kubelet evicts pods: {disk}"
            yield Finding("disk-pressure", Weight.WARNING, text, advice)
