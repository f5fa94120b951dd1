"""What is known of a cluster, object by object, and the reports on it. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any, Final, NamedTuple

from pycrictl.base.foreign import mapping, moment, text
from pycrictl.diagnosis import facts
from pycrictl.diagnosis.causes import Side
from pycrictl.diagnosis.facts import Source
from pycrictl.diagnosis.findings import Missing, Weight
from pycrictl.diagnosis.pod import Facts, Overview, Report, causes_of, report
from pycrictl.kube.cluster_objects import (
    Claim,
    Node,
    Workload,
    parse_claim,
    parse_node,
    parse_workload,
)
from pycrictl.kube.kubelet_log import Sign, sign_of
from pycrictl.kube.pods import Pod, PodImage, parse_pod
from pycrictl.node.journal import JournalLine
from pycrictl.pulls.messages import pull_in_status
from pycrictl.pulls.sources.failures import REASONS, cause
from pycrictl.pulls.state import Phase, PullState

Document = dict[str, Any]

MOST_CLOSED: Final = 20
"""The maximum number of nodes to name that are cordoned or tainted."""

_RUNS: Final = ("Pulling", "Extracting", "Queued")
_FAILED: Final = ("Failed", "BackOff")


class Event(NamedTuple):
    """A warning: the UID of the object that it is about, and what it says."""

    about: str
    line: JournalLine
    signs: tuple[Sign, ...]


def parse_event(document: Mapping[str, Any]) -> Event:
    about = mapping(document.get("involvedObject"))
    last_s = mapping(document.get("series")).get("lastObservedTime")
    times = (last_s, document.get("lastTimestamp"), document.get("eventTime"))
    at_s = next((at for text_ in times if (at := moment(text_))), 0.0)
    message = text(document.get("message"))
    container = text(about.get("fieldPath")).partition("{")[2].rstrip("}")
    signs = sign_of(text(document.get("reason")), message, container, at_s)
    return Event(text(about.get("uid")), JournalLine(at_s, "event", message), tuple(signs))


WORKLOADS: Final = {
    "deployments": "deployment",
    "replicasets": "replicaset",
    "statefulsets": "statefulset",
    "daemonsets": "daemonset",
    "jobs": "job",
    "cronjobs": "cronjob",
}
PARSERS: Final[Mapping[str, Callable[[Document], Any]]] = {
    "pods": parse_pod,
    "events": parse_event,
    "nodes": parse_node,
    "persistentvolumeclaims": parse_claim,
    "imagepulls": lambda document: document,
    **{resource: partial(parse_workload, kind) for resource, kind in WORKLOADS.items()},
}
"""The parsers of each resource's objects."""


class ClusterState:
    """The objects of a cluster, or of a namespace.

    Attributes:
        listed: the resources of which all objects are known.
        missing: resources that could not be listed.
        logs: the last lines of containers, by the UID of the pod and the container's name.
    """

    def __init__(self) -> None:
        self.listed: set[str] = set()
        self.missing: list[Missing] = []
        self.logs: dict[tuple[str, str], tuple[str, ...]] = {}
        self._objects: dict[str, dict[str, Any]] = {name: {} for name in PARSERS}

    @property
    def pods(self) -> list[Pod]:
        return list(self._objects["pods"].values())

    def put(self, resource: str, document: dict[str, Any]) -> None:
        if (known := PARSERS[resource](document)) is not None:
            self._objects[resource][key_of(document)] = known

    def drop(self, resource: str, key: str) -> None:
        self._objects[resource].pop(key, None)

    def overview(self, now_s: float, reported: Collection[str], *, is_whole: bool) -> Overview:
        """Diagnose the pods, and the objects of the resources in ``reported``.

        ``is_whole``: a namespace or the cluster was requested, not named objects; healthy pods are
        then only counted.
        """
        events: dict[str, list[Event]] = defaultdict(list)
        for event in sorted(self._objects["events"].values(), key=lambda item: item.line.at_s):
            events[event.about].append(event)
        jobs = self._replaced_jobs()
        pods = [item for item in self.pods if (item.namespace, item.owner) not in jobs]
        others: Iterator[Facts] = chain(
            self._workloads(events, jobs, now_s) if reported else (),
            self._claims(events, pods) if "persistentvolumeclaims" in reported else (),
            self._nodes(pods, now_s) if "nodes" in reported else (),
        )
        shown: list[Report[Any]] = []
        for item in chain(self._pods(pods, events, now_s), others):
            matches = causes_of(item, Side.CLUSTER)
            is_sick = bool(matches) and matches[0].weight > Weight.NOTE
            is_named = (
                not is_whole and bool(matches) and (not shown or isinstance(item, facts.PodFacts))
            )
            if is_sick or is_named:
                shown.append(report(item, Side.CLUSTER, matches))
        shown.sort(key=lambda item: item.severity_key)
        return Overview(shown, len(pods), (), tuple(self.missing))

    def _pods(
        self, pods: Iterable[Pod], events: Mapping[str, list[Event]], now_s: float
    ) -> Iterator[facts.PodFacts]:
        nodes: dict[str, Node] = {
            item.name: item._replace(now_s=now_s) for item in self._objects["nodes"].values()
        }
        closed = tuple(islice((item for item in nodes.values() if item.refusals), MOST_CLOSED))
        claims = {(item.namespace, item.name): item for item in self._unbound(events)}
        pulls: dict[object, list[Document]] = defaultdict(list)
        for pull in self._objects["imagepulls"].values():
            pulls[mapping(pull.get("spec")).get("podUID")].append(pull)
        seen = (
            Source.API,
            *([Source.JOURNAL] if "events" in self.listed else []),
            *([Source.NODES] if "nodes" in self.listed else []),
        )
        for pod in pods:
            facts_of_pod = pod_facts(pod, pulls.get(pod.uid, ()), self.logs, seen, now_s)
            names = ((pod.namespace, item) for item in pod.claims)
            own = events.get(pod.source_uid or pod.uid, ())
            yield replace(
                facts_of_pod,
                node=nodes.get(pod.node, Node(pod.node, exists=False)) if pod.node else None,
                closed=() if pod.node else closed,
                unbound=tuple(claims[name] for name in names if name in claims),
                signs=tuple(chain.from_iterable(item.signs for item in own)),
                journal=tuple(item.line for item in own),
                missing=tuple(self.missing),
            )

    def _replaced_jobs(self) -> set[tuple[str, str]]:
        """Return the Jobs of CronJobs, by namespace and OWNER, that a later one has replaced."""
        newest: dict[tuple[str, str], Workload] = {}
        jobs = [job for job in self._objects["jobs"].values() if job.owner]
        for job in sorted(jobs, key=lambda job: job.since_s):
            newest[job.namespace, job.owner] = job
        kept = {job.uid for job in newest.values()}
        return {(job.namespace, f"Job/{job.name}") for job in jobs if job.uid not in kept}

    def _workloads(
        self, events: Mapping[str, list[Event]], replaced: set[tuple[str, str]], now_s: float
    ) -> Iterator[Workload]:
        """Iterate over workloads, except ReplicaSets of Deployments and replaced Jobs."""
        for resource in WORKLOADS:
            for workload in self._objects[resource].values():
                is_part = workload.kind == "replicaset" and workload.owner.startswith("Deployment/")
                if not is_part and (workload.namespace, f"Job/{workload.name}") not in replaced:
                    yield workload._replace(
                        now_s=now_s, warnings=_texts(events, workload.uid, workload.since_s)
                    )

    def _unbound(self, events: Mapping[str, list[Event]]) -> Iterator[Claim]:
        for claim in self._objects["persistentvolumeclaims"].values():
            if claim.phase != "Bound":
                yield claim._replace(warnings=_texts(events, claim.uid))

    def _claims(self, events: Mapping[str, list[Event]], pods: Iterable[Pod]) -> Iterator[Claim]:
        """Iterate over the unbound claims that no pod waits for."""
        awaited = {(pod.namespace, name) for pod in pods for name in pod.claims if not pod.node}
        for claim in self._unbound(events):
            if (claim.namespace, claim.name) not in awaited:
                yield claim

    def _nodes(self, pods: Iterable[Pod], now_s: float) -> Iterator[Node]:
        nodes: dict[str, Node] = {node.name: node for node in self._objects["nodes"].values()}
        named = {pod.node for pod in pods if pod.node and pod.phase not in ("Succeeded", "Failed")}
        for name in named - nodes.keys() if "nodes" in self.listed else ():
            yield Node(name, exists=False, now_s=now_s)
        for node in nodes.values():
            yield node._replace(now_s=now_s)


def key_of(document: Mapping[str, Any]) -> str:
    metadata = mapping(document.get("metadata"))
    name = f"{text(metadata.get('namespace'))}/{text(metadata.get('name'))}"
    return text(metadata.get("uid")) or name


def _texts(events: Mapping[str, list[Event]], uid: str, since_s: float = 0.0) -> tuple[str, ...]:
    lines = (line.line for line in events.get(uid, ()))
    return tuple(
        dict.fromkeys(" ".join(line.message.split()) for line in lines if line.at_s >= since_s)
    )


def pod_facts(
    pod: Pod,
    pulls: Sequence[Document],
    logs: Mapping[tuple[str, str], tuple[str, ...]],
    seen: tuple[Source, ...],
    now_s: float,
) -> facts.PodFacts:
    containers = tuple(
        _container(image, logs.get((pod.uid, image.container), ()))
        for image in pod.images
        if not image.is_volume
    )
    has_run = any(image.state for image in containers)
    return facts.PodFacts(
        namespace=pod.namespace,
        name=pod.name,
        seen=seen,
        pod=pod,
        now_s=now_s,
        sandbox=facts.Sandbox("", pod.is_made is not False) if has_run or pod.is_made else None,
        containers=containers,
        images=tuple(_images(pod, pulls)),
    )


def _container(image: PodImage, lines: tuple[str, ...]) -> facts.Container:
    last = image.run if image.run.state == "exited" or not image.before.state else image.before
    return facts.Container(
        name=image.container,
        id=image.id,
        image=image.image,
        state=image.run.state or last.state,
        exit_code=last.exit_code,
        reason=last.reason,
        message=last.message,
        restarts=image.restarts,
        started_s=(image.run if image.run.state else last).started_s,
        finished_s=last.finished_s,
        ran_s=max(last.finished_s - last.started_s, 0.0),
        has_crashed_before=image.before.exit_code != 0,
        waiting=image.reason,
        waiting_message=image.message,
        is_ready=image.is_ready if image.run.state == "running" else None,
        is_started=image.is_started,
        role=image.role,
        lines=lines,
    )


def _images(pod: Pod, pulls: Sequence[Document]) -> Iterator[facts.Image]:
    needed = [item for item in pod.images if item.role != "debug"]
    for reference in dict.fromkeys(item.image for item in needed):
        uses = [item for item in needed if item.image == reference]
        reason = next((item for item in uses if item.reason in REASONS), None)
        fitting = (item for item in pulls if mapping(item.get("spec")).get("image") == reference)
        status = mapping(next(fitting, {}).get("status"))
        phase = text(status.get("phase"))
        failure = ""
        if phase in _FAILED or (reason is not None and phase not in _RUNS):
            said = text(status.get("error")) or (reason.message if reason is not None else "")
            failure = cause(said or (reason.reason if reason is not None else "it failed"))
        is_there = any(item.has_started or item.before.state for item in uses)
        is_missing = reason is not None or phase in _RUNS
        yield facts.Image(
            reference,
            is_present=True if is_there else False if is_missing else None,
            pull=pull_in_status(status, PullState(image=reference), Phase.DOWNLOADING)
            if phase in _RUNS and status.get("unknown") is not True
            else None,
            failure="" if is_there else failure,
            says=reason.reason if reason is not None else "",
        )
