"""Looks at all pods of a node at once, again and again, and remembers what cannot change.

A look asks the runtime for its two lists. Containers are asked for one by one only if they do not
simply run, and of one that has ended only once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final

from pycrictl._proto import cri_pb2
from pycrictl.cri.inspection import statuses
from pycrictl.cri.lists.lookup import Lookup, pod_key, pod_name
from pycrictl.diagnosis import facts
from pycrictl.diagnosis.collect import Collector, Sources, about, pod_named, without_sandbox
from pycrictl.diagnosis.disks import Disk
from pycrictl.diagnosis.pod import Look, PodReport, diagnose
from pycrictl.diagnosis.pulls import Pulls, from_proxy, watch_briefly
from pycrictl.errors import PycrictlError
from pycrictl.kube.node import Origin
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
    """Looks at all pods."""

    def __init__(
        self,
        client: CriClient,
        images: CriClient,
        sources: Sources,
        look_for_pulls: LookForPulls,
        *,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(client, images, sources, wall_s)
        self._look_for_pulls = look_for_pulls
        self._known: dict[tuple[str, int], facts.Container] = {}
        self._slow_at = -KEEP_S
        self._lines: list[JournalLine] = []
        self._probes: list[JournalLine] = []
        self._conditions: tuple[tuple[str, str], ...] = ()
        self._filesystems: tuple[Disk, ...] = ()

    def look(self) -> Look:
        """Look at all pods."""
        lookup = Lookup(self._client)
        self._look_at_the_slow()
        pods = list(self._pods(lookup))
        failures = self._failures(self._lines)
        containers = {id(sandbox): self._newest(lookup, sandbox) for sandbox, _ in pods if sandbox}
        needed = [self._needed(containers.get(id(sandbox), []), pod) for sandbox, pod in pods]
        absent = {
            name: self._is_present(name) for name in dict.fromkeys(chain.from_iterable(needed))
        }
        pulls_of = self._look_for_pulls([name for name, is_there in absent.items() if not is_there])
        reports = []
        for (sandbox, pod), images in zip(pods, needed, strict=True):
            there = containers.get(id(sandbox), [])
            found = self._pod_facts(sandbox, pod, there, images, absent, failures, pulls_of)
            reports.append(PodReport(found, diagnose(found)))
        listed = {one.id for one in lookup.containers}
        self._known = {key: one for key, one in self._known.items() if key[0] in listed}
        missing = tuple(dict.fromkeys(self._missing))
        return Look(sorted(reports, key=lambda one: one.gravity), self._filesystems, missing)

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
        self._conditions = self._problems()
        self._slow_at = time.monotonic()

    def _newest(self, lookup: Lookup, sandbox: cri_pb2.PodSandbox) -> list[facts.Container]:
        """Return the newest attempt of each container; only of some the runtime is asked."""
        listed = lookup.containers_of(sandbox)
        todo = [
            each.id
            for each in listed
            if (each.id, each.state) not in self._known
            and (each.state != cri_pb2.CONTAINER_RUNNING or each.metadata.attempt)
        ]
        with self._optional("container status"):
            for answer in statuses.container_statuses(
                self._client, todo, verbose=False, is_listed=True
            ):
                one = answer.status
                self._known[one.id, one.state] = self._container(one, lookup)
        found = []
        for each in listed:
            image = each.image.user_specified_image or each.image.image
            is_running = each.state == cri_pb2.CONTAINER_RUNNING
            found.append(
                self._known.get((each.id, each.state))
                or facts.Container(
                    each.metadata.name,
                    each.id,
                    image,
                    "running" if is_running else "unknown",
                    restarts=each.metadata.attempt,
                    started_s=each.created_at / 1e9,
                )
            )
        return found

    @staticmethod
    def _needed(containers: Sequence[facts.Container], pod: Pod | None) -> list[str]:
        there = {one.name for one in containers}
        wanted = pod.images if pod is not None else ()
        return [one.image for one in wanted if one.container not in there and not one.has_started]

    def _pod_facts(
        self,
        sandbox: cri_pb2.PodSandbox | None,
        pod: Pod | None,
        containers: Sequence[facts.Container],
        needed: list[str],
        present: dict[str, bool | None],
        failures: Sequence[Failure],
        pulls_of: Callable[[str], Pulls],
    ) -> facts.PodFacts:
        owner = pod_name(sandbox) if sandbox is not None else str(pod)
        namespace, _, name = owner.partition("/")
        pulls = pulls_of(owner)
        if not needed and (pod is None or not pod.images):
            needed = [image for image, whose in awaited(self._lines) if whose == owner]
        known = {each: pulls.stray[each] for each in needed if each in pulls.stray}
        is_open = not needed and not containers  # nobody knows what it waits for
        uid = sandbox.metadata.uid if sandbox is not None else ""
        ids = (sandbox.id if sandbox is not None else "", *(one.id for one in containers))
        is_calm = all(one.state == "running" for one in containers) and containers and not needed
        lines = self._probes if is_calm else self._lines
        began_s = sandbox.created_at / 1e9 if sandbox is not None else 0.0
        of_pod = [one for one in failures if not one.pod or one.pod == owner] if needed else []
        unowned = [one for one in failures if is_open and not one.pod and one.at_s > began_s]
        is_ready = sandbox is not None and sandbox.state == cri_pb2.SANDBOX_READY
        return facts.PodFacts(
            namespace=namespace,
            name=name,
            phase=pod.phase if pod is not None else "",
            reason=pod.reason if pod is not None else "",
            message=pod.message if pod is not None else "",
            now_s=self._wall_s(),
            sandbox=facts.Sandbox(sandbox.id, is_ready, max(sandbox.created_at, 0) / 1e9)
            if sandbox is not None
            else None,
            containers=self._with_kubelets(containers, pod),
            images=self._image_facts(
                needed, pod, of_pod, present, Pulls({**pulls.own, **known}, {}, pulls.failed)
            ),
            stray_pulls=dict(pulls.stray) if is_open else {},
            stray_failures={one.image: one.explained for one in unowned},
            disks=() if is_calm else self._filesystems,
            problems=self._conditions,
            journal=about(lines, namespace, name, uid, ids) if lines else (),
            missing=(),
        )


def brief_pulls(client: CriClient, sources: Sources) -> LookForPulls:
    """Return what looks for pulls once: as a proxy says, else as containerd shows them."""

    def look(absent: Sequence[str]) -> Callable[[str], Pulls]:
        if sources.ask_proxy is not None:
            answer = sources.ask_proxy()
            return lambda owner: from_proxy(answer, owner)
        try:
            found = watch_briefly(client, absent, sources.pods)
        except PycrictlError:  # no containerd
            return lambda _: Pulls()
        return lambda _: Pulls({}, {**found.stray, **found.own})

    return look
