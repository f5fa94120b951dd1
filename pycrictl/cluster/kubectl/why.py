"""``kubectl why``: what is wrong with pods, as the API server knows it, by kubectl alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Self

from pycrictl.base.errors import NotFound, PycrictlError
from pycrictl.base.foreign import mapping, mappings, text
from pycrictl.cluster.kubectl.cluster_lists import ClusterLists, Query
from pycrictl.cluster.kubectl.cluster_state import PARSERS, WORKLOADS, ClusterState
from pycrictl.cluster.kubectl.pod_selection import Asked, resolve, selector_of
from pycrictl.cluster.kubectl.program import Kubectl
from pycrictl.diagnosis.pod import Look
from pycrictl.kube.pods import Pod, controller_of

LOG_LINES: Final = 3
LOG_LINE_CHARS: Final = 300

_RESOURCES: Final = {
    "Pod": "pods",
    "Node": "nodes",
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "Deployment": "deployments",
    "ReplicaSet": "replicasets",
    "StatefulSet": "statefulsets",
    "DaemonSet": "daemonsets",
    "Job": "jobs",
    "CronJob": "cronjobs",
}


class ClusterView:
    """The requested pods and what they depend on; use it in a ``with`` statement."""

    def __init__(self, kubectl: Kubectl, asked: Asked, environ: Mapping[str, str]) -> None:
        self._kubectl = kubectl
        self._state = ClusterState()
        self._is_whole = not asked.names
        queries, self._reported = _queries(kubectl, asked)
        self._lists = ClusterLists(kubectl, environ, self._state, queries)

    def __enter__(self) -> Self:
        self._lists.__enter__()
        return self

    def __exit__(self, *details: object) -> None:
        self._lists.__exit__(*details)

    def look(self, now_s: float, *, watches: bool = False) -> Look:
        """Diagnose everything that was requested; with ``watches``, nothing is listed again."""
        self._lists.update(watches=watches)
        if not self._is_whole and len(self._state.pods) == 1:
            self._state.logs = dict(self._logs(self._state.pods[0]))
        look = self._state.look(now_s, self._reported, is_whole=self._is_whole)
        if not look.reports and not self._is_whole:
            raise NotFound("no such pod")
        return look

    def _logs(self, pod: Pod) -> Iterator[tuple[tuple[str, str], tuple[str, ...]]]:
        """Iterate over the last log lines of the containers that say why, if there are any."""
        for container, is_before in needs_log(pod):
            words = ["logs", pod.name, f"--container={container}", f"--tail={LOG_LINES}"]
            words += [f"--namespace={pod.namespace}", *(["--previous"] if is_before else [])]
            try:
                said = self._kubectl.output(*words)
            except PycrictlError:
                continue
            lines = said.decode("utf-8", "replace").splitlines()
            kept = tuple(line[:LOG_LINE_CHARS] for line in lines if line.strip())
            yield (pod.uid, container), kept


def needs_log(pod: Pod) -> Iterator[tuple[str, bool]]:
    """Iterate over the containers whose log may say why, and whether it is their previous run."""
    for one in pod.images:
        if one.run.exit_code or (one.role == "init" and one.run.state == "running"):
            yield one.container, False
        elif one.before.exit_code:
            yield one.container, True


def _newest_jobs(
    kubectl: Kubectl, namespace: str, documents: Iterable[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the newest Job of each CronJob among some objects."""
    crons = [one["metadata"]["name"] for one in documents if one.get("kind") == "CronJob"]
    words = ("get", "jobs", f"--namespace={namespace}", "--output=json")
    found = mappings(kubectl.documents(*words).get("items")) if crons else []
    found.sort(key=lambda one: text(one["metadata"].get("creationTimestamp")))
    newest = {controller_of(one["metadata"]): one for one in found}
    return [newest[f"CronJob/{name}"] for name in crons if f"CronJob/{name}" in newest]


def _queries(kubectl: Kubectl, asked: Asked) -> tuple[list[Query], set[str]]:
    """Return the lists that are needed, and the resources besides pods whose state is reported."""
    namespace, documents = resolve(kubectl, asked)
    shared = [
        Query("events", namespace, "type=Warning"),
        Query("imagepulls", namespace),
        Query("persistentvolumeclaims", namespace),
    ]
    if not asked.names:
        of_node = f"spec.nodeName={asked.node}" if asked.node else ""
        queries = [Query("pods", namespace, of_node, asked.selector), Query("nodes"), *shared]
        if asked.selector:
            return queries, {"nodes"}
        return [*queries, *(Query(one, namespace) for one in WORKLOADS)], {*PARSERS}
    queries, reported, nodes = [], set(), set()
    for one in [*documents, *_newest_jobs(kubectl, namespace, documents)]:
        resource = _RESOURCES.get(text(one.get("kind")), "")
        name = text(mapping(one, "metadata").get("name"))
        if resource:
            queries.append(Query(resource, namespace, f"metadata.name={name}"))
            reported |= {resource} - {"pods"}
        if resource == "pods":
            nodes.add(text(mapping(one, "spec").get("nodeName")))
        elif resource == "nodes":
            queries.append(Query("pods", fields=f"spec.nodeName={name}"))
        elif resource not in ("persistentvolumeclaims", "cronjobs"):
            queries.append(Query("pods", namespace, labels=selector_of(one)))
            nodes.add("")
    if "nodes" not in reported:
        (node, *more) = nodes or {""}
        queries.append(Query("nodes", fields=f"metadata.name={node}" if node and not more else ""))
    return [*queries, *(one for one in shared if one.resource not in reported)], reported
