"""The causes that hold for a pod, node, workload or claim, in words, the likeliest first. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, Generic, NamedTuple, TypeVar

from pycrictl.base.units import age_in_words, plural, quote, readable, short_id, shorten
from pycrictl.diagnosis.causes import ROWS, Cause, Side, Topic
from pycrictl.diagnosis.checks import MISSING_OBJECT, NOT_STARTED, noun
from pycrictl.diagnosis.error_causes import exit_words, pull_cause, shortened, words_of
from pycrictl.diagnosis.facts import Container, Image, PodFacts, Source
from pycrictl.diagnosis.findings import (
    Disk,
    Finding,
    Missing,
    Weight,
    disk_findings,
    document_with,
    ranked,
)
from pycrictl.kube.cluster_objects import Claim, Node, Workload
from pycrictl.pulls.reference import parse
from pycrictl.pulls.sources import failures
from pycrictl.pulls.words import far, queue, starts_in

EVIDENCE_CHARS: Final = 200
"""The most characters of a termination message in a sentence."""

_COMMANDS: Final = {
    "describe": (
        "'journalctl -u kubelet -n 50' may say more",
        "'kubectl describe pod {pod}' may say more",
    ),
    "doctor": ("'pycrictl doctor' shows", "'kubectl describe node {node}' shows"),
    "kubelet": (
        "'systemctl status kubelet' shows whether the kubelet is running",
        "'kubectl describe node {node}' shows more; if the machine is up, start its kubelet",
    ),
    "log": ("'pycrictl logs {id}' shows its log", "'kubectl logs {pod}{option}' shows its log"),
    "last_log": (
        "'pycrictl logs {previous}{id}' shows {whose} log",
        "'kubectl logs {previous}{pod}{option}' shows {whose} log",
    ),
    "missing": ("create it; 'kubectl get {wanted}' shows whether it exists",) * 2,
    "watch": (
        "'pycrictl image-pull-progress {pod}' shows its progress",
        "'kubectl image-pull-progress {pod}' shows its progress",
    ),
    "queue": (
        "'pycrictl pull-limiter status' shows the line and the limit",
        "'kubectl get imagepulls -A' shows the pulls ahead of it",
    ),
    "connection": (
        "'pycrictl doctor --registry {repository}' tests the connection",
        "check the registry of {repository}, and any proxy in front of it",
    ),
}
"""Words of advice, on the node and at a workstation where kubectl runs."""


class Wording:
    """Fills in the texts of a cause of a pod, node, workload or claim, or of an item of a pod."""

    def __init__(self, subject: Any, item: Any, detail: str, is_on_node: bool) -> None:
        self._is_on_node = is_on_node
        if isinstance(subject, Node):
            self._words = {"node": subject.name}
        elif isinstance(subject, PodFacts):
            self._words = _of_pod(subject, item, is_on_node)
        else:
            kind = getattr(subject, "kind", "pvc")
            name = f"{kind}/{subject.name} -n {subject.namespace}"
            self._words = {**subject._asdict(), "object": name}
        if missing := re.search(MISSING_OBJECT, detail):
            name = missing["name"].rpartition("/")[2]
            self._words["wanted"] = f"{missing['kind']} -n {self._words['namespace']} {name}"
        self.detail = self._words["detail"] = detail

    def text(self, text: str) -> str:
        return readable(text.format_map(self._words))

    def advice(self, advice: str | Mapping[str, str]) -> str:
        """Fill in advice; of several, the one whose pattern is found first in the detail."""
        if not isinstance(advice, str):
            matches = {re.search(pattern, self.detail): item for pattern, item in advice.items()}
            first = min(filter(None, matches), key=lambda item: (not item[0], item.start()))
            advice = matches[first]
        for name, (on_node, in_cluster) in _COMMANDS.items():
            advice = advice.replace(f"{{{name}}}", on_node if self._is_on_node else in_cluster)
        return self.text(advice)


def _of_pod(facts: PodFacts, item: Any, is_on_node: bool) -> dict[str, Any]:
    reason, message, node, owner = "", "", "", "its controller"
    if (pod := facts.pod) is not None:
        reason, message, node, owner = pod.reason, pod.message, pod.node, pod.owner
    unseen = [item for item in (Source.API, Source.JOURNAL) if item not in facts.seen]
    ended_s = max((item.finished_s for item in facts.containers), default=0.0)
    words = {
        "pod": facts.full_name if is_on_node else f"{facts.name} -n {facts.namespace}",
        "namespace": facts.namespace,
        "node": node,
        "reason": reason,
        "message": f": {' '.join(message.split()).rstrip('.')}" if message else "",
        "successor": f"{owner.replace('/', ' ') or 'no controller'} creates a new pod",
        "unseen": f" (unavailable: {', '.join(unseen)})" if unseen else "",
        "ended": f", {age_in_words(max(facts.now_s - ended_s, 0.0))} ago" if ended_s else "",
    }
    if isinstance(item, Container):
        return words | _of_container(facts, item, is_on_node)
    return words | _of_image(item, is_on_node) if isinstance(item, Image) else words


def _of_container(facts: PodFacts, container: Container, is_on_node: bool) -> dict[str, str]:
    code = f"exit code {container.exit_code}"
    code += exit_words(container.exit_code) if container.reason != "OOMKilled" else ""
    restarts = plural(container.restarts, "restart")
    is_before = container.state == "running" or (container.waiting and not is_on_node)
    return {
        "container": noun(container),
        "id": short_id(container.id),
        "option": f" -c {container.name}" if len(facts.containers) > 1 else "",
        "previous": "--previous " if is_before else "",
        "whose": "its last run's" if is_before else "its",
        "is": "is running, but" if container.state == "running" else "is not running:",
        "exit": f"{code}, {restarts}" if container.restarts else code,
        "restarts": restarts,
        "age": age_in_words(max(facts.now_s - container.started_s, 0.0)),
        "evidence": _evidence(container),
        **_of_failure(
            failures.cause(container.waiting_message) or container.waiting,
            container.image,
            is_on_node,
        ),
    }


def _evidence(container: Container) -> str:
    """Return what a container said at its end: its termination message, or its last line."""
    said = " / ".join(line.strip() for line in container.message.splitlines() if line.strip())
    if said and container.reason not in NOT_STARTED:
        return f"; its termination message: {shorten(said, EVIDENCE_CHARS)}"
    return f"; its last line: {container.lines[-1].strip()}" if container.lines else ""


def _of_failure(error: str, image: str, is_on_node: bool) -> dict[str, str]:
    cause = pull_cause(error)
    words = words_of(cause, image, is_on_node=is_on_node)
    error = shortened(error)
    return {"kind": cause.kind, "cause": words.text, "error": error, "remedy": words.advice}


def _of_image(image: Image, is_on_node: bool) -> dict[str, str]:
    pull = image.pull
    is_contrary = image.says in ("ImagePullBackOff", "ErrImagePull")
    return {
        "image": quote(image.reference),
        "repository": parse(image.reference).name,
        "place": queue(pull.place, pull.behind, starts_in(pull)) if pull is not None else "",
        "progress": far(pull) if pull is not None else "",
        "contrary": f" (the kubelet still says {image.says})" if is_contrary else "",
        "next_try": f"; {image.next_try}" if image.next_try else "",
        **_of_failure(image.failure, image.reference, is_on_node),
    }


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


class Overview(NamedTuple):
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
    """Return the findings about a subject: all causes that hold, or only the given ones."""
    causes = causes_of(facts, side) if matches is None else matches
    findings = [_worded(facts, cause, side) for cause in causes]
    if isinstance(facts, PodFacts) and (not causes or causes[0].weight > Weight.NOTE):
        disks = disk_findings(facts.disks)
        findings += [cause._replace(text=f"is not running, and {cause.text}") for cause in disks]
    return Report(facts, ranked(findings))


def causes_of(facts: Facts, side: Side) -> list[Match]:
    """Return the causes that hold, the most serious first."""
    if not isinstance(facts, PodFacts):
        causes = list(_find(facts, _TOPICS[type(facts)], [None], side))
    elif facts.phase == "Succeeded":
        causes = list(_find(facts, Topic.CALM, [None], side))
    else:
        causes = _causes_of_pod(facts, side)
    return sorted(causes, key=lambda cause: (-cause.weight, -cause.rank))


def _causes_of_pod(facts: PodFacts, side: Side) -> list[Match]:
    has_node = facts.node is not None and not facts.has_ended
    causes = list(_find(facts, Topic.HOST, [None], side)) if has_node else []
    if facts.pod is not None and facts.pod.deletion_s:
        return [*causes, *_find(facts, Topic.DELETION, [None], side)]
    own = [item for item in facts.containers if item.role != "debug"]
    for topic in (Topic.POD, Topic.SANDBOX, Topic.VOLUME, Topic.GATE):
        causes += _find(facts, topic, [None], side)
    causes += _find(facts, Topic.IMAGE, facts.images, side)
    for topic in (Topic.CONTAINER, Topic.PROBE):
        causes += _find(facts, topic, own, side)
    if any(item.weight > Weight.NOTE for item in causes):
        return causes
    if not own or any(item.state not in ("running", "exited") for item in own):
        return [*causes, *_find(facts, Topic.UNKNOWN, [None], side)]
    debuggers = [item for item in facts.containers if item.role == "debug"]
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


def document_of(report: Report[Any]) -> dict[str, Any]:
    return document_with(**report.document(), healthy=not report.is_sick, facts=report.facts)


def survey_document(overview: Overview) -> dict[str, Any]:
    sick = [report_of_pod for report_of_pod in overview.reports if report_of_pod.is_sick]
    counts = {"sick": len(sick), "pods": overview.pods}
    return document_with(**counts, findings=sick, node=overview.findings, missing=overview.missing)
