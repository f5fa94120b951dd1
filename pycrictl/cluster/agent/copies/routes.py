"""Requests about copies: authorizes users, and answers here or forwards to the agent of the node.

The user's name is sent to the other agent in a header, which counts only with an agent's token.
Bytes go over WebSockets of the event loop: to a thread here, or to another agent. The library's
server takes frames without a mask, too, which other servers refuse (RFC 6455, 5.1).
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlencode

import aiohttp
from aiohttp import WSMsgType, web

from pycrictl.base.errors import PycrictlError, StreamError
from pycrictl.base.foreign import parse
from pycrictl.cluster.agent.access import Access, User
from pycrictl.cluster.agent.api.answers import respond
from pycrictl.cluster.agent.api.names import COPIES, DEBUGGING_OFF, Refusal
from pycrictl.cluster.agent.cluster import Cluster
from pycrictl.cluster.agent.copies.node_copies import (
    MAX_BODY_BYTES,
    PATIENCE_S,
    Audit,
    CopyEnded,
    CopyOwner,
    CopySpec,
    NodeCopies,
    NodeCopy,
    Refused,
    parse_request,
)
from pycrictl.cluster.agent.peers import Peers
from pycrictl.copy.service.life import Event, State
from pycrictl.copy.service.slots import IDLE_S
from pycrictl.copy.transfer.messages import MAX_PIECE_MESSAGE_BYTES, PIECES_PROTOCOL
from pycrictl.kube.pods import Pod
from pycrictl.streams.wire.websocket import ChannelMessage

MESSAGE_BYTES: Final = MAX_PIECE_MESSAGE_BYTES + 1
"""aiohttp refuses messages of this size and larger ones."""

OWNER: Final = "X-Pycrictl-Owner"
FORWARD_S: Final = 55.0
"""How long the other agent may take; the API server gives a request 60 s."""

MAX_ANSWER_BYTES: Final = 1024 * 1024
MAX_ANSWER_VALUES: Final = 10_000

_MAX_OWNER_CHARS: Final = 8192
_GOODBYE_S: Final = 1.0

T = TypeVar("T")
Socket = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


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
        copies: the copies of this node; None if it offers none.
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
                spec = CopySpec()
                with suppress(Refused):
                    _, spec = parse_request(await _body_of(asked.http))
                what = owner, f"{namespace}/{name}", spec
                self.audit(CopyEnded(*what, State.REFUSED, spec.size_bytes, error=exc.message))
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
            if self.copies is None:
                why = f"the agent of node {self.node} offers no copies: it has no --spool-dir"
                raise Refused(501, why)
            return await answer_here(self.copies, asked, owner, pod)
        except Refused as exc:
            exc.name = asked.pod
            raise


async def answer_here(
    copies: NodeCopies, asked: CopyRequest, owner: CopyOwner, pod: Pod
) -> web.StreamResponse:
    """Answer a request of a user who may make copies of this pod's containers."""
    match asked.http.method, asked.words:
        case "POST", []:
            copy = await copies.create(owner, pod, await _body_of(asked.http))
            return respond(copy.document, status=201)
        case "GET", [name]:
            copy = copies.find(name, owner, pod)
        case "POST", [name, "commit"]:
            copy = copies.find(name, owner, pod)
            await copies.finish(copy)
        case "POST", [name, "abandon"]:
            copy = copies.find(name, owner, pod)
            await copies.give_up(copy, Event.ABANDONED, "it was given up", limit_s=PATIENCE_S)
        case "GET", [name, "data"]:
            copy, offset = copies.find(name, owner, pod), asked.given.get("offset", "0")
            if not re.fullmatch("[0-9]{1,19}", offset):
                raise Refused(400, "offset is not a number")
            copies.check_moving(copy)
            return await _move(copies, copy, int(offset), asked.http)
        case _, [] | [_] | [_, "commit" | "abandon" | "data"]:
            raise Refused(405, f"{asked.http.method[:20]} is not served here")
        case _:
            raise Refused(404, "the server could not find the requested resource")
    return respond(copy.document)


async def _move(
    copies: NodeCopies, copy: NodeCopy, offset: int, request: web.BaseRequest
) -> web.StreamResponse:
    """Upgrade the connection of a request, and continue a copy over it until that is over."""
    if (transport := request.transport) is None:
        raise ConnectionResetError("the client has disconnected")
    socket = await _accept(request)
    link = StreamLink(socket, transport)
    try:
        await copies.attach(copy, link, offset)
        await link.closed.wait()
    finally:
        link.abort()
    return socket


class StreamLink:
    """A ``Link`` to a client over a WebSocket, for one thread.

    Attributes:
        closed: set when the thread has closed it, or has lost it.
    """

    deadline: float | None = None

    def __init__(
        self, socket: web.WebSocketResponse, transport: asyncio.Transport, idle_s: float = IDLE_S
    ) -> None:
        self.closed = asyncio.Event()
        self._socket = socket
        self._transport = transport
        self._idle_s = idle_s
        self._loop = asyncio.get_running_loop()
        self._arriving: Future[aiohttp.WSMessage] | None = None

    def receive(self) -> ChannelMessage | None:
        message = self._result(self._next())
        self._arriving = None
        if message.type is WSMsgType.BINARY and message.data:
            return ChannelMessage(message.data[0], memoryview(message.data)[1:])
        return None  # closed, or something else: over in any case

    def can_receive(self) -> bool:
        return self._next().done()

    def send(self, kind: int, head: bytes | memoryview, data: bytes | memoryview = b"") -> None:
        message = b"".join((bytes((kind,)), head, data))
        self._result(self._call(self._socket.send_bytes(message)))

    def close(self) -> None:
        with suppress(StreamError):
            self._result(self._call(self._socket.close()))
        self._loop.call_soon_threadsafe(self.closed.set)

    def interrupt(self) -> None:
        self._loop.call_soon_threadsafe(self.abort)

    def abort(self) -> None:
        if not self._transport.is_closing():  # after a close, Python 3.11.2 cannot abort TLS
            self._transport.abort()

    def _next(self) -> Future[aiohttp.WSMessage]:
        if self._arriving is None:
            self._arriving = self._call(self._socket.receive())
        return self._arriving

    def _call(self, action: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(action, self._loop)

    def _result(self, future: Future[T]) -> T:
        try:
            return future.result(self._idle_s)
        except (OSError, RuntimeError, aiohttp.ClientError) as exc:  # silence is an OSError
            future.cancel()
            raise StreamError(f"the connection to the client broke: {exc!r}") from exc


async def _accept(request: web.BaseRequest) -> web.WebSocketResponse:
    """Upgrade the connection of a request."""
    socket = web.WebSocketResponse(
        protocols=(PIECES_PROTOCOL,),
        compress=False,
        max_msg_size=MESSAGE_BYTES,
        timeout=_GOODBYE_S,
    )
    if socket.can_prepare(request).protocol != PIECES_PROTOCOL:
        raise Refused(400, f"the bytes of a copy go over a WebSocket with {PIECES_PROTOCOL}")
    await socket.prepare(request)
    return socket


def _owner_of(request: web.BaseRequest) -> CopyOwner:
    text = request.headers.get(OWNER, "")[:_MAX_OWNER_CHARS]
    with suppress(ValueError):
        match parse(base64.b64decode(text, validate=True)):
            case [str(name), str(uid)] if name:
                return CopyOwner(name, uid)
    raise Refused(400, "the other agent names no user")


async def _body_of(request: web.BaseRequest) -> bytes:
    return await _read(request.content, MAX_BODY_BYTES + 1)


async def _read(stream: aiohttp.StreamReader, most: int) -> bytes:
    content = await stream.read(most)
    while len(content) < most and (more := await stream.readany()):
        content += more
    return content


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
                        downstream = await _accept(request)
                        await _relay(downstream, upstream)
                        return downstream
                # The library hides why the other agent refused: a plain request is refused, too.
            body = await _body_of(request)
            async with peers.request(pod.node, request.method, path, headers, body) as response:
                content = await _read(response.content, MAX_ANSWER_BYTES)
                # Encoded anew: the node's content is forwarded, but none of its bytes.
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


async def _relay(first: Socket, second: Socket) -> None:
    """Relay messages both ways until one of the connections ends; then close both."""

    async def pass_on(source: Socket, target: Socket) -> None:
        with suppress(ConnectionError, aiohttp.ClientError):
            async for message in source:
                if message.type is WSMsgType.BINARY:
                    await target.send_bytes(message.data)
        await target.close()

    await asyncio.gather(pass_on(first, second), pass_on(second, first))
