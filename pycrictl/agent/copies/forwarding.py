"""Requests about copies of pods of other nodes, handed on to the agents there.

The user goes with them in a header of its own, which counts only beside the token of an agent.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final
from urllib.parse import urlencode

import aiohttp
from aiohttp import WSMsgType, web

from pycrictl.agent.api.names import COPIES
from pycrictl.agent.copies.refusals import Refused
from pycrictl.agent.copies.session import Owner
from pycrictl.agent.copies.stream import wants_stream
from pycrictl.agent.peers import Peers
from pycrictl.copy.archive.pieces import MAX_MESSAGE_BYTES, PROTOCOL
from pycrictl.errors import PycrictlError

OWNER: Final = "X-Pycrictl-Owner"
FORWARD_S: Final = 55.0
"""How long the other agent may take; the API server gives a request 60 s."""

MAX_ANSWER_BYTES: Final = 1024 * 1024

_MAX_OWNER_CHARS: Final = 8192


def owner_header(owner: Owner) -> str:
    """Return a user as the header has it."""
    return base64.b64encode(json.dumps([owner.name, owner.uid]).encode()).decode()


def owner_of(request: web.BaseRequest) -> Owner:
    """Return the user for whom another agent asks.

    Raises:
        Refused: it names none.
    """
    text = request.headers.get(OWNER, "")
    with suppress(ValueError):
        name, uid = json.loads(base64.b64decode(text[:_MAX_OWNER_CHARS], validate=True))
        if isinstance(name, str) and name and isinstance(uid, str):
            return Owner(name, uid)
    raise Refused(400, "the other agent names no user")


class Forwarding:
    """Hands requests on.

    Args:
        peers: the other agents.
    """

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def answer(
        self,
        request: web.BaseRequest,
        owner: Owner,
        node: str,
        host_ip: str,
        pod: tuple[str, str],
        words: list[str],
        given: dict[str, str],
    ) -> web.StreamResponse:
        """Let the agent of a pod's node answer.

        Args:
            request: to hand on.
            owner: who asks.
            node, host_ip: the node, and its address if that is known.
            pod: its namespace and name.
            words: of the path, after the resource.
            given: its parameters.

        Raises:
            Refused: it does not answer.
        """
        namespace, name = pod
        path = "/".join(["/node/v1alpha1/namespaces", namespace, "pods", name, COPIES, *words])
        query = f"?{urlencode(given)}" if given else ""
        headers = {OWNER: owner_header(owner)}
        try:
            if wants_stream(request):
                return await self._stream(request, node, host_ip, path + query, headers)
            body = await request.read()
            async with (
                asyncio.timeout(FORWARD_S),
                self._peers.request(
                    node, host_ip, request.method, path + query, headers, body
                ) as response,
            ):
                content = await response.content.read(MAX_ANSWER_BYTES)
                while len(content) < MAX_ANSWER_BYTES and (
                    more := await response.content.readany()
                ):
                    content += more
                answer = web.Response(body=content, status=response.status)
                answer.content_type = "application/json"
                if retry := response.headers.get("Retry-After"):
                    answer.headers["Retry-After"] = retry
                return answer
        except TimeoutError:
            raise Refused(503, f"the agent of node {node} does not answer") from None
        except PycrictlError as exc:
            raise Refused(503, f"node {node}: {exc.message}") from None

    async def _stream(
        self,
        request: web.BaseRequest,
        node: str,
        host_ip: str,
        path: str,
        headers: dict[str, str],
    ) -> web.StreamResponse:
        try:
            async with self._peers.websocket(
                node, host_ip, path, headers, PROTOCOL, MAX_MESSAGE_BYTES + 1
            ) as upstream:
                downstream = web.WebSocketResponse(
                    protocols=[PROTOCOL],
                    compress=False,
                    decode_text=False,
                    max_msg_size=MAX_MESSAGE_BYTES + 1,
                )
                await downstream.prepare(request)
                await _join(downstream, upstream)
                return downstream
        except aiohttp.WSServerHandshakeError as exc:
            if exc.status in (404, 409, 410, 422, 429):
                return await self._refusal(request, node, host_ip, path, headers, exc.status)
            raise Refused(503, f"the agent of node {node} refuses the connection") from None

    async def _refusal(
        self,
        request: web.BaseRequest,
        node: str,
        host_ip: str,
        path: str,
        headers: dict[str, str],
        status: int,
    ) -> web.StreamResponse:
        """Return why an upgrade was refused, which the library does not keep."""
        plain = path.partition("/data")[0]
        async with self._peers.request(node, host_ip, "GET", plain, headers, b"") as response:
            content = await response.content.read(MAX_ANSWER_BYTES)
        found: object = None
        with suppress(ValueError):
            found = json.loads(content)
        message = "the copy cannot go on"
        if isinstance(found, dict):
            inner = found.get("status")
            message = str(
                found.get("message")
                or (inner.get("message") if isinstance(inner, dict) else "")
                or message
            )
        raise Refused(status, message)


async def _join(
    downstream: web.WebSocketResponse, upstream: aiohttp.ClientWebSocketResponse
) -> None:
    """Hand messages on in both directions until one end closes."""

    async def pump(
        receive: Callable[[], Awaitable[aiohttp.WSMessage]],
        send: Callable[[bytes], Awaitable[None]],
    ) -> None:
        while (message := await receive()).type is WSMsgType.BINARY:
            await send(message.data)

    tasks = [
        asyncio.create_task(pump(downstream.receive, upstream.send_bytes)),
        asyncio.create_task(pump(upstream.receive, downstream.send_bytes)),
    ]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with suppress(ConnectionError):
            await upstream.close()
        with suppress(ConnectionError):
            await downstream.close()
