"""Surveys one pod or all pods of a node, and remembers what cannot change.

A survey requests the runtime's two lists. The status of a container is requested only if it is not
simply running, and only once after it has ended. Failed sources are recorded and skipped.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pycrictl._proto import cri_pb2
from pycrictl.cri.inspection import statuses
from pycrictl.cri.inspection.containerlog import container_log
from pycrictl.cri.lifecycle.image_removal import sandbox_image
from pycrictl.cri.lists.lookup import Lookup, pod_key, pod_name
from pycrictl.diagnosis import facts
from pycrictl.diagnosis.asking import Asking, disks_of, unmet
from pycrictl.diagnosis.findings import Condition, Disk, Finding, Missing, no_sandbox_image
from pycrictl.diagnosis.pod import Look, PodReport, diagnose
from pycrictl.diagnosis.pulls import Pulls, from_proxy, watch_briefly
from pycrictl.errors import NotFound
from pycrictl.kube.node_pods import Origin
from pycrictl.kube.pods import Pod
from pycrictl.logs.log_reader import LogReader, Selection
from pycrictl.progress.failures import HISTORY_S, REASONS, Failure, Failures, as_text, awaited
from pycrictl.progress.reference import canonical
from pycrictl.pulls.messages import pulls_in_line

if TYPE_CHECKING:
    from pycrictl.cri.calls.client import CriClient
    from pycrictl.kube.node_pods import NodePods
    from pycrictl.logs.journal import JournalLine

LOG_LINES: Final = 3
LOG_LINE_CHARS: Final = 300
JOURNAL_LINES: Final = 200
JOURNAL_CHARS: Final = 2000

_SANDBOX: Final = (
    r"PodSandboxMetadata\{Name:(?P<name>[^,]+),Uid:(?P<uid>[^,]*),Namespace:(?P<ns>[^,]+)"
)
_KUBELET: Final = r'pods?="(?P<ns>[^"/]+)/(?P<name>[^"/]+)"'

_STATES: Final = {
    cri_pb2.CONTAINER_CREATED: "created",
    cri_pb2.CONTAINER_RUNNING: "running",
    cri_pb2.CONTAINER_EXITED: "exited",
}

KEEP_S: Final = 10.0
"""How long disks, conditions and the journal are cached."""

RECENT_S: Final = 600.0
"""The kubelet retries creating a sandbox at least every five minutes."""

LookForPulls = Callable[[Sequence[str]], Callable[[str], Pulls]]
"""Finds pulls, given the missing images; returns a function from a pod's name to its pulls."""


class Sources(NamedTuple):
    """The sources besides the runtime; None for each that is not available."""

    pods: NodePods | None = None
    read_journal: Callable[[float], Sequence[JournalLine]] | None = None
    ask_proxy: Callable[[], dict[str, Any]] | None = None


class Survey(Asking):
    def __init__(
        self,
        client: CriClient,
        images: CriClient,
        sources: Sources,
        look_for_pulls: LookForPulls | None = None,
        *,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()
        self._client = client
        self._images = images
        self._sources = sources
        self._wall_s = wall_s
        self._known: dict[tuple[str, int], facts.Container] = {}
        self._look_for_pulls = look_for_pulls or self._brief_pulls
        self._slow_at = -KEEP_S
        self._lines: list[JournalLine] = []
        self._probes: list[JournalLine] = []
        self._conditions: tuple[Condition, ...] = ()
        self._filesystems: tuple[Disk, ...] = ()
        self._findings: tuple[Finding, ...] = ()

    def look(self) -> Look:
        lookup = Lookup(self._client)
        self._look_at_the_slow()
        pods = []
        for sandbox, pod in self._pods(lookup):
            containers = self._containers(lookup, sandbox, asks_all=False)
            there = {one.name for one in containers}
            wanted = pod.images if pod is not None else ()
            needed = [
                one.image for one in wanted if one.container not in there and not one.has_started
            ]
            pods.append(_Seen(sandbox, pod, containers, needed))
        reports = [PodReport(found, diagnose(found)) for found in self._facts(pods)]
        listed = {one.id for one in lookup.containers}
        self._known = {key: one for key, one in self._known.items() if key[0] in listed}
        reports.sort(key=lambda one: one.severity_key)
        return Look(reports, self._filesystems, self._unavailable(), self._findings)

    def look_at(self, text: str) -> facts.PodFacts:
        lookup = Lookup(self._client)
        self._look_at_the_slow()
        sandbox, pod = self._find(lookup, text)
        containers = self._containers(lookup, sandbox, asks_all=True)
        wanted = [one.image for one in pod.images] if pod is not None else []
        wanted += [one.image for one in containers]
        needed = list(dict.fromkeys(filter(None, wanted)))
        (found,) = self._facts([_Seen(sandbox, pod, containers, needed)])
        if (known := found.sandbox) is not None:
            with self._optional("pod status"):
                for answer in statuses.read(self._client, "pod", [known.id], is_listed=True):
                    known = replace(known, address=answer.status.network.ip)
        return replace(found, sandbox=known, missing=self._unavailable())

    def _facts(self, pods: Sequence[_Seen]) -> Iterator[facts.PodFacts]:
        failures = self._failures(self._lines)
        for one in pods:
            if not one.needed and not (one.pod is not None and one.pod.images):
                awaited_images = (image for image, pod in awaited(self._lines) if pod == one.owner)
                one.needed.extend(awaited_images)
        names = dict.fromkeys(chain.from_iterable(one.needed for one in pods))
        present = {name: self._is_present(name) for name in names}
        pulls_of = self._look_for_pulls(
            [name for name, is_there in present.items() if not is_there]
        )
        for one in pods:
            yield self._facts_of(one, present, pulls_of(one.owner), failures)

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
        began_s, known = 0.0, None
        if sandbox is not None:
            uid = uid or sandbox.metadata.uid
            began_s = max(sandbox.created_at, 0) / 1e9
            is_ready = sandbox.state == cri_pb2.SANDBOX_READY
            known = facts.Sandbox(sandbox.id, is_ready, began_s)
        others = {**pulls.others, **pulls.stray}  # another pod's pull brings the image here, too
        own = {each: others[each] for each in needed if each in others}
        of_pod = [one for one in failures if not one.pod or one.pod == seen.owner]
        images = self._image_facts(
            needed, pod, of_pod, present, pulls._replace(own={**pulls.own, **own})
        )
        ids = (known.id if known is not None else "", *(one.id for one in containers))
        failed = (one.reference for one in images if one.failure)
        lines = self._probes if seen.is_calm else self._lines
        return facts.PodFacts(
            namespace=namespace,
            name=name,
            phase=pod.phase if pod is not None else "",
            reason=pod.reason if pod is not None else "",
            message=pod.message if pod is not None else "",
            now_s=self._wall_s(),
            sandbox=known,
            containers=self._with_kubelets(containers, pod),
            images=images,
            stray_pulls=dict(pulls.stray) if seen.is_open else {},
            stray_failures={
                one.image: one.explained
                for one in failures
                if seen.is_open and not one.pod and one.at_s > began_s
            },
            disks=() if seen.is_calm else self._filesystems,
            problems=self._conditions,
            journal=about(lines, namespace, name, uid, (*ids, *failed)),
        )

    def _brief_pulls(self, absent: Sequence[str]) -> Callable[[str], Pulls]:
        """Find pulls once: from a proxy, and from containerd if the proxy lacks an image."""
        status: Mapping[str, Any] = {}
        if self._sources.ask_proxy is not None:
            with self._optional("proxy"):
                status = self._sources.ask_proxy()
        found = Pulls()
        if not status or {*absent} - {pull.image for pull in pulls_in_line(status)}:
            with self._optional("containerd's pulls"):
                found = watch_briefly(self._client, absent, self._sources.pods)
        strays = Pulls(stray={**found.stray, **found.own})
        return lambda owner: from_proxy(status, owner).joined(strays)

    def _pods(self, lookup: Lookup) -> Iterator[tuple[cri_pb2.PodSandbox | None, Pod | None]]:
        """Yield the newest sandbox of each pod, and the pods that have none yet."""
        newest = {
            pod_key(each): each for each in sorted(lookup.pods, key=lambda each: each.created_at)
        }
        known = self._sources.pods
        wanted = {str(one): one for one in known.pods()} if known is not None else {}
        is_complete = known is not None and known.origin is Origin.API
        for sandbox in newest.values():
            pod = wanted.pop(pod_name(sandbox), None)
            is_ready = sandbox.state == cri_pb2.SANDBOX_READY
            if pod is not None or is_ready or not is_complete:  # else it was deleted
                yield sandbox, pod
        for pod in wanted.values():
            yield None, pod
        if not is_complete:
            there = {pod_name(each) for each in newest.values()} | wanted.keys()
            since_s = self._wall_s() - RECENT_S
            owners = [owner for _, owner in awaited(self._lines)]
            for owner in dict.fromkeys([*owners, *without_sandbox(self._lines, since_s)]):
                if owner and owner not in there and (pod := pod_named(self._lines, owner)):
                    there.add(owner)
                    yield None, pod

    def _look_at_the_slow(self) -> None:
        if time.monotonic() - self._slow_at < KEEP_S:
            return
        self._missing.clear()
        if self._sources.pods is not None:
            self._sources.pods.pods()  # sets ``origin``
        self._lines = self._journal()
        self._probes = [line for line in self._lines if "Probe failed" in line.message]
        self._filesystems = ()
        with self._optional("disks"):
            self._filesystems = tuple(disks_of(self._images))
        self._look_at_runtime()
        self._slow_at = time.monotonic()

    def _look_at_runtime(self) -> None:
        self._conditions, self._findings = (), ()
        with self._optional("runtime status"):
            status = self._client.call("Status", cri_pb2.StatusRequest(verbose=True))
            self._conditions = unmet(status.status)
            if (name := sandbox_image(status.info)) and self._is_present(name) is False:
                self._findings = (no_sandbox_image(name),)

    def _find(self, lookup: Lookup, text: str) -> tuple[cri_pb2.PodSandbox | None, Pod | None]:
        pods = self._sources.pods
        try:
            sandbox = lookup.find_pod(text)
        except NotFound:
            found = [one for one in pods.pods() if text in (one.name, str(one))] if pods else []
            if not found and (named := pod_named(self._lines, text)) is not None:
                found = [named]
            if len({str(one) for one in found}) != 1:
                raise
            return None, found[0]
        meta = sandbox.metadata
        pod = pods.find(meta.namespace, meta.name, meta.uid) if pods is not None else None
        return sandbox, pod

    def _unavailable(self) -> tuple[Missing, ...]:
        """Return the sources that were not available, each once."""
        pods = self._sources.pods
        reason = "no usable kubelet credential, or no answer; --debug says more"
        named = [Missing("API server", "--no-kube" if pods is None else reason)]
        if pods is not None and pods.origin is Origin.API:
            named = []
        return tuple(dict.fromkeys([*named, *self._missing]))

    def _journal(self) -> list[JournalLine]:
        read = self._sources.read_journal
        lines = list(read(self._wall_s() - HISTORY_S)) if read is not None else []
        lines = [line._replace(message=as_text(line.message)) for line in lines]
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
            each.id
            for each in listed
            if (each.id, each.state) not in self._known
            and (asks_all or each.state != cri_pb2.CONTAINER_RUNNING or each.metadata.attempt)
        ]
        with self._optional("container status"):
            for answer in statuses.read(self._client, "container", todo, is_listed=True):
                one = answer.status
                self._known[one.id, one.state] = self._container(one, lookup)
        return [self._known.get((each.id, each.state)) or _as_listed(each) for each in listed]

    @staticmethod
    def _with_kubelets(
        containers: Iterable[facts.Container], pod: Pod | None
    ) -> tuple[facts.Container, ...]:
        """Return containers with the kubelet's view of them, and those not created yet."""
        found = {one.name: one for one in containers}
        for one in pod.images if pod is not None else ():
            if not one.is_volume:
                known = found.pop(one.container, facts.Container(one.container, image=one.image))
                found[one.container] = replace(
                    known,
                    waiting=one.reason,
                    waiting_message=one.message,
                    is_ready=one.is_ready,
                    is_ephemeral=one.is_ephemeral,
                )
        return tuple(found.values())

    def _container(self, one: cri_pb2.ContainerStatus, lookup: Lookup) -> facts.Container:
        name, sandboxes = one.metadata.name, self._sandboxes_of(one.id, lookup)
        earlier = [
            each
            for each in lookup.containers
            if each.metadata.name == name
            and each.pod_sandbox_id in sandboxes
            and each.id != one.id
            and each.state == cri_pb2.CONTAINER_EXITED
        ]
        has_crashed, last_code = False, one.exit_code
        if earlier:
            last = max(earlier, key=lambda each: each.created_at)
            with self._optional("container status"):
                for answer in statuses.read(self._client, "container", [last.id], is_listed=True):
                    has_crashed = answer.status.exit_code != 0
                    if one.state == cri_pb2.CONTAINER_RUNNING:
                        last_code = answer.status.exit_code
        state = _STATES.get(one.state, "unknown")
        has_ended_badly = has_crashed or (state == "exited" and one.exit_code != 0)
        return facts.Container(
            name=name,
            id=one.id,
            image=one.image.user_specified_image or one.image.image,
            state=state,
            exit_code=last_code,
            reason=one.reason,
            message=one.message,
            restarts=one.metadata.attempt,
            started_s=one.started_at / 1e9,
            finished_s=one.finished_at / 1e9,
            has_crashed_before=has_crashed,
            lines=self._last_lines(one.id) if has_ended_badly else (),
        )

    @staticmethod
    def _sandboxes_of(container_id: str, lookup: Lookup) -> set[str]:
        of = {each.id: each.pod_sandbox_id for each in lookup.containers}
        uids = {pod.metadata.uid for pod in lookup.pods if pod.id == of.get(container_id)}
        return {pod.id for pod in lookup.pods if pod.metadata.uid in uids}

    def _last_lines(self, container_id: str) -> tuple[str, ...]:
        lines: list[str] = []
        with self._optional("container log"):
            log = container_log(self._client, container_id)
            reader = LogReader(log.path, Selection(tail_lines=LOG_LINES), on_bad=lambda _: None)
            text = b"".join(chunk.data for chunk in reader.read()).decode("utf-8", "replace")
            lines = [line[:LOG_LINE_CHARS] for line in text.splitlines() if line.strip()]
        return tuple(lines[-LOG_LINES:])

    # Images

    def _image_facts(
        self,
        needed: Iterable[str],
        pod: Pod | None,
        failed: Sequence[Failure],
        present: Mapping[str, bool | None],
        pulls: Pulls,
    ) -> tuple[facts.Image, ...]:
        references = list(dict.fromkeys([*needed, *pulls.own, *pulls.failed]))
        waiting = {one.image: one for one in pod.images if one.reason} if pod is not None else {}
        found = []
        for reference in references:
            says = waiting[reference].reason if reference in waiting else ""
            failure = next(
                (one for one in failed if canonical(one.image) == canonical(reference)), None
            )
            error = failure.explained if failure is not None else pulls.failed.get(reference, "")
            found.append(
                facts.Image(
                    reference,
                    present.get(reference),
                    pulls.own.get(reference),
                    "" if present.get(reference) else error,
                    says if says in REASONS else "",
                    failure.next_try(self._wall_s()) if failure is not None else "",
                )
            )
        return tuple(found)

    def _failures(self, journal: Sequence[JournalLine]) -> list[Failure]:
        pods = self._sources.pods.pods if self._sources.pods is not None else tuple
        failures = Failures(lambda _: journal, pods)
        failures.look(self._wall_s())
        return [*failures.waiting(), *failures.since(0.0)]

    def _is_present(self, reference: str) -> bool | None:
        with self._optional("image status"):
            request = cri_pb2.ImageStatusRequest(image=cri_pb2.ImageSpec(image=reference))
            return bool(self._images.call("ImageStatus", request).HasField("image"))
        return None


def _as_listed(each: cri_pb2.Container) -> facts.Container:
    """Return a container from the list, which has no exit codes but is better than nothing."""
    is_running = each.state == cri_pb2.CONTAINER_RUNNING
    return facts.Container(
        each.metadata.name,
        each.id,
        each.image.user_specified_image or each.image.image,
        "running" if is_running else "unknown",
        restarts=each.metadata.attempt,
        started_s=each.created_at / 1e9,
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
        running = (one.state == "running" for one in self.containers)
        return bool(self.containers) and not self.needed and all(running)

    @property
    def is_open(self) -> bool:
        return not self.needed and not self.containers


# Lines of the journal


def about(
    journal: Iterable[JournalLine], namespace: str, name: str, uid: str, ids: Sequence[str]
) -> tuple[facts.Line, ...]:
    words = [f'"{namespace}/{name}"', *filter(None, (uid, *ids))]
    found = [
        facts.Line(line.at_s, line.unit, line.message[:JOURNAL_CHARS])
        for line in journal
        if any(word in line.message for word in words) or _names(line, namespace, name)
    ]
    return tuple(found[-JOURNAL_LINES:])


def pod_named(journal: Sequence[JournalLine], text: str) -> Pod | None:
    """Return the pod with a NAME or NAMESPACE/NAME that the journal mentions."""
    for line in reversed(journal):
        for pattern in (_SANDBOX, _KUBELET):
            found = re.search(pattern, line.message)
            if found and text in (found["name"], f"{found['ns']}/{found['name']}"):
                uid = found.groupdict().get("uid", "")
                return Pod(found["ns"], found["name"], uid, "", (), ())
    return None


def without_sandbox(journal: Iterable[JournalLine], since_s: float) -> list[str]:
    """Return the pods, NAMESPACE/NAME, whose last attempt to create a sandbox failed.

    Attempts before ``since_s`` do not count, as the pod may have been deleted.
    """
    failed: dict[str, None] = {}
    for line in journal:
        found = re.search(_SANDBOX, line.message)
        if found is None or line.at_s < since_s or "RunPodSandbox for" not in line.message:
            continue
        pod = f"{found['ns']}/{found['name']}"
        if "returns sandbox id" in line.message:
            failed.pop(pod, None)
        elif " failed" in line.message:
            failed[pod] = None
    return list(failed)


def _names(line: JournalLine, namespace: str, name: str) -> bool:
    found = re.search(_SANDBOX, line.message)
    return found is not None and (found["ns"], found["name"]) == (namespace, name)
