"""Looks at pods of a node, one or all at once, and remembers what cannot change.

A look asks the runtime for its two lists. Containers are asked for one by one only if they do not
simply run, and of one that has ended only once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pycrictl._proto import cri_pb2
from pycrictl.cri.lifecycle.image_removal import sandbox_image
from pycrictl.cri.lists.lookup import Lookup, pod_key, pod_name
from pycrictl.diagnosis import facts
from pycrictl.diagnosis.asking import unmet
from pycrictl.diagnosis.collect import Collector, Sources, about, pod_named, without_sandbox
from pycrictl.diagnosis.findings import Disk, Finding, no_sandbox_image
from pycrictl.diagnosis.pod import Look, PodReport, diagnose
from pycrictl.diagnosis.pulls import Pulls, all_of, from_proxy, watch_briefly
from pycrictl.kube.node_pods import Origin
from pycrictl.progress.failures import Failure, awaited

if TYPE_CHECKING:
    from pycrictl.cri.calls.client import CriClient
    from pycrictl.kube.pods import Pod
    from pycrictl.logs.journal import JournalLine

KEEP_S: Final = 10.0
"""For so long disks, conditions and the journal are not looked at again."""

RECENT_S: Final = 600.0
"""The kubelet tries again to make a sandbox at least every five minutes."""

LookForPulls = Callable[[Sequence[str]], Callable[[str], Pulls]]
"""Looks for pulls, given the images that are not there; returns what gives a pod's by its name."""


class Survey(Collector):
    def __init__(
        self,
        client: CriClient,
        images: CriClient,
        sources: Sources,
        look_for_pulls: LookForPulls | None = None,
        *,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(client, images, sources, wall_s)
        self._look_for_pulls = look_for_pulls or self._brief_pulls
        self._slow_at = -KEEP_S
        self._lines: list[JournalLine] = []
        self._probes: list[JournalLine] = []
        self._conditions: tuple[tuple[str, str], ...] = ()
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
        missing = tuple(dict.fromkeys(self._missing))
        reports.sort(key=lambda one: one.gravity)
        return Look(reports, self._filesystems, missing, self._findings)

    def look_at(self, text: str) -> facts.PodFacts:
        """Return all that is known of the pod that a word stands for."""
        lookup = Lookup(self._client)
        self._look_at_the_slow()
        sandbox, pod = self._find(lookup, text, self._lines)
        containers = self._containers(lookup, sandbox, asks_all=True)
        wanted = [one.image for one in pod.images] if pod is not None else []
        wanted += [one.image for one in containers]
        needed = list(dict.fromkeys(filter(None, wanted)))
        (found,) = self._facts([_Seen(sandbox, pod, containers, needed)])
        sandbox_facts = self._sandbox(sandbox)
        return replace(found, sandbox=sandbox_facts, missing=tuple(dict.fromkeys(self._missing)))

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
        own = {each: pulls.stray[each] for each in needed if each in pulls.stray}
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
        """Look for pulls once: as a proxy says, and where that knows none as containerd shows."""
        status: Mapping[str, Any] = {}
        if self._sources.ask_proxy is not None:
            with self._optional("proxy"):
                status = self._sources.ask_proxy()
        found = Pulls()
        if not status or {*absent} - {image for _, image, _ in all_of(status)}:
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
            self._sources.pods.pods()  # which tells their origin
        self._lines = self._journal()
        self._probes = [line for line in self._lines if "Probe failed" in line.message]
        self._note_pods()
        self._filesystems = tuple(self._disks())
        self._look_at_runtime()
        self._slow_at = time.monotonic()

    def _look_at_runtime(self) -> None:
        self._conditions, self._findings = (), ()
        with self._optional("runtime status"):
            status = self._client.call("Status", cri_pb2.StatusRequest(verbose=True))
            self._conditions = unmet(status.status)
            if (name := sandbox_image(status.info)) and self._is_present(name) is False:
                self._findings = (no_sandbox_image(name),)


class _Seen(NamedTuple):
    """A pod: its sandbox, what the kubelet says, its containers, images that it may wait for."""

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
