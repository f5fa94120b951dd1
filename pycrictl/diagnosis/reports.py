"""What was seen of many pods at one moment. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

from pycrictl.diagnosis import facts
from pycrictl.diagnosis.disks import Disk
from pycrictl.diagnosis.findings import Finding, Missing, Weight


class PodReport(NamedTuple):
    """A pod, and what is wrong with it, the most likely first; a healthy one has one note."""

    facts: facts.PodFacts
    findings: list[Finding]

    @property
    def cause(self) -> Finding:
        """The most likely cause, or that all is well."""
        return self.findings[0]

    @property
    def is_sick(self) -> bool:
        """Whether it is not what it should be."""
        return self.cause.weight > Weight.NOTE

    @property
    def gravity(self) -> tuple[int, int, str]:
        """What orders reports, the gravest first."""
        return -self.cause.weight, -self.cause.rank, self.facts.full_name


class Look(NamedTuple):
    """What was seen at one moment.

    Attributes:
        reports: of all pods, the gravest first.
        disks: the file systems of images, containers, volumes and logs.
        missing: sources that could not be asked.
    """

    reports: list[PodReport]
    disks: tuple[Disk, ...]
    missing: tuple[Missing, ...]


def document(look: Look) -> dict[str, Any]:
    """Return what is wrong with the pods, as data for JSON and for people."""
    sick = [one for one in look.reports if one.is_sick]
    return {
        "sick": len(sick),
        "pods": len(look.reports),
        "findings": [
            {
                "pod": one.facts.full_name,
                "cause": one.cause.document(),
                "also": [each.document() for each in one.findings[1:]],
            }
            for one in sick
        ],
        "missing": [one._asdict() for one in look.missing],
    }
