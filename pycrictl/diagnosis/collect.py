"""Collects what is known of a pod: each source on its own, so that one that fails is only named."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pycrictl._proto import cri_pb2
from pycrictl.cri.inspection import statuses
from pycrictl.cri.inspection.containerlog import container_log
from pycrictl.cri.lists.lookup import Lookup
from pycrictl.diagnosis import facts
from pycrictl.diagnosis.asking import Asking, disks_of
from pycrictl.diagnosis.findings import Missing
from pycrictl.diagnosis.pulls import Pulls
from pycrictl.errors import NotFound
from pycrictl.kube.node_pods import Origin
from pycrictl.kube.pods import Pod
from pycrictl.logs.log_reader import LogReader
from pycrictl.logs.selection import Selection
from pycrictl.progress.failures import (
    HISTORY_S,
    REASONS,
    Failure,
    Failures,
    as_text,
)
from pycrictl.progress.reference import is_same_image

if TYPE_CHECKING:
    from pycrictl.cri.calls.client import CriClient
    from pycrictl.kube.node_pods import NodePods
    from pycrictl.logs.journal import JournalLine

JOURNAL_LINES: Final = 200
JOURNAL_CHARS: Final = 2000

_SANDBOX: Final = (
    r"PodSandboxMetadata\{Name:(?P<name>[^,]+),Uid:(?P<uid>[^,]*),Namespace:(?P<ns>[^,]+)"
)
_KUBELET: Final = r'pods?="(?P<ns>[^"/]+)/(?P<name>[^"/]+)"'

LOG_LINES: Final = 3
LOG_LINE_CHARS: Final = 300

_STATES: Final = {
    cri_pb2.CONTAINER_CREATED: "created",
    cri_pb2.CONTAINER_RUNNING: "running",
    cri_pb2.CONTAINER_EXITED: "exited",
}


class Sources(NamedTuple):
    """Whom to ask beside the runtime; None of each for nobody."""

    pods: NodePods | None = None
    read_journal: Callable[[float], Sequence[JournalLine]] | None = None
    ask_proxy: Callable[[], dict[str, Any]] | None = None


class Collector(Asking):
    def __init__(
        self, client: CriClient, images: CriClient, sources: Sources, wall_s: Callable[[], float]
    ) -> None:
        super().__init__()
        self._client = client
        self._images = images
        self._sources = sources
        self._wall_s = wall_s
        self._known: dict[tuple[str, int], facts.Container] = {}

    def _find(
        self, lookup: Lookup, text: str, journal: Sequence[JournalLine]
    ) -> tuple[cri_pb2.PodSandbox | None, Pod | None]:
        pods = self._sources.pods
        try:
            sandbox = lookup.find_pod(text)
        except NotFound:
            found = [one for one in pods.pods() if text in (one.name, str(one))] if pods else []
            self._note_pods()
            if not found and (named := pod_named(journal, text)) is not None:
                found = [named]
            if len({str(one) for one in found}) != 1:
                raise
            return None, found[0]
        meta = sandbox.metadata
        pod = pods.find(meta.namespace, meta.name, meta.uid) if pods is not None else None
        self._note_pods()
        return sandbox, pod

    def _note_pods(self) -> None:
        pods = self._sources.pods
        if pods is None:
            self._missing.append(Missing("API server", "--no-kube"))
        elif pods.origin is not Origin.API:
            reason = "no usable kubelet credential, or no answer; --debug says more"
            self._missing.append(Missing("API server", reason))

    def _journal(self) -> list[JournalLine]:
        read = self._sources.read_journal
        lines = list(read(self._wall_s() - HISTORY_S)) if read is not None else []
        lines = [line._replace(message=as_text(line.message)) for line in lines]
        if not lines:
            why = "it has no lines of the kubelet or the runtime, or cannot be read in time"
            self._missing.append(Missing("journal", why))
        return lines

    # The runtime

    def _sandbox(self, sandbox: cri_pb2.PodSandbox | None) -> facts.Sandbox | None:
        if sandbox is None:
            return None
        is_ready, address = sandbox.state == cri_pb2.SANDBOX_READY, ""
        with self._optional("pod status"):
            for answer in statuses.pod_statuses(
                self._client, [sandbox.id], verbose=False, is_listed=True
            ):
                is_ready = answer.status.state == cri_pb2.SANDBOX_READY
                address = answer.status.network.ip
        return facts.Sandbox(sandbox.id, is_ready, max(sandbox.created_at, 0) / 1e9, address)

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
            for answer in statuses.container_statuses(
                self._client, todo, verbose=False, is_listed=True
            ):
                one = answer.status
                self._known[one.id, one.state] = self._container(one, lookup)
        return [self._known.get((each.id, each.state)) or _as_listed(each) for each in listed]

    @staticmethod
    def _with_kubelets(
        containers: Iterable[facts.Container], pod: Pod | None
    ) -> tuple[facts.Container, ...]:
        """Return containers with what the kubelet says of them, and those that are to come."""
        found = {one.name: one for one in containers}
        for one in pod.images if pod is not None else ():
            if not one.is_volume:
                known = found.pop(one.container, facts.Container(one.container, image=one.image))
                found[one.container] = replace(
                    known,
                    waiting=one.reason,
                    waiting_message=one.message,
                    is_ready=one.is_ready,
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
                for answer in statuses.container_statuses(
                    self._client, [last.id], verbose=False, is_listed=True
                ):
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

    def _disks(self) -> Iterable[Any]:
        with self._optional("disks"):
            return disks_of(self._images)
        return ()

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
            failure = next((one for one in failed if is_same_image(one.image, reference)), None)
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
    """Return what the list says, which has no exit codes, and is better than nothing."""
    is_running = each.state == cri_pb2.CONTAINER_RUNNING
    return facts.Container(
        each.metadata.name,
        each.id,
        each.image.user_specified_image or each.image.image,
        "running" if is_running else "unknown",
        restarts=each.metadata.attempt,
        started_s=each.created_at / 1e9,
    )


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
    """Return the pod of a NAME or NAMESPACE/NAME that the journal speaks of."""
    for line in reversed(journal):
        for pattern in (_SANDBOX, _KUBELET):
            found = re.search(pattern, line.message)
            if found and text in (found["name"], f"{found['ns']}/{found['name']}"):
                uid = found.groupdict().get("uid", "")
                return Pod(found["ns"], found["name"], uid, "", (), ())
    return None


def without_sandbox(journal: Iterable[JournalLine], since_s: float) -> list[str]:
    """Return the pods, NAMESPACE/NAME, whose sandbox could not be made at the last attempt.

    Earlier attempts than ``since_s`` do not count: the pod may have been deleted.
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
