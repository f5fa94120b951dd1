"""The image pulls of the cluster, queried from the nodes that have some.

These nodes are found by their pods, which are pending and, as far as is known, wait for an image.
So the cost of a list depends on the number of pulls, not of nodes or pods. A node that does not
answer is named in a warning; its pulls are shown with the state found in the pods.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Set
from typing import Final, NamedTuple

from pycrictl.base.errors import PycrictlError
from pycrictl.base.foreign import fit
from pycrictl.base.servicelog import Log
from pycrictl.base.units import escape
from pycrictl.cluster.agent.api.discovery import IMAGE_PULL
from pycrictl.cluster.agent.api.names import GROUP_VERSION, KIND, Document, pod_not_found
from pycrictl.cluster.agent.asyncapi import AsyncApiClient, Reflector, list_all, path_of_pods
from pycrictl.cluster.agent.node_pulls import NodePulls
from pycrictl.cluster.agent.objects import is_waiting, objects_of
from pycrictl.cluster.agent.peers import Peers
from pycrictl.kube.pods import Pod, parse_pod

PULLS: Final = "/node/v1alpha1/pulls"
MAX_NAMED: Final = 10
MAX_OTHERS: Final = 250
"""How many objects are accepted from a node beyond those of pods known to wait there: its kubelet
has no more pods than that (``maxPods`` of the largest nodes)."""

_NAMED_FIELDS: Final = 5


class Scope(NamedTuple):
    """The scope of a list; empty fields match all. For one pod, finished pulls are listed, too."""

    namespace: str = ""
    pod: str = ""
    node: str = ""

    @property
    def query(self) -> dict[str, str]:
        """The field selector of the list of pods.

        Without a pod or node, only pending pods are listed. A restarted or an ephemeral container
        pulls in a running pod: such a pull is seen if its pod or node is given, or if its node is
        queried because of another pull.
        """
        terms = {"metadata.name": self.pod, "spec.nodeName": self.node}
        selectors = [f"{key}={value}" for key, value in terms.items() if value]
        return {"fieldSelector": ",".join(selectors or ["status.phase=Pending"])}

    @property
    def query_of_peers(self) -> dict[str, str]:
        return {key: value for key, value in self._asdict().items() if value}

    def has(self, document: Document) -> bool:
        metadata, spec = document["metadata"], document["spec"]
        return (
            (not self.namespace or metadata["namespace"] == self.namespace)
            and (not self.pod or spec["podName"] == self.pod)
            and (not self.node or spec.get("nodeName") == self.node)
        )


class Round(NamedTuple):
    """The objects that the nodes report, and warnings for users about nodes that do not."""

    objects: list[Document]
    warnings: list[str]


class _Answer(NamedTuple):
    """The answer of one node, or a ``problem``; ``odd`` names the invalid parts left out."""

    objects: list[Document]
    odd: str = ""
    problem: str = ""


class Cluster:
    def __init__(self, api: AsyncApiClient, own: NodePulls, peers: Peers) -> None:
        self._api = api
        self._own = own
        self._peers = peers
        self._log = Log(__name__)
        self._doubtful: set[str] = set()

    @property
    def node(self) -> str:
        return self._own.node

    async def own_news(self, timeout_s: float) -> None:
        """Return when this node's pulls have been polled again, or after a time limit."""
        await self._own.changes.wait(timeout_s)

    async def pods(self, scope: Scope) -> list[Pod]:
        path = path_of_pods(scope.namespace)
        pods, _ = await list_all(self._api, path, scope.query, parse_pod)
        return list(pods.values())

    def reflector(self, scope: Scope) -> Reflector[Pod]:
        return Reflector(self._api, path_of_pods(scope.namespace), scope.query, parse_pod)

    async def pod(self, namespace: str, name: str) -> Pod:
        for pod in await self.pods(Scope(namespace, name)):
            return pod
        raise pod_not_found(name)

    async def collect(self, scope: Scope, pods: Iterable[Pod], also: Set[str]) -> Round:
        """Query the nodes of these pods, and those in ``also``."""
        by_node: defaultdict[str, list[Pod]] = defaultdict(list)
        objects: list[Document] = []
        for pod in pods:
            if not pod.node:
                objects += objects_of([pod], (), "", wants_all=True) if scope.pod else []
            elif scope.pod or is_waiting(pod):
                by_node[pod.node].append(pod)
        nodes = sorted(also | by_node.keys())
        asked = (self._ask(node, scope, by_node[node]) for node in nodes)
        where = {(pod.namespace, pod.name): pod.node for pod in pods}
        doubts: dict[str, str] = {}
        for node, answer in zip(nodes, await asyncio.gather(*asked), strict=True):
            if answer.problem:
                doubts[node] = f"did not answer: {answer.problem}"
                problem, wants_all = f"node {node} {doubts[node]}", bool(scope.pod)
                objects += objects_of(by_node[node], (), node, wants_all=wants_all, problem=problem)
            elif answer.odd:
                doubts[node] = f"gave an answer with invalid parts: {answer.odd}"
            # A node may only report its own pods.
            of_node = scope._replace(node=node)
            for document in answer.objects:
                pod_name = document["metadata"]["namespace"], document["spec"]["podName"]
                if of_node.has(document) and where.get(pod_name, node) == node:
                    objects.append(document)
                    if document["status"].get("unknown"):
                        error = document["status"].get("error", "")
                        doubts.setdefault(node, f"does not know its pulls: {error}")
        for node in doubts.keys() - self._doubtful:
            self._log.warning("node_doubtful", node=node, error=doubts[node])
        self._doubtful = (self._doubtful - {*nodes}) | doubts.keys()
        warnings = [f"node {node} {doubt}" for node, doubt in doubts.items()]
        if (more := len(warnings) - MAX_NAMED) > 0:
            warnings[MAX_NAMED:] = [f"{more} more nodes have warnings"]
        return Round(objects, warnings)

    async def of_own_node(self, scope: Scope) -> list[Document]:
        pulls, pods = await self._own.ask()
        chosen = [
            pod
            for pod in pods
            if scope.namespace in ("", pod.namespace) and scope.pod in ("", pod.name)
        ]
        problem = "" if pulls else self._own.error
        has_pod = bool(scope.pod)
        return objects_of(chosen, pulls, self._own.node, wants_all=has_pod, problem=problem)

    async def _ask(self, node: str, scope: Scope, pods: list[Pod]) -> _Answer:
        try:
            if node == self._own.node:
                return _Answer(await self.of_own_node(scope))
            query = scope._replace(node="").query_of_peers
            answer = await self._peers.get(node, PULLS, query)
        except PycrictlError as exc:
            return _Answer([], problem=escape(exc.message))
        most = MAX_OTHERS + sum(len(pod.images) for pod in pods)
        return _Answer(*judged(answer.get("items"), most))


def judged(items: object, most: int) -> tuple[list[Document], str]:
    """Return another agent's valid objects, and a list of what was left out, as a text."""
    if not isinstance(items, list):
        return [], "items"
    wrong: list[str] = []
    documents: list[Document] = []
    for item in items[:most]:
        if (document := fit(item, IMAGE_PULL, wrong)) is None:
            wrong.append("whole objects")
        else:
            documents.append({"apiVersion": GROUP_VERSION, "kind": KIND, **document})
    kinds = list(dict.fromkeys(wrong))
    texts = [*kinds[:_NAMED_FIELDS], *(["…"] if len(kinds) > _NAMED_FIELDS else [])]
    if len(items) > most:
        texts.append(f"{len(items) - most} objects over the limit of {most}")
    return documents, ", ".join(texts)
