"""Surveys one pod or all pods of a node, and remembers what cannot change.

A survey requests the runtime's lists of pods and containers; the status of a container only if it
is not simply running, and only once after it has ended. Failed sources are recorded and skipped.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import ConnectError, NotFound
from pycrictl.diagnosis import facts
from pycrictl.diagnosis.collect_node import Collector, disks_at, places_of, unmet
from pycrictl.diagnosis.facts import LOG_LINE_CHARS, LOG_LINES, Source
from pycrictl.diagnosis.findings import Disk, Finding, Missing, RuntimeCondition, no_sandbox_image
from pycrictl.diagnosis.pod import Overview, report
from pycrictl.kube.kubelet_log import about, signs_in, waiting_in, whole
from pycrictl.kube.pods import Pod, PodImage
from pycrictl.node.journal import HISTORY_S
from pycrictl.node.logs.log_reader import LogReader, Selection
from pycrictl.pulls.messages import pulls_in_line
from pycrictl.pulls.reference import canonical
from pycrictl.pulls.sources.failures import (
    REASONS,
    Failure,
    as_text,
    cause,
    known_failures,
)
from pycrictl.pulls.sources.node_watch import Pulls, from_proxy, watch_briefly
from pycrictl.runtime.cri.inspection import statuses
from pycrictl.runtime.cri.inspection.containerlog import container_log
from pycrictl.runtime.cri.inspection.statuses import attempt_before, termination_message
from pycrictl.runtime.cri.lists.images import sandbox_image
from pycrictl.runtime.cri.lists.lookup import Lookup, pod_key, pod_name

if TYPE_CHECKING:
    from pycrictl.kube.node_pods import NodePods
    from pycrictl.node.journal import JournalLine
    from pycrictl.pulls.state import PullState
    from pycrictl.runtime.cri.calls.client import CriClient

_STATES: Final = {
    cri_pb2.CONTAINER_CREATED: "created",
    cri_pb2.CONTAINER_RUNNING: "running",
    cri_pb2.CONTAINER_EXITED: "exited",
}

KEEP_S: Final = 10.0
"""How long disks, conditions and the journal are cached."""

_OF_PROBES: Final = r"Probe failed|SyncLoop \(probe\)"

FindPulls = Callable[[Sequence[str]], Callable[[str], Pulls]]
"""Finds pulls, given the missing images; returns a function from a pod's name to its pulls."""


class Sources(NamedTuple):
    """The sources besides the runtime; None for each that is not available."""

    pods: NodePods | None = None
    read_journal: Callable[[float], Sequence[JournalLine]] | None = None
    ask_proxy: Callable[[], dict[str, Any]] | None = None


class Survey(Collector):
    def __init__(
        self,
        client: CriClient,
        images: CriClient,
        sources: Sources,
        find_pulls: FindPulls | None = None,
        *,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()
        self._client = client
        self._images = images
        self._sources = sources
        self._wall_s = wall_s
        self._known: dict[tuple[str, int], facts.Container] = {}
        self._find_pulls = find_pulls or self._brief_pulls
        self._slow_at = -KEEP_S
        self._lines: list[JournalLine] = []
        self._probes: list[JournalLine] = []
        self._conditions: tuple[RuntimeCondition, ...] = ()
        self._filesystems: tuple[Disk, ...] = ()
        self._findings: tuple[Finding, ...] = ()

    def pods(self) -> Overview:
        """Return the reports of all pods of the node, the worst first."""
        lookup = Lookup(self._client)
        self._refresh()
        pods = []
        for sandbox, known in self._pods(lookup):
            pod = self._with_journal(sandbox, known)
            containers = self._containers(lookup, sandbox, asks_all=False)
            there = {item.name for item in containers}
            needed = [item.image for item in _images_of(pod) if item.container not in there]
            pods.append(_Seen(sandbox, pod, containers, needed))
        reports = [report(facts_of_pod) for facts_of_pod in self._facts(pods)]
        listed = {item.id for item in lookup.containers}
        self._known = {key: item for key, item in self._known.items() if key[0] in listed}
        reports.sort(key=lambda item: item.severity_key)
        unavailable = self._unavailable()
        return Overview(reports, len(reports), self._filesystems, unavailable, self._findings)

    def pod(self, text: str) -> facts.PodFacts:
        """Return the facts of one pod, by its name or the beginning of its ID.

        Raises:
            NotFound: there is no such pod.
        """
        lookup = Lookup(self._client)
        self._refresh()
        sandbox, listed = self._find(lookup, text)
        pod = self._with_journal(sandbox, listed)
        containers = self._containers(lookup, sandbox, asks_all=True)
        roles = {item.container: item.role for item in pod.images} if pod is not None else {}
        wanted = [item.image for item in _images_of(pod)]
        wanted += [item.image for item in containers if roles.get(item.name) != "debug"]
        needed = list(dict.fromkeys(filter(None, wanted)))
        (pod_facts,) = self._facts([_Seen(sandbox, pod, containers, needed)])
        if (known := pod_facts.sandbox) is not None:
            with self._optional("pod status"):
                for answer in statuses.read(self._client, "pod", [known.id], is_listed=True):
                    known = replace(known, address=answer.status.network.ip)
        return replace(pod_facts, sandbox=known, missing=self._unavailable())

    def _facts(self, pods: Sequence[_Seen]) -> Iterator[facts.PodFacts]:
        failures = self._failures(self._lines)
        names = filter(None, dict.fromkeys(chain.from_iterable(seen.needed for seen in pods)))
        present = {name: self._is_present(name) for name in names}
        pulls_of = self._find_pulls([name for name, is_there in present.items() if not is_there])
        for seen in pods:
            yield self._facts_of(seen, present, pulls_of(seen.owner), failures)

    def _facts_of(
        self,
        seen: _Seen,
        present: Mapping[str, bool | None],
        pulls: Pulls,
        failures: Sequence[Failure],
    ) -> facts.PodFacts:
        sandbox, pod, containers, needed = seen
        namespace, _, name = seen.owner.partition("/")
        uid = pod.uid if pod is not None else ""
        known = None
        if sandbox is not None:
            uid = uid or sandbox.metadata.uid
            is_ready = sandbox.state == cri_pb2.SANDBOX_READY
            known = facts.Sandbox(sandbox.id, is_ready, max(sandbox.created_at, 0) / 1e9)
        own = {image: pulls.node[image] for image in needed if image in pulls.node}
        images = self._image_facts(
            needed, seen, failures, present, pulls._replace(own={**pulls.own, **own})
        )
        ids = (known.id if known is not None else "", *(item.id for item in containers))
        failed = (item.reference for item in images if item.failure)
        journal = about(
            self._probes if seen.is_calm else self._lines, namespace, name, uid, (*ids, *failed)
        )
        is_known = pod is not None and bool(pod.phase)
        return facts.PodFacts(
            namespace=namespace,
            name=name,
            seen=(
                Source.RUNTIME,
                *((Source.API,) if is_known else ()),
                *((Source.JOURNAL,) if self._lines else ()),
            ),
            pod=pod if is_known else None,
            now_s=self._wall_s(),
            sandbox=known,
            containers=self._with_kubelets(containers, pod),
            images=images,
            disks=() if seen.is_calm else self._filesystems,
            problems=self._conditions,
            signs=tuple(signs_in(journal)),
            journal=journal,
        )

    def _brief_pulls(self, absent: Sequence[str]) -> Callable[[str], Pulls]:
        """Find pulls once: from a proxy, and from containerd if the proxy lacks an image."""
        status: Mapping[str, Any] = {}
        if self._sources.ask_proxy is not None:
            with self._optional("proxy"):
                status = self._sources.ask_proxy()
        seen: Mapping[str, PullState] = {}
        if not status or {*absent} - {pull.image for pull in pulls_in_line(status)}:
            with self._optional("containerd's pulls"):
                seen = watch_briefly(self._client, absent, self._sources.pods)
        return lambda owner: from_proxy(status, owner, seen)

    def _pods(self, lookup: Lookup) -> Iterator[tuple[cri_pb2.PodSandbox | None, Pod | None]]:
        """Yield the newest sandbox of each pod, and the pods that have none yet."""
        newest = {
            pod_key(sandbox): sandbox
            for sandbox in sorted(lookup.pods, key=lambda sandbox: sandbox.created_at)
        }
        known = self._sources.pods
        wanted = {str(pod): pod for pod in known.pods()} if known is not None else {}
        is_complete = known is not None and known.is_from_api
        for sandbox in newest.values():
            pod = wanted.pop(pod_name(sandbox), None)
            is_ready = sandbox.state == cri_pb2.SANDBOX_READY
            if pod is not None or is_ready or not is_complete:  # else it was deleted
                yield sandbox, pod
        for pod in wanted.values():
            yield None, pod

    def _with_journal(self, sandbox: cri_pb2.PodSandbox | None, pod: Pod | None) -> Pod | None:
        """Add what the kubelet's log says to a pod that is not from the API server."""
        if pod is not None and pod.phase:
            return pod
        if sandbox is not None:
            meta = sandbox.metadata
            pod = pod or Pod(meta.namespace, meta.name, meta.uid, "", (), ())
        assert pod is not None  # there is a sandbox, or a pod without one
        waiting = waiting_in(about(self._lines, pod.namespace, pod.name, pod.uid, ()))
        kept = (image for image in pod.images if image.container not in waiting)
        return pod._replace(images=(*kept, *waiting.values()))

    def _refresh(self) -> None:
        if time.monotonic() - self._slow_at < KEEP_S:
            return
        self._missing.clear()
        if self._sources.pods is not None:
            self._sources.pods.pods()  # sets ``is_from_api``
        self._lines = self._journal()
        self._probes = [line for line in self._lines if re.search(_OF_PROBES, line.message)]
        self._read_runtime_status()
        self._filesystems = ()
        with self._optional("disks"):
            answer = self._images.call("ImageFsInfo", cri_pb2.ImageFsInfoRequest())
            self._filesystems = disks_at(places_of(answer))
        if self._sources.pods is not None and (node := self._sources.pods.node()) is not None:
            about_node = report(node).findings
            self._findings += tuple(
                item._replace(text=f"node {node.name} {item.text}") for item in about_node
            )
        self._slow_at = time.monotonic()

    def _read_runtime_status(self) -> None:
        """Read the status; raise ConnectError: nothing else must wait for a hung runtime."""
        self._conditions, self._findings = (), ()
        with self._optional("runtime status", but=ConnectError):
            status = self._client.call("Status", cri_pb2.StatusRequest(verbose=True))
            self._conditions = unmet(status.status)
            if (name := sandbox_image(status.info)) and self._is_present(name) is False:
                self._findings = (no_sandbox_image(name),)

    def _find(self, lookup: Lookup, text: str) -> tuple[cri_pb2.PodSandbox | None, Pod | None]:
        pods = self._sources.pods
        try:
            sandbox = lookup.find_pod(text)
        except NotFound:
            matches = [pod for pod in pods.pods() if text in (pod.name, str(pod))] if pods else []
            if len({str(pod) for pod in matches}) != 1:
                raise
            return None, matches[0]
        meta = sandbox.metadata
        pod = pods.find(meta.namespace, meta.name, meta.uid) if pods is not None else None
        return sandbox, pod

    def _unavailable(self) -> tuple[Missing, ...]:
        """Return the sources that were not available, each once."""
        pods = self._sources.pods
        reason = "no usable kubelet credential, or no answer; --debug says more"
        named = [Missing("API server", "--no-kube" if pods is None else reason)]
        if pods is not None and pods.is_from_api:
            named = []
        return tuple(dict.fromkeys([*named, *self._missing]))

    def _journal(self) -> list[JournalLine]:
        read = self._sources.read_journal
        lines = list(read(self._wall_s() - HISTORY_S)) if read is not None else []
        lines = [line._replace(message=as_text(line.message)) for line in whole(lines)]
        if not lines:
            why = "it has no lines of the kubelet or the runtime, or cannot be read in time"
            self._missing.append(Missing("journal", why))
        return lines

    # The runtime

    def _containers(
        self, lookup: Lookup, sandbox: cri_pb2.PodSandbox | None, *, asks_all: bool
    ) -> list[facts.Container]:
        """Return the newest attempt of each container; the list has no exit codes."""
        listed = lookup.containers_of(sandbox) if sandbox is not None else []
        todo = [
            container.id
            for container in listed
            if (container.id, container.state) not in self._known
            and (
                asks_all
                or container.state != cri_pb2.CONTAINER_RUNNING
                or container.metadata.attempt
            )
        ]
        with self._optional("container status"):
            for answer in statuses.read(self._client, "container", todo, is_listed=True):
                status = answer.status
                self._known[status.id, status.state] = self._container(status, lookup)
        return [
            self._known.get((container.id, container.state)) or _as_listed(container)
            for container in listed
        ]

    def _with_kubelets(
        self, containers: Iterable[facts.Container], pod: Pod | None
    ) -> tuple[facts.Container, ...]:
        """Return containers with the kubelet's view of them, and those not created yet."""
        by_name = {item.name: item for item in containers}
        for item in pod.images if pod is not None else ():
            if item.is_volume:
                continue
            known = by_name.pop(item.container, facts.Container(item.container, image=item.image))
            if item.role == "init" and known.state == "running":
                known = replace(known, lines=self._last_lines(known.id))
            is_waiting = known.state != "running"
            by_name[item.container] = replace(
                known,
                waiting=item.reason if is_waiting else "",
                waiting_message=item.message if is_waiting else "",
                is_ready=item.is_ready,
                is_started=item.is_started,
                role=item.role,
            )
        return tuple(by_name.values())

    def _container(self, status: cri_pb2.ContainerStatus, lookup: Lookup) -> facts.Container:
        """Return a container as it is, with its last exit, which may be of the attempt before."""
        before = None
        with self._optional("container status"):
            before = attempt_before(self._client, status, lookup)
        has_ended = status.state == cri_pb2.CONTAINER_EXITED
        last = status if has_ended or before is None else before
        return facts.Container(
            name=status.metadata.name,
            id=status.id,
            image=status.image.user_specified_image or status.image.image,
            state=_STATES.get(status.state, "unknown"),
            exit_code=last.exit_code,
            reason=last.reason,
            message=termination_message(last),
            restarts=status.metadata.attempt,
            started_s=status.started_at / 1e9,
            finished_s=last.finished_at / 1e9,
            ran_s=max(last.finished_at - last.started_at, 0) / 1e9,
            has_crashed_before=before is not None and before.exit_code != 0,
            lines=self._last_lines(last.id) if has_ended or before is not None else (),
        )

    def _last_lines(self, container_id: str) -> tuple[str, ...]:
        lines: list[str] = []
        with self._optional("container log"):
            log = container_log(self._client, container_id)
            reader = LogReader(log.path, Selection(tail_lines=LOG_LINES), warn=lambda _: None)
            text = b"".join(chunk.data for chunk in reader.read()).decode("utf-8", "replace")
            lines = [line[:LOG_LINE_CHARS] for line in text.splitlines() if line.strip()]
        return tuple(lines[-LOG_LINES:])

    # Images

    def _image_facts(
        self,
        needed: Iterable[str],
        seen: _Seen,
        failed: Sequence[Failure],
        present: Mapping[str, bool | None],
        pulls: Pulls,
    ) -> tuple[facts.Image, ...]:
        references = list(dict.fromkeys([*needed, *pulls.own, *pulls.failed]))
        waiting = {item.image: item for item in _images_of(seen.pod) if item.reason in REASONS}
        collected = []
        for reference in references:
            own = waiting.get(reference)
            failure = next(
                (
                    item
                    for item in failed
                    if canonical(item.image) == canonical(reference)
                    and (own is not None or item.pod in ("", seen.owner))
                ),
                None,
            )
            error = failure.cause if failure is not None else pulls.failed.get(reference, "")
            if not error and own is not None:
                error = cause(own.message) or own.reason
            collected.append(
                facts.Image(
                    reference,
                    present.get(reference),
                    pulls.own.get(reference),
                    "" if present.get(reference) else error,
                    own.reason if own is not None else "",
                    failure.next_try(self._wall_s()) if failure is not None else "",
                )
            )
        return tuple(collected)

    def _failures(self, journal: Sequence[JournalLine]) -> list[Failure]:
        pods = self._sources.pods.pods if self._sources.pods is not None else tuple
        return known_failures(journal, pods())

    def _is_present(self, reference: str) -> bool | None:
        with self._optional("image status"):
            request = cri_pb2.ImageStatusRequest(image=cri_pb2.ImageSpec(image=reference))
            return bool(self._images.call("ImageStatus", request).HasField("image"))
        return None


def _images_of(pod: Pod | None) -> list[PodImage]:
    """Return the images that a pod needs to run, without those of debug containers."""
    images = pod.images if pod is not None else ()
    return [image for image in images if image.role != "debug"]


def _as_listed(container: cri_pb2.Container) -> facts.Container:
    """Return a container from the list, which has no exit codes but is better than nothing."""
    is_running = container.state == cri_pb2.CONTAINER_RUNNING
    return facts.Container(
        container.metadata.name,
        container.id,
        container.image.user_specified_image or container.image.image,
        "running" if is_running else "unknown",
        restarts=container.metadata.attempt,
        started_s=container.created_at / 1e9,
    )


class _Seen(NamedTuple):
    """A pod: its sandbox, the kubelet's view, its containers, images it may be waiting for."""

    sandbox: cri_pb2.PodSandbox | None
    pod: Pod | None
    containers: list[facts.Container]
    needed: list[str]

    @property
    def owner(self) -> str:
        return pod_name(self.sandbox) if self.sandbox is not None else str(self.pod)

    @property
    def is_calm(self) -> bool:
        running = (container.state == "running" for container in self.containers)
        return bool(self.containers) and not self.needed and all(running)
