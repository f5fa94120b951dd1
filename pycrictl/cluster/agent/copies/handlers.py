"""Authorizes and routes requests about copies, from the front proxy and from other agents."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from pycrictl.base.errors import UsageError
from pycrictl.base.foreign import parse
from pycrictl.base.units import quote
from pycrictl.cluster.agent.api.answers import respond
from pycrictl.cluster.agent.api.names import DEBUGGING_OFF, Refusal, pod_not_found
from pycrictl.cluster.agent.cluster import Cluster
from pycrictl.cluster.agent.copies.forwarding import CopyRequest, body_of, forward, owner_of
from pycrictl.cluster.agent.copies.node_copies import NodeCopies
from pycrictl.cluster.agent.copies.requests import (
    Audit,
    CopyEnded,
    CopyOwner,
    CopySpec,
    Direction,
    NodeCopy,
    Place,
    Refused,
    document_of,
    parse_name,
    parse_spec,
)
from pycrictl.cluster.agent.copies.streams import serve_link
from pycrictl.cluster.agent.peers import Peers
from pycrictl.cluster.agent.trust.access import Access
from pycrictl.cluster.agent.trust.frontproxy import User
from pycrictl.copy.service.copies import Copy
from pycrictl.copy.service.life import State
from pycrictl.kube.pods import Pod

_UNKNOWN: Final = CopySpec(Direction.UNKNOWN, b"")


@dataclass(frozen=True)
class CopyRoutes:
    """Answers requests about copies.

    Attributes:
        copies: of this node; None if it offers none.
        audit: called with copies that users may not make.
        is_off: refuse all requests about pods of this node.
    """

    access: Access
    cluster: Cluster
    peers: Peers
    node: str
    copies: NodeCopies | None
    audit: Audit
    is_off: bool = False

    async def answer(self, asked: CopyRequest, user: User) -> web.StreamResponse:
        """Answer a user of the API server, which has authorized ``pods/containercopies``.

        A copy is as powerful as a program in the container, so the user needs ``pods/exec``, too.
        """
        namespace, name, owner = asked.namespace, asked.pod, CopyOwner(user.name, user.uid)
        wanted = {
            "namespace": namespace,
            "verb": "create",
            "resource": "pods",
            "subresource": "exec",
            "name": name,
        }
        try:
            await self.access.require(
                user,
                {"resourceAttributes": wanted},
                f'pods "{name}" is forbidden: User "{user.name}" cannot create resource "pods/exec"'
                f' in API group "" in the namespace "{namespace}", which a copy needs as well',
            )
        except Refusal as exc:
            if asked.http.method == "POST" and not asked.words:
                spec = _UNKNOWN
                with suppress(Refused):
                    _, spec = await _asked_for(asked)
                place = Place(namespace, name, "", spec.container)
                self.audit(_refused(owner, place, spec, exc))
            raise
        async with self._pod(asked) as pod:
            if pod.node == self.node:
                return await self._here(asked, owner, pod)
            if not pod.node:
                raise Refused(409, f'pod "{namespace}/{name}" has not been assigned to a node yet')
            return await forward(self.peers, asked, owner, pod)

    async def answer_peer(self, asked: CopyRequest) -> web.StreamResponse:
        """Answer another agent, which has authorized the user; raise as ``answer`` does."""
        async with self._pod(asked) as pod:
            if pod.node != self.node:
                raise Refused(503, f'pod "{asked.namespace}/{asked.pod}" is not on this node')
            return await self._here(asked, owner_of(asked.http), pod)

    @asynccontextmanager
    async def _pod(self, asked: CopyRequest) -> AsyncIterator[Pod]:
        pod = await self.cluster.pod(asked.namespace, asked.pod)
        if pod is None:
            raise pod_not_found(asked.pod)
        try:
            yield pod
        except Refused as exc:
            exc.name = asked.pod
            raise

    async def _here(self, asked: CopyRequest, owner: CopyOwner, pod: Pod) -> web.StreamResponse:
        if self.is_off:
            raise Refused(405, DEBUGGING_OFF)
        if self.copies is None:
            raise Refused(
                501, f"the agent of node {self.node} offers no copies: it has no --spool-dir"
            )
        return await answer_here(self.copies, asked, owner, pod)


async def answer_here(
    copies: NodeCopies, asked: CopyRequest, owner: CopyOwner, pod: Pod
) -> web.StreamResponse:
    """Answer a request of a user who may make copies of this pod's containers."""

    def found(name: str) -> Copy[NodeCopy]:
        return copies.find(name, owner, pod)

    status = 200
    match asked.http.method, asked.words:
        case "POST", []:
            copy, status = await _begin(copies, asked, owner, pod), 201
        case "GET", [name]:
            copy = found(name)
        case "POST", [name, "commit"]:
            await body_of(asked.http)
            await copies.commit(copy := found(name))
        case "POST", [name, "abandon"]:
            await body_of(asked.http)
            await copies.abandon(copy := found(name))
        case "GET", [name, "data"]:
            moved, offset = found(name), _offset(asked.given)
            await copies.check_moving(moved, offset)
            return await serve_link(
                asked.http, lambda link: copies.copies.attach(moved, link, offset)
            )
        case _, [] | [_] | [_, "commit" | "abandon" | "data"]:
            raise Refused(405, f"{asked.http.method[:20]} is not served here")
        case _:
            raise Refused(404, "the server could not find the requested resource")
    return respond(document_of(copy, copies.expires(copy)), status=status)


async def _begin(
    copies: NodeCopies, asked: CopyRequest, owner: CopyOwner, pod: Pod
) -> Copy[NodeCopy]:
    try:
        name, spec = await _asked_for(asked)
    except Refused as exc:
        place = Place(pod.namespace, pod.name, pod.uid, "")
        copies.audit(_refused(owner, place, _UNKNOWN, exc))
        raise
    place = Place(pod.namespace, pod.name, pod.uid, spec.container or pod.container)
    try:
        return await copies.begin(owner, place, spec, name)
    except Refused as exc:
        containers = [one.container for one in pod.images if not one.is_volume]
        if exc.code == 404 and containers and spec.container not in ("", *containers):
            raise Refused(
                404,
                f"pod {quote(f'{pod.namespace}/{pod.name}')} has no container"
                f" {quote(spec.container)}, only {', '.join(containers)}",
            ) from exc
        raise


async def _asked_for(asked: CopyRequest) -> tuple[str, CopySpec]:
    """Return the session name in a request that begins a copy, empty if absent, and its spec."""
    try:
        document = parse(await body_of(asked.http))
        return parse_name(document), parse_spec(document)
    except UsageError as exc:
        raise Refused(422, exc.message) from None
    except ValueError:
        raise Refused(400, "the object is not JSON") from None


def _refused(owner: CopyOwner, place: Place, spec: CopySpec, why: Refusal) -> CopyEnded:
    return CopyEnded(owner, place, spec, State.REFUSED, spec.size_bytes, error=why.message)


def _offset(given: Mapping[str, str]) -> int:
    text = given.get("offset", "0")
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise Refused(400, "offset is not a number")
    return int(text)
