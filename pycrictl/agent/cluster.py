"""The image pulls of the cluster, asked of the nodes that have some.

Which nodes those are, pods say: those that are pending, and wait for an image as far as is known.
So a list costs as much as there are pulls, however many nodes and pods there are. A node that does
not answer is named; its pulls are shown as the pods have them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from pycrictl.agent.api.names import Document
from pycrictl.agent.apiserver import ApiServer
from pycrictl.agent.node import NodePulls
from pycrictl.agent.objects import is_waiting, objects_of
from pycrictl.agent.peers import Peers
from pycrictl.agent.reflector import Reflector, list_all
from pycrictl.agent.store import Gone, is_of
from pycrictl.errors import PycrictlError
from pycrictl.kube.pods import Pod, parse_pod
from pycrictl.servicelog import Log
from pycrictl.units import escape

PULLS: Final = "/node/v1alpha1/pulls"
"""Where an agent answers for its own node."""

LISTED: Final = "/node/v1alpha1/listed"
"""Where an agent says what it had listed, of all nodes."""

MAX_NAMED: Final = 10
"""How many nodes that do not answer are named in a warning."""


class Scope(NamedTuple):
    """What is listed; empty for everything.

    Attributes:
        namespace: only this one.
        pod: only the pulls of this pod, those that are over included.
        node: only what this node pulls.
    """

    namespace: str = ""
    pod: str = ""
    node: str = ""

    @property
    def path(self) -> str:
        """The list of pods that it is about."""
        return f"/api/v1/namespaces/{self.namespace}/pods" if self.namespace else "/api/v1/pods"

    @property
    def query(self) -> dict[str, str]:
        """The field selector of the list of pods.

        Of many pods, only pending ones are asked for. A container that the kubelet starts again, or
        an ephemeral one, pulls in a running pod: that is seen where a pod or a node is named, and
        on nodes that are asked for another pull.
        """
        terms = {"metadata.name": self.pod, "spec.nodeName": self.node}
        found = [f"{key}={value}" for key, value in terms.items() if value]
        return {"fieldSelector": ",".join(found or ["status.phase=Pending"])}

    @property
    def query_of_peers(self) -> dict[str, str]:
        """What other agents are asked with."""
        return {key: value for key, value in self._asdict().items() if value}

    def has(self, document: Document) -> bool:
        """Return whether an object belongs to it."""
        metadata, spec = document["metadata"], document["spec"]
        return (
            (not self.namespace or metadata["namespace"] == self.namespace)
            and (not self.pod or spec["podName"] == self.pod)
            and (not self.node or spec.get("nodeName") == self.node)
        )


class Round(NamedTuple):
    """What the nodes have answered.

    Attributes:
        objects: of all nodes.
        silent: nodes that did not answer, and why.
    """

    objects: list[Document]
    silent: dict[str, str]

    @property
    def warnings(self) -> list[str]:
        """What to say to who asks."""
        found = [f"node {node} did not answer: {why}" for node, why in self.silent.items()]
        more = len(found) - MAX_NAMED
        return [*found[:MAX_NAMED], *([f"{more} more nodes did not answer"] if more > 0 else [])]


class Cluster:
    """Asks for pulls.

    Args:
        api: the API server, for the pods.
        own: the pulls of this node.
        peers: the other agents.
    """

    def __init__(self, api: ApiServer, own: NodePulls, peers: Peers) -> None:
        self._api = api
        self._own = own
        self._peers = peers
        self._log = Log(__name__)
        self._silent: set[str] = set()

    @property
    def node(self) -> str:
        """The name of this node."""
        return self._own.node

    async def pods(self, scope: Scope) -> list[Pod]:
        """Return the pods that a list is about."""
        found, _ = await list_all(self._api, scope.path, scope.query, parse_pod)
        return list(found.values())

    def reflector(self, scope: Scope) -> Reflector[Pod]:
        """Return what keeps that list up to date."""
        return Reflector(self._api, scope.path, scope.query, parse_pod)

    async def pod(self, namespace: str, name: str) -> Pod | None:
        """Return one pod; None if it does not exist."""
        found = await self.pods(Scope(namespace, name))
        return found[0] if found else None

    async def collect(
        self, scope: Scope, pods: Iterable[Pod], also: Mapping[str, str] | None = None
    ) -> Round:
        """Ask the nodes.

        Args:
            scope: what is listed.
            pods: those of the scope.
            also: more nodes to ask, with their addresses.
        """
        by_node: dict[str, list[Pod]] = {}
        objects: list[Document] = []
        for pod in pods:
            if not pod.node:
                if scope.pod:
                    objects += objects_of([pod], (), "", wants_all=True)
            elif scope.pod or is_waiting(pod):
                by_node.setdefault(pod.node, []).append(pod)
        nodes = {
            **(also or {}),
            **{node: _address(found) for node, found in by_node.items()},
        }
        answers = await asyncio.gather(
            *(self._ask(node, host_ip, scope) for node, host_ip in nodes.items())
        )
        silent: dict[str, str] = {}
        for node, answer in zip(nodes, answers, strict=True):
            if isinstance(answer, str):
                silent[node] = answer
                problem = f"node {node} did not answer: {answer}"
                found = by_node.get(node, [])
                objects += objects_of(found, (), node, wants_all=bool(scope.pod), problem=problem)
            else:
                objects += answer
        for node in silent.keys() - self._silent:
            self._log.warning("node_silent", node=node, error=silent[node])
        self._silent = (self._silent - nodes.keys()) | silent.keys()
        return Round(objects, silent)

    async def listed(self, scope: Scope, version: int) -> list[Document]:
        """Return what another agent had listed at a version of its own.

        Raises:
            Gone: it does not say.
        """
        query = {**scope.query_of_peers, "resourceVersion": str(version)}
        for node in await self._peers.find(lambda node: is_of(version, node)):
            try:
                answer = await self._peers.get(node, "", LISTED, query)
            except PycrictlError:
                continue
            found = [one for one in _items(answer) if is_object(one) and scope.has(one)]
            return [one for one in found if _is_number(one["metadata"].get("resourceVersion"))]
        raise Gone

    async def of_own_node(self, scope: Scope) -> list[Document]:
        """Return the objects of this node.

        Raises:
            PycrictlError: the API server does not say which pods there are.
        """
        pulls, pods = await self._own.ask()
        chosen = [
            pod
            for pod in pods
            if scope.namespace in ("", pod.namespace) and scope.pod in ("", pod.name)
        ]
        problem = "" if pulls else self._own.error
        return objects_of(chosen, pulls, self._own.node, wants_all=bool(scope.pod), problem=problem)

    async def _ask(self, node: str, host_ip: str, scope: Scope) -> list[Document] | str:
        """Return the objects of a node, or why it does not answer."""
        try:
            if node == self._own.node:
                return await self.of_own_node(scope)
            query = scope._replace(node="").query_of_peers
            answer = await self._peers.get(node, host_ip, PULLS, query)
        except PycrictlError as exc:
            return escape(exc.message)
        # A node speaks for itself only.
        of_node = scope._replace(node=node)
        return [one for one in _items(answer) if is_object(one) and of_node.has(one)]


def is_object(document: object) -> bool:
    """Return whether something from another node has the parts that are read here."""
    if not isinstance(document, dict):
        return False
    metadata, spec, status = (document.get(key) for key in ("metadata", "spec", "status"))
    if not (isinstance(metadata, dict) and isinstance(spec, dict) and isinstance(status, dict)):
        return False
    texts = [
        *(metadata.get(key) for key in ("name", "namespace", "uid")),
        *(spec.get(key) for key in ("podName", "image", "nodeName")),
        status.get("phase"),
    ]
    return all(isinstance(one, str) for one in texts)


def _is_number(value: object) -> bool:
    return isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20


def _items(answer: Document) -> list[Any]:
    items = answer.get("items")
    return items if isinstance(items, list) else []


def _address(pods: Iterable[Pod]) -> str:
    return next((pod.host_ip for pod in pods if pod.host_ip), "")
