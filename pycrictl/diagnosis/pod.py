"""The causes that hold for a pod, a node, a workload or a claim, the most likely first. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final, Generic, NamedTuple, TypeVar

from pycrictl.diagnosis.causes import ROWS, Cause, Side, Topic
from pycrictl.diagnosis.facts import PodFacts, Source
from pycrictl.diagnosis.findings import (
    Disk,
    Finding,
    Missing,
    Weight,
    disk_findings,
    document_with,
    ranked,
)
from pycrictl.diagnosis.wording import Wording
from pycrictl.kube.nodes import Node
from pycrictl.kube.workloads import Claim, Workload

Facts = PodFacts | Node | Workload | Claim
F = TypeVar("F", bound=Facts)

_TOPICS: Final = {Node: Topic.NODE, Workload: Topic.WORKLOAD, Claim: Topic.CLAIM}


class Report(NamedTuple, Generic[F]):
    """A pod, node, workload or claim, and its findings, the most likely cause first."""

    facts: F
    findings: list[Finding]

    @property
    def cause(self) -> Finding:
        return self.findings[0]

    @property
    def is_sick(self) -> bool:
        return self.cause.weight > Weight.NOTE

    @property
    def severity_key(self) -> tuple[int, int, str]:
        return -self.cause.weight, -self.cause.rank, self.facts.full_name

    def document(self) -> dict[str, Any]:
        name, is_pod = self.facts.full_name, isinstance(self.facts, PodFacts)
        whose = {"pod": name if is_pod else None, "subject": self.cause.subject if is_pod else name}
        return {**whose, "cause": self.cause, "also": self.findings[1:]}


class Look(NamedTuple):
    """The reports of a node or cluster, the number of pods, and what concerns all of them."""

    reports: list[Report[Any]]
    pods: int
    disks: tuple[Disk, ...]
    missing: tuple[Missing, ...]
    findings: tuple[Finding, ...] = ()


class Match(NamedTuple):
    """A cause that holds for the facts, or for an item of them, with its detail."""

    cause: Cause
    rank: int
    item: Any
    detail: str

    @property
    def weight(self) -> Weight:
        """The weight of the cause; it is less for a container that is running again."""
        is_again = self.cause.topic is Topic.CONTAINER and self.item.state == "running"
        return min(self.cause.weight, Weight.WARNING) if is_again else self.cause.weight


def report(facts: F, side: Side = Side.NODE, matches: list[Match] | None = None) -> Report[F]:
    """Word what holds for the facts, or only the given causes."""
    found = causes_of(facts, side) if matches is None else matches
    findings = [_worded(facts, one, side) for one in found]
    if isinstance(facts, PodFacts) and (not found or found[0].weight > Weight.NOTE):
        disks = disk_findings(facts.disks)
        findings += [one._replace(text=f"is not running, and {one.text}") for one in disks]
    return Report(facts, ranked(findings))


def causes_of(facts: Facts, side: Side) -> list[Match]:
    """Return the causes that hold, the most serious first."""
    if not isinstance(facts, PodFacts):
        found = list(_find(facts, _TOPICS[type(facts)], [None], side))
    elif facts.phase == "Succeeded":
        found = list(_find(facts, Topic.CALM, [None], side))
    else:
        found = _causes_of_pod(facts, side)
    return sorted(found, key=lambda one: (-one.weight, -one.rank))


def _causes_of_pod(facts: PodFacts, side: Side) -> list[Match]:
    has_node = facts.node is not None and not facts.has_ended
    found = list(_find(facts, Topic.HOST, [None], side)) if has_node else []
    if facts.pod is not None and facts.pod.deletion_s:
        return [*found, *_find(facts, Topic.DELETION, [None], side)]
    own = [one for one in facts.containers if one.role != "debug"]
    for topic in (Topic.POD, Topic.SANDBOX, Topic.VOLUME, Topic.GATE):
        found += _find(facts, topic, [None], side)
    found += _find(facts, Topic.IMAGE, facts.images, side)
    for topic in (Topic.CONTAINER, Topic.PROBE):
        found += _find(facts, topic, own, side)
    if any(one.weight > Weight.NOTE for one in found):
        return found
    if not own or any(one.state not in ("running", "exited") for one in own):
        return [*found, *_find(facts, Topic.UNKNOWN, [None], side)]
    debuggers = [one for one in facts.containers if one.role == "debug"]
    calm = _find(facts, Topic.CALM, [None], side)
    return [*calm, *_find(facts, Topic.DEBUG, debuggers, side)]


@lru_cache
def _rows(topic: Topic, side: Side, seen: tuple[Source, ...]) -> list[tuple[int, Cause]]:
    """Return the rows that count on a side, and whose sources were seen."""
    return [
        (rank, cause)
        for rank, cause in ROWS[topic]
        if cause.side in (side, Side.BOTH) and {*cause.needs} <= {*seen}
    ]


def _find(facts: Facts, topic: Topic, items: Iterable[Any], side: Side) -> Iterator[Match]:
    rows = _rows(topic, side, facts.seen if isinstance(facts, PodFacts) else ())
    for item in items:
        for rank, cause in rows:
            if detail := cause.holds(facts, item):
                # No full stop: other words follow.
                yield Match(cause, rank, item, "" if detail is True else str(detail).rstrip("."))
                break


def _worded(facts: Facts, match: Match, side: Side) -> Finding:
    cause = match.cause
    words = Wording(facts, match.item, match.detail, is_on_node=side is Side.NODE)
    return Finding(
        words.text(cause.kind),
        match.weight,
        words.text(cause.text),
        words.advice(cause.advice),
        match.rank,
        match.item.name if cause.topic in (Topic.CONTAINER, Topic.PROBE) else "",
        words.text("node {node}") if cause.topic is Topic.HOST else "",
    )


def document(facts: PodFacts) -> dict[str, Any]:
    return document_of(report(facts))


def document_of(one: Report[Any]) -> dict[str, Any]:
    return document_with(**one.document(), healthy=not one.is_sick, facts=one.facts)


def survey_document(look: Look) -> dict[str, Any]:
    sick = [one for one in look.reports if one.is_sick]
    counts = {"sick": len(sick), "pods": look.pods}
    return document_with(**counts, findings=sick, node=look.findings, missing=look.missing)
