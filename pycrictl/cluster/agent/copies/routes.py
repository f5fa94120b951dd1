"""Requests about copies: authorizes users, and answers here or forwards to the agent of the node.

The user's name is sent to the other agent in a header, which counts only with an agent's token.
Bytes go over WebSockets of the event loop: to a thread here, or to another agent.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

import aiohttp
from aiohttp import WSMsgType, web

from pycrictl.base.errors import PycrictlError
from pycrictl.base.foreign import parse
from pycrictl.cluster.agent.access import Access, User
from pycrictl.cluster.agent.api.answers import respond
from pycrictl.cluster.agent.api.names import COPIES, DEBUGGING_OFF, Refusal
from pycrictl.cluster.agent.asyncapi import read_body
from pycrictl.cluster.agent.cluster import Cluster
from pycrictl.cluster.agent.copies.documents import (
    Audit,
    CopyEnded,
    CopyOwner,
    CopyRequest,
    CopySpec,
    Refused,
    parse_request,
)
from pycrictl.cluster.agent.copies.sessions import Sessions
from pycrictl.cluster.agent.copies.stream_link import MESSAGE_BYTES, accept
from pycrictl.cluster.agent.peers import Peers
from pycrictl.copy.service.life import State
from pycrictl.copy.transfer.messages import PIECES_PROTOCOL
from pycrictl.kube.pods import Pod

OWNER: Final = "X-Pycrictl-Owner"
FORWARD_S: Final = 55.0
"""How long the other agent may take; the API server gives a request 60 s."""

MAX_ANSWER_BYTES: Final = 1024 * 1024
MAX_ANSWER_VALUES: Final = 10_000

_MAX_OWNER_CHARS: Final = 8192

Socket = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


@dataclass(frozen=True)
class CopyRoutes:
    """Answers requests about copies."""

    access: Access
    cluster: Cluster
    peers: Peers
    node: str
    sessions: Sessions | None  # The copies of this node; None if it offers none
    audit: Audit  # Called with copies that users may not make
    is_off: bool = False  # Refuse all requests about pods of this node

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
                spec = CopySpec()
                with suppress(Refused):
                    _, spec = parse_request(await asked.body())
                record = owner, f"{namespace}/{name}", spec
                self.audit(CopyEnded(*record, State.REFUSED, spec.size_bytes, error=exc.message))
            raise
        return await self._answer(asked, owner, forwards=True)

    async def answer_peer(self, asked: CopyRequest) -> web.StreamResponse:
        """Answer another agent, which has authorized the user; raise as ``answer`` does."""
        return await self._answer(asked, _owner_of(asked.http), forwards=False)

    async def _answer(
        self, asked: CopyRequest, owner: CopyOwner, *, forwards: bool
    ) -> web.StreamResponse:
        pod = await self.cluster.pod(asked.namespace, asked.pod)
        shown = f'pod "{asked.namespace}/{asked.pod}"'
        try:
            if pod.node != self.node and not forwards:
                raise Refused(503, f"{shown} is not on this node")
            if not pod.node:
                raise Refused(409, f"{shown} has not been assigned to a node yet")
            if pod.node != self.node:
                return await _forward(self.peers, asked, owner, pod)
            if self.is_off:
                raise Refused(405, DEBUGGING_OFF)
            if self.sessions is None:
                why = f"the agent of node {self.node} offers no copies: it has no --spool-dir"
                raise Refused(501, why)
            return await self.sessions.answer(asked, owner, pod)
        except Refused as exc:
            exc.name = asked.pod
            raise


def _owner_of(request: web.BaseRequest) -> CopyOwner:
    text = request.headers.get(OWNER, "")[:_MAX_OWNER_CHARS]
    with suppress(ValueError):
        match parse(base64.b64decode(text, validate=True)):
            case [str(name), str(uid)] if name:
                return CopyOwner(name, uid)
    raise Refused(400, "the other agent did not say which user asks")


async def _forward(
    peers: Peers, asked: CopyRequest, owner: CopyOwner, pod: Pod
) -> web.StreamResponse:
    """Forward a request to the agent of the pod's node; return its response."""
    words = ["/node/v1alpha1/namespaces", asked.namespace, "pods", asked.pod, COPIES, *asked.words]
    path = "/".join(words) + (f"?{urlencode(asked.given)}" if asked.given else "")
    headers = {OWNER: base64.b64encode(json.dumps([owner.name, owner.uid]).encode()).decode()}
    request = asked.http
    try:
        async with asyncio.timeout(FORWARD_S) as limit:
            if "upgrade" in request.headers.get("Connection", "").lower():
                stream = peers.stream(pod.node, path, headers, PIECES_PROTOCOL, MESSAGE_BYTES)
                with suppress(aiohttp.WSServerHandshakeError):
                    async with stream as upstream:
                        limit.reschedule(None)
                        downstream = await accept(request)
                        await _relay(downstream, upstream)
                        return downstream
                # The library hides why the other agent refused; a plain request gets the reason.
            body = await asked.body()
            async with peers.request(pod.node, request.method, path, headers, body) as response:
                content = await read_body(response, MAX_ANSWER_BYTES)
                # Encoded anew: no bytes of another node are forwarded as they are.
                document = parse(content, most=MAX_ANSWER_VALUES)
                retry = response.headers.get("Retry-After", "")
                retry_after_s = int(retry) if re.fullmatch("[0-9]{1,4}", retry) else 0
                return respond(document, status=response.status, retry_after_s=retry_after_s)
    except TimeoutError:
        raise Refused(503, f"the agent of node {pod.node} does not answer") from None
    except ValueError:
        raise Refused(503, f"the agent of node {pod.node} gave no valid answer") from None
    except PycrictlError as exc:
        raise Refused(503, f"node {pod.node}: {exc.message}") from None


async def _relay(first: Socket, second: Socket) -> None:
    """Relay messages both ways until one of the connections ends; then close both."""

    async def pass_on(source: Socket, target: Socket) -> None:
        with suppress(ConnectionError, aiohttp.ClientError):
            async for message in source:
                if message.type is WSMsgType.BINARY:
                    await target.send_bytes(message.data)
        await target.close()

    await asyncio.gather(pass_on(first, second), pass_on(second, first))
