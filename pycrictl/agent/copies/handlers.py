"""Requests about copies, from the front proxy and from other agents: who may, and where they go."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final

from aiohttp import web

from pycrictl.agent.api.names import DEBUGGING_OFF, GROUP_VERSION, Refusal, pod_not_found
from pycrictl.agent.cluster import Cluster
from pycrictl.agent.copies.forwarding import body_of, forward, owner_of
from pycrictl.agent.copies.http_errors import Refused
from pycrictl.agent.copies.service import Copies
from pycrictl.agent.copies.session import (
    Audit,
    CopyOwner,
    CopySpec,
    Direction,
    Place,
    Session,
    audit_refusal,
    parse_name,
    parse_spec,
)
from pycrictl.agent.copies.upgraded import serve_link, wants_stream
from pycrictl.agent.peers import Peers
from pycrictl.agent.trust.access import Access
from pycrictl.agent.trust.frontproxy import User
from pycrictl.errors import UsageError
from pycrictl.foreign import parse
from pycrictl.kube.pods import Pod
from pycrictl.units import quote

_UNKNOWN: Final = CopySpec(Direction.UNKNOWN, b"")


class CopyRoutes:
    """Answers requests about copies.

    Args:
        copies: of this node; None if it offers none.
        audit: is told of copies that users may not make.
        is_off: refuse all that are about pods of this node.
    """

    def __init__(
        self,
        access: Access,
        cluster: Cluster,
        peers: Peers,
        node: str,
        copies: Copies | None,
        audit: Audit,
        *,
        is_off: bool = False,
    ) -> None:
        self._is_off = is_off
        self._access = access
        self._cluster = cluster
        self._peers = peers
        self._node = node
        self._audit = audit
        self._copies = copies

    async def answer(
        self,
        request: web.BaseRequest,
        user: User,
        namespace: str,
        name: str,
        words: list[str],
        given: dict[str, str],
    ) -> web.StreamResponse:
        """Answer a user of the API server, which has checked ``pods/containercopies``.

        A copy is as powerful as a program in the container, so the user must be allowed that, too.
        """
        wanted = {
            "namespace": namespace,
            "verb": "create",
            "resource": "pods",
            "subresource": "exec",
            "name": name,
        }
        owner = CopyOwner(user.name, user.uid)
        try:
            await self._access.require(
                user,
                {"resourceAttributes": wanted},
                f'pods "{name}" is forbidden: User "{user.name}" cannot create resource "pods/exec"'
                f' in API group "" in the namespace "{namespace}", which a copy needs as well',
            )
        except Refusal as exc:
            if request.method == "POST" and not words:
                spec = _UNKNOWN
                with suppress(Refused):
                    _, spec = await _asked_for(request)
                place = Place(namespace, name, "", spec.container)
                audit_refusal(self._audit, owner, place, spec, exc)
            raise
        async with self._pod(namespace, name) as pod:
            if pod.node == self._node:
                return await self._here(request, owner, pod, words, given)
            if not pod.node:
                raise Refused(409, f'pod "{namespace}/{name}" has not been assigned to a node yet')
            return await forward(self._peers, request, owner, pod, words, given)

    async def answer_peer(
        self,
        request: web.BaseRequest,
        namespace: str,
        name: str,
        words: list[str],
        given: dict[str, str],
    ) -> web.StreamResponse:
        """Answer another agent, which has checked its user; raises as ``answer``."""
        async with self._pod(namespace, name) as pod:
            if pod.node != self._node:
                raise Refused(503, f'pod "{namespace}/{name}" is not on this node')
            return await self._here(request, owner_of(request), pod, words, given)

    @asynccontextmanager
    async def _pod(self, namespace: str, name: str) -> AsyncIterator[Pod]:
        pod = await self._cluster.pod(namespace, name)
        if pod is None:
            raise pod_not_found(name)
        try:
            yield pod
        except Refused as exc:
            exc.name = name
            raise

    async def _here(
        self,
        request: web.BaseRequest,
        owner: CopyOwner,
        pod: Pod,
        words: list[str],
        given: dict[str, str],
    ) -> web.StreamResponse:
        if self._is_off:
            raise Refused(405, DEBUGGING_OFF)
        if self._copies is None:
            raise Refused(
                501, f"the agent of node {self._node} offers no copies: it has no --spool-dir"
            )
        return await answer_here(self._copies, request, owner, pod, words, given)


async def answer_here(
    copies: Copies,
    request: web.BaseRequest,
    owner: CopyOwner,
    pod: Pod,
    words: list[str],
    given: Mapping[str, str],
) -> web.StreamResponse:
    """Answer a request of a user who may make copies of this pod's containers."""
    whole = pod.namespace, pod.name, pod.uid
    match request.method, words:
        case "POST", []:
            return _respond(copies, await _begin(copies, request, owner, pod), 201)
        case "GET", [name]:
            return _respond(copies, copies.find(name, owner, *whole))
        case "POST", [name, "commit"]:
            await body_of(request)
            return _respond(copies, await copies.commit(copies.find(name, owner, *whole)))
        case "POST", [name, "abandon"]:
            await body_of(request)
            return _respond(copies, await copies.abandon(copies.find(name, owner, *whole)))
        case "GET", [name, "data"]:
            session = copies.find(name, owner, *whole)
            if not wants_stream(request):
                raise Refused(400, "the bytes of a copy go over a WebSocket")
            offset = _offset(given)
            await copies.check_moving(session, offset)
            return await serve_link(request, lambda link: copies.connect(session, link, offset))
        case _, [] | [_] | [_, "commit" | "abandon" | "data"]:
            raise Refused(405, f"{request.method[:20]} is not served here")
    raise Refused(404, "the server could not find the requested resource")


async def _begin(copies: Copies, request: web.BaseRequest, owner: CopyOwner, pod: Pod) -> Session:
    try:
        name, spec = await _asked_for(request)
    except Refused as exc:
        place = Place(pod.namespace, pod.name, pod.uid, "")
        audit_refusal(copies.audit, owner, place, _UNKNOWN, exc)
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


def _respond(copies: Copies, session: Session, status: int = 200) -> web.Response:
    document = session.document(GROUP_VERSION, copies.expires(session))
    return web.Response(
        body=json.dumps(document, separators=(",", ":")).encode(),
        status=status,
        headers={"Content-Type": "application/json", "Cache-Control": "no-cache, private"},
    )


async def _asked_for(request: web.BaseRequest) -> tuple[str, CopySpec]:
    """Return the name of the session that a request begins, or an empty one, and what it asks."""
    try:
        document = parse(await body_of(request))
        return parse_name(document), parse_spec(document)
    except UsageError as exc:
        raise Refused(422, exc.message) from None
    except ValueError:
        raise Refused(400, "the object is not JSON") from None


def _offset(given: Mapping[str, str]) -> int:
    text = given.get("offset", "0")
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise Refused(400, "offset is not a number")
    return int(text)
