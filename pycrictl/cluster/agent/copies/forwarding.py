"""Forwards requests about copies to agents of other nodes.

The user's name is sent to the other agent in a header, which counts only with an agent's token.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from contextlib import suppress
from typing import Final, NamedTuple
from urllib.parse import urlencode

import aiohttp
from aiohttp import web

from pycrictl.base.errors import PycrictlError
from pycrictl.base.foreign import parse
from pycrictl.cluster.agent.api.answers import respond
from pycrictl.cluster.agent.api.names import COPIES
from pycrictl.cluster.agent.copies.requests import CopyOwner, Refused
from pycrictl.cluster.agent.copies.streams import MESSAGE_BYTES, accept, relay, wants_stream
from pycrictl.cluster.agent.peers import Peers
from pycrictl.copy.transfer.messages import PIECES_PROTOCOL
from pycrictl.kube.pods import Pod

OWNER: Final = "X-Pycrictl-Owner"
FORWARD_S: Final = 55.0
"""How long the other agent may take; the API server gives a request 60 s."""

MAX_BODY_BYTES: Final = 64 * 1024
MAX_ANSWER_BYTES: Final = 1024 * 1024
MAX_ANSWER_VALUES: Final = 10_000

_MAX_OWNER_CHARS: Final = 8192


def owner_header(owner: CopyOwner) -> str:
    return base64.b64encode(json.dumps([owner.name, owner.uid]).encode()).decode()


def owner_of(request: web.BaseRequest) -> CopyOwner:
    text = request.headers.get(OWNER, "")[:_MAX_OWNER_CHARS]
    with suppress(ValueError):
        match parse(base64.b64decode(text, validate=True)):
            case [str(name), str(uid)] if name:
                return CopyOwner(name, uid)
    raise Refused(400, "the other agent names no user")


async def body_of(request: web.BaseRequest) -> bytes:
    content = await _read(request.content, MAX_BODY_BYTES + 1)
    if len(content) > MAX_BODY_BYTES:
        raise Refused(413, "the object is too large")
    return content


async def _read(stream: aiohttp.StreamReader, most: int) -> bytes:
    content = await stream.read(most)
    while len(content) < most and (more := await stream.readany()):
        content += more
    return content


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


async def forward(
    peers: Peers, asked: CopyRequest, owner: CopyOwner, pod: Pod
) -> web.StreamResponse:
    """Forward a request to the agent of the pod's node; return its response."""
    path = "/".join(
        ["/node/v1alpha1/namespaces", asked.namespace, "pods", asked.pod, COPIES, *asked.words]
    )
    path += f"?{urlencode(asked.given)}" if asked.given else ""
    headers = {OWNER: owner_header(owner)}
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
    request, body = asked.http, await body_of(asked.http)
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
