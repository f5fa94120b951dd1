"""``kubectl why``: what is wrong with pods, found through kubectl from the API server alone.

Objects are listed in pages and then watched, through ``kubectl proxy``. The contract is that of the
API concepts ("Efficient detection of changes"): a list has a resource version, from which a watch
continues; the list is repeated only after 410 (Gone).
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, Self
from urllib.parse import urlencode

from pycrictl.base.errors import NotFound, PycrictlError, RemoteProtocolError, UpgradeRefused
from pycrictl.base.foreign import mapping, mappings, parse, text
from pycrictl.cluster.agent.api.names import GROUP_VERSION
from pycrictl.cluster.kubectl import api_errors
from pycrictl.cluster.kubectl.cluster_state import PARSERS, WORKLOADS, ClusterState, key_of
from pycrictl.cluster.kubectl.pod_selection import Asked, resolve, selector_of
from pycrictl.cluster.kubectl.program import READ_ONLY, Kubectl, KubectlProxy, fetch, read
from pycrictl.diagnosis.facts import LOG_LINE_CHARS, LOG_LINES
from pycrictl.diagnosis.findings import Missing
from pycrictl.diagnosis.pod import Overview
from pycrictl.kube.apiclient import Expired, events_of
from pycrictl.kube.pods import Pod, controller_of
from pycrictl.streams.loop import new_loop

log = logging.getLogger("pycrictl.kubectl")

PAGE: Final = 500
"""How many objects a page of a list has, as with kubectl."""

QUIET_S: Final = 0.05
MOST_S: Final = 2.0
"""An update ends when no change has arrived for a moment, or after this time."""

AGAIN_S: Final = 2.0
"""The pause after a watch, which the server ends every few minutes."""

GONE: Final = 410
"""The status of a watch whose resource version is too old."""

_CORE, _APPS, _BATCH = "/api/v1", "/apis/apps/v1", "/apis/batch/v1"
_AT: Final = {
    **dict.fromkeys(("pods", "events", "nodes", "persistentvolumeclaims"), _CORE),
    **dict.fromkeys(("deployments", "replicasets", "statefulsets", "daemonsets"), _APPS),
    **dict.fromkeys(("jobs", "cronjobs"), _BATCH),
    "imagepulls": f"/apis/{GROUP_VERSION}",
}
_SOURCES: Final = {"imagepulls": "agents"}


class Query(NamedTuple):
    """A list of objects: all of a resource, or those that fit selectors."""

    resource: str
    namespace: str = ""
    fields: str = ""
    labels: str = ""

    def path(self, **parameters: str) -> str:
        is_namespaced = self.namespace and self.resource != "nodes"
        where = f"/namespaces/{self.namespace}" if is_namespaced else ""
        selectors = {"fieldSelector": self.fields, "labelSelector": self.labels}
        words = urlencode(
            {**{key: value for key, value in selectors.items() if value}, **parameters}
        )
        return f"{_AT[self.resource]}{where}/{self.resource}?{words}"


class ClusterView:
    """The requested pods and what they depend on, in a ``with`` statement in the main thread.

    Making it, entering and ``overview`` raise the errors of ``KubectlProxy`` and of the list of
    pods; other resources that cannot be listed are ``missing`` in the overview.
    """

    def __init__(self, kubectl: Kubectl, asked: Asked) -> None:
        self._kubectl = kubectl
        self._state = ClusterState()
        self._is_whole = not asked.names
        self._queries, self._reported = _queries(kubectl, asked)
        self._proxy = KubectlProxy(kubectl, (READ_ONLY,))
        self._runner = asyncio.Runner(loop_factory=new_loop)
        self._versions: dict[Query, str] = {}
        self._keys: dict[Query, set[str]] = {}
        self._watches: list[asyncio.Task[None]] = []
        self._has_changed = False

    def __enter__(self) -> Self:
        self._proxy.__enter__()
        return self

    def __exit__(self, *details: object) -> None:
        self._runner.close()
        self._proxy.__exit__(*details)

    def overview(self, now_s: float, *, watches: bool = False) -> Overview:
        """Diagnose everything that was requested.

        Everything is listed the first time; with ``watches``, later calls apply what has changed.
        """
        self._runner.run(self._update(watches))
        if not self._is_whole and len(self._state.pods) == 1:
            self._state.logs = dict(self._logs(self._state.pods[0]))
        seen = self._state.overview(now_s, self._reported, is_whole=self._is_whole)
        if not seen.reports and not self._is_whole:
            raise NotFound("no such pod")
        return seen

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

    async def _update(self, watches: bool) -> None:
        if not self._versions:
            gc.disable()  # it would take half of the time, and find no cycle
            listing = map(self._list, self._queries)
            outcomes = await asyncio.gather(*listing, return_exceptions=True)
            gc.freeze()
            gc.enable()
            self._state.missing = list(_missing(zip(self._queries, outcomes, strict=True)))
        if watches and not self._watches:
            self._watches = [asyncio.create_task(self._watch(query)) for query in self._versions]
        loop = asyncio.get_running_loop()
        end_at = loop.time() + MOST_S
        while self._watches and loop.time() < end_at:
            self._has_changed = False
            await asyncio.sleep(QUIET_S)
            if not self._has_changed:
                break

    async def _list(self, query: Query) -> None:
        rest, keys = "", set()
        while True:
            parameters = {"limit": str(PAGE), **({"continue": rest} if rest else {})}
            document = await self._fetch(query.path(**parameters))
            for item in mappings(document.get("items")):
                self._state.put(query.resource, item)
                keys.add(key_of(item))
            metadata = mapping(document.get("metadata"))
            if not (rest := text(metadata.get("continue"))):
                break
        for key in self._keys.get(query, set()) - keys:
            self._state.drop(query.resource, key)
        self._keys[query] = keys
        self._state.listed.add(query.resource)
        self._versions[query] = text(metadata.get("resourceVersion"))

    async def _fetch(self, path: str) -> dict[str, Any]:
        try:
            return mapping(parse(await fetch(self._proxy.target(path))))
        except UpgradeRefused as exc:
            raise api_errors.of_answer(exc) from exc
        except ValueError:
            raise RemoteProtocolError("the API server's answer is not JSON") from None

    async def _watch(self, query: Query) -> None:
        while True:
            try:
                if query not in self._versions:
                    await self._list(query)
                await self._follow(query)
            except PycrictlError as exc:
                log.debug("the watch of %s ended: %s", query.resource, exc)
            await asyncio.sleep(AGAIN_S)

    async def _follow(self, query: Query) -> None:
        since = {"watch": "true", "allowWatchBookmarks": "true"}
        path = query.path(**since, resourceVersion=self._versions[query])
        try:
            async for event in events_of(read(self._proxy.target(path))):
                self._apply(query, event)
        except Expired:
            del self._versions[query]
        except UpgradeRefused as exc:
            if exc.status == GONE:
                del self._versions[query]

    def _apply(self, query: Query, event: Mapping[str, Any]) -> None:
        kind, document = event.get("type"), event["object"]
        self._has_changed = True
        self._versions[query] = text(mapping(document.get("metadata")).get("resourceVersion"))
        if kind == "DELETED":
            self._state.drop(query.resource, key_of(document))
            self._keys[query].discard(key_of(document))
        elif kind in ("ADDED", "MODIFIED"):
            self._state.put(query.resource, document)
            self._keys[query].add(key_of(document))


def _missing(outcomes: Iterable[tuple[Query, BaseException | None]]) -> Iterator[Missing]:
    """Iterate over the sources that could not be listed, each once; raise other errors."""
    seen = set()
    for query, error in outcomes:
        if error is not None and (query.resource == "pods" or not isinstance(error, PycrictlError)):
            raise error
        is_workload = query.resource in WORKLOADS
        source = "workloads" if is_workload else _SOURCES.get(query.resource, query.resource)
        if isinstance(error, PycrictlError) and source not in seen:
            seen.add(source)
            yield Missing(source, error.message)


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


def needs_log(pod: Pod) -> Iterator[tuple[str, bool]]:
    """Iterate over the containers whose log may say why; True is for their previous run's log."""
    for image in pod.images:
        if image.run.exit_code or (image.role == "init" and image.run.state == "running"):
            yield image.container, False
        elif image.before.exit_code:
            yield image.container, True


def _newest_jobs(
    kubectl: Kubectl, namespace: str, documents: Iterable[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the newest Job of each CronJob among some objects."""
    crons = [
        document["metadata"]["name"] for document in documents if document.get("kind") == "CronJob"
    ]
    words = ("get", "jobs", f"--namespace={namespace}", "--output=json")
    jobs = mappings(kubectl.documents(*words).get("items")) if crons else []
    jobs.sort(key=lambda document: text(document["metadata"].get("creationTimestamp")))
    newest = {controller_of(document["metadata"]): document for document in jobs}
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
        return [*queries, *(Query(item, namespace) for item in WORKLOADS)], {*PARSERS}
    queries, reported, nodes = [], set(), set()
    for item in [*documents, *_newest_jobs(kubectl, namespace, documents)]:
        resource = _RESOURCES.get(text(item.get("kind")), "")
        name = text(mapping(item, "metadata").get("name"))
        if resource:
            queries.append(Query(resource, namespace, f"metadata.name={name}"))
            reported |= {resource} - {"pods"}
        if resource == "pods":
            nodes.add(text(mapping(item, "spec").get("nodeName")))
        elif resource == "nodes":
            queries.append(Query("pods", fields=f"spec.nodeName={name}"))
        elif resource not in ("persistentvolumeclaims", "cronjobs"):
            queries.append(Query("pods", namespace, labels=selector_of(item)))
            nodes.add("")
    if "nodes" not in reported:
        (node, *more) = nodes or {""}
        queries.append(Query("nodes", fields=f"metadata.name={node}" if node and not more else ""))
    return [*queries, *(item for item in shared if item.resource not in reported)], reported
