"""Requests about copies: authorizes users, and answers here or forwards to the agent of the node.

The user's name is sent to the other agent in a header, which counts only with an agent's token.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import urlencode

import aiohttp
from aiohttp import web

from pycrictl.base.errors import PycrictlError, UsageError
from pycrictl.base.foreign import parse
from pycrictl.base.units import quote
from pycrictl.cluster.agent.api.answers import respond
from pycrictl.cluster.agent.api.names import COPIES, DEBUGGING_OFF, Refusal
from pycrictl.cluster.agent.cluster import Cluster
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
from pycrictl.cluster.agent.copies.streams import (
    MESSAGE_BYTES,
    accept,
    relay,
    serve_link,
    wants_stream,
)
from pycrictl.cluster.agent.peers import Peers
from pycrictl.cluster.agent.trust.access import Access
from pycrictl.cluster.agent.trust.frontproxy import User
from pycrictl.copy.service.copies import Copy
from pycrictl.copy.service.life import State
from pycrictl.copy.transfer.messages import PIECES_PROTOCOL
from pycrictl.kube.pods import Pod

OWNER: Final = "X-Pycrictl-Owner"
FORWARD_S: Final = 55.0
"""How long the other agent may take; the API server gives a request 60 s."""

MAX_BODY_BYTES: Final = 64 * 1024
MAX_ANSWER_BYTES: Final = 1024 * 1024
MAX_ANSWER_VALUES: Final = 10_000

_MAX_OWNER_CHARS: Final = 8192
_UNKNOWN: Final = CopySpec(Direction.UNKNOWN, b"")


class CopyRequest(NamedTuple):
    """A request about the copies of a pod.

    Attributes:
        words: the segments of its path after the resource.
        given: its query parameters.
    """

    http: web.BaseRequest
    namespace: str
    pod: str
    words: list[str]
    given: dict[str, str]


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
            return await _forward(self.peers, asked, owner, pod)

    async def answer_peer(self, asked: CopyRequest) -> web.StreamResponse:
        """Answer another agent, which has authorized the user; raise as ``answer`` does."""
        async with self._pod(asked) as pod:
            if pod.node != self.node:
                raise Refused(503, f'pod "{asked.namespace}/{asked.pod}" is not on this node')
            return await self._here(asked, _owner_of(asked.http), pod)

    @asynccontextmanager
    async def _pod(self, asked: CopyRequest) -> AsyncIterator[Pod]:
        pod = await self.cluster.pod(asked.namespace, asked.pod)
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
            await _body_of(asked.http)
            await copies.commit(copy := found(name))
        case "POST", [name, "abandon"]:
            await _body_of(asked.http)
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
        document = parse(await _body_of(asked.http))
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


def _owner_of(request: web.BaseRequest) -> CopyOwner:
    text = request.headers.get(OWNER, "")[:_MAX_OWNER_CHARS]
    with suppress(ValueError):
        match parse(base64.b64decode(text, validate=True)):
            case [str(name), str(uid)] if name:
                return CopyOwner(name, uid)
    raise Refused(400, "the other agent names no user")


async def _body_of(request: web.BaseRequest) -> bytes:
    content = await _read(request.content, MAX_BODY_BYTES + 1)
    if len(content) > MAX_BODY_BYTES:
        raise Refused(413, "the object is too large")
    return content


async def _read(stream: aiohttp.StreamReader, most: int) -> bytes:
    content = await stream.read(most)
    while len(content) < most and (more := await stream.readany()):
        content += more
    return content


async def _forward(
    peers: Peers, asked: CopyRequest, owner: CopyOwner, pod: Pod
) -> web.StreamResponse:
    """Forward a request to the agent of the pod's node; return its response."""
    path = "/".join(
        ["/node/v1alpha1/namespaces", asked.namespace, "pods", asked.pod, COPIES, *asked.words]
    )
    path += f"?{urlencode(asked.given)}" if asked.given else ""
    headers = {OWNER: base64.b64encode(json.dumps([owner.name, owner.uid]).encode()).decode()}
    try:
        async with asyncio.timeout(FORWARD_S) as limit:
            if wants_stream(asked.http):
                with suppress(aiohttp.WSServerHandshakeError):
                    return await _forward_stream(peers, asked, pod, path, headers, limit)
                # The library hides why the other agent refused: a plain request is refused, too.
            return await _forward_request(peers, asked, pod, path, headers)
    except TimeoutError:
        raise Refused(503, f"the agent of node {pod.node} does not answer") from None
    except ValueError:
        raise Refused(503, f"the agent of node {pod.node} answers what is not valid") from None
    except PycrictlError as exc:
        raise Refused(503, f"node {pod.node}: {exc.message}") from None


async def _forward_request(
    peers: Peers, asked: CopyRequest, pod: Pod, path: str, headers: dict[str, str]
) -> web.StreamResponse:
    request, body = asked.http, await _body_of(asked.http)
    async with peers.request(
        pod.node, pod.host_ip, request.method, path, headers, body
    ) as response:
        content = await _read(response.content, MAX_ANSWER_BYTES)
        # Encoded anew: the node's content is forwarded, but none of its bytes.
        document = parse(content, most=MAX_ANSWER_VALUES)
        retry = response.headers.get("Retry-After", "")
        retry_after_s = int(retry) if re.fullmatch("[0-9]{1,4}", retry) else 0
        return respond(document, status=response.status, retry_after_s=retry_after_s)


async def _forward_stream(
    peers: Peers,
    asked: CopyRequest,
    pod: Pod,
    path: str,
    headers: dict[str, str],
    limit: asyncio.Timeout,
) -> web.StreamResponse:
    async with peers.stream(
        pod.node, pod.host_ip, path, headers, PIECES_PROTOCOL, MESSAGE_BYTES
    ) as upstream:
        limit.reschedule(None)
        downstream = await accept(asked.http, answers_pings=True)
        await relay(downstream, upstream)
    return downstream
