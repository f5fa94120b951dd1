"""Requests about copies of pods of other nodes, handed on to the agents there.

The user goes with them in a header of its own, which counts only beside the token of an agent.
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

from pycrictl.agent.api.answers import respond
from pycrictl.agent.api.names import COPIES
from pycrictl.agent.copies.http_errors import Refused
from pycrictl.agent.copies.session import CopyOwner
from pycrictl.agent.copies.upgraded import Pipe, Upgraded, joined, wants_stream
from pycrictl.agent.peers import Peers
from pycrictl.copy.transfer.messages import PIECES_PROTOCOL
from pycrictl.errors import PycrictlError
from pycrictl.foreign import parse
from pycrictl.kube.pods import Pod
from pycrictl.wire.http1 import serialize_response

OWNER: Final = "X-Pycrictl-Owner"
FORWARD_S: Final = 55.0
"""How long the other agent may take; the API server gives a request 60 s."""

MAX_BODY_BYTES: Final = 64 * 1024
MAX_ANSWER_BYTES: Final = 1024 * 1024
MAX_ANSWER_VALUES: Final = 10_000

SWITCHING: Final = 101
"""The HTTP status that upgrades a connection."""

_MAX_OWNER_CHARS: Final = 8192
_UPGRADE: Final = (
    *("Connection", "Upgrade", "Sec-WebSocket-Key"),
    *("Sec-WebSocket-Version", "Sec-WebSocket-Protocol"),
)


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
        words: of its path, after the resource.
        given: its parameters.
    """

    http: web.BaseRequest
    namespace: str
    pod: str
    words: list[str]
    given: dict[str, str]


async def forward(
    peers: Peers, asked: CopyRequest, owner: CopyOwner, pod: Pod
) -> web.StreamResponse:
    """Let the agent of a pod's node answer."""
    request, given = asked.http, asked.given
    path = "/".join(
        ["/node/v1alpha1/namespaces", asked.namespace, "pods", asked.pod, COPIES, *asked.words]
    )
    query = f"?{urlencode(given)}" if given else ""
    headers = {OWNER: owner_header(owner)}
    body = b""
    if wants_stream(request):
        headers |= {key: request.headers.get(key, "") for key in _UPGRADE}
    else:
        body = await body_of(request)
    try:
        async with (
            asyncio.timeout(FORWARD_S) as limit,
            peers.request(
                pod.node, pod.host_ip, request.method, path + query, headers, body
            ) as response,
        ):
            if response.status == SWITCHING:
                limit.reschedule(None)
                return await _join(request, response)
            content = await _read(response.content, MAX_ANSWER_BYTES)
            # As it is written here: what the node says, and none of its bytes.
            document = parse(content, most=MAX_ANSWER_VALUES)
            retry = response.headers.get("Retry-After", "")
            retry_after_s = int(retry) if re.fullmatch("[0-9]{1,4}", retry) else 0
            return respond(document, status=response.status, retry_after_s=retry_after_s)
    except TimeoutError:
        raise Refused(503, f"the agent of node {pod.node} does not answer") from None
    except ValueError:
        raise Refused(503, f"the agent of node {pod.node} answers what is not valid") from None
    except PycrictlError as exc:
        raise Refused(503, f"node {pod.node}: {exc.message}") from None


async def _join(request: web.BaseRequest, response: aiohttp.ClientResponse) -> web.StreamResponse:
    downstream, connection = request.transport, response.connection
    if (
        downstream is None
        or connection is None
        or not isinstance(upstream := connection.transport, asyncio.Transport)
    ):
        return Upgraded()
    back = Pipe(downstream)
    fields = [
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Accept", response.headers["Sec-WebSocket-Accept"]),
        ("Sec-WebSocket-Protocol", PIECES_PROTOCOL),
    ]
    assert connection.protocol is not None
    async with joined(request, downstream, upstream, back):
        downstream.write(serialize_response(SWITCHING, "Switching Protocols", fields))
        connection.protocol.set_parser(back, None)  # which hands on what has come by now
        upstream.set_protocol(back)
    return Upgraded()
