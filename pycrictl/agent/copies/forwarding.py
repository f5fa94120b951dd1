"""Forwards requests about copies: to agents of other nodes, or as upgraded connections.

The user's name is sent to the other agent in a header, which counts only with an agent's token.
The bytes of an upgraded connection are relayed both ways: to the other agent, or to a thread here,
which reads and writes the other end of a socket pair as any client does (``copy.transfer.link``).
The library's own WebSocket takes twice the time.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import Final, NamedTuple
from urllib.parse import urlencode

import aiohttp
from aiohttp import web

from pycrictl.agent.api.answers import respond
from pycrictl.agent.api.names import COPIES
from pycrictl.agent.copies.session import CopyOwner, Refused
from pycrictl.agent.peers import Peers
from pycrictl.copy.rules.quotas import IDLE_S
from pycrictl.copy.transfer.link import SocketLink
from pycrictl.copy.transfer.messages import MAX_PIECE_MESSAGE_BYTES, PIECES_PROTOCOL
from pycrictl.errors import PycrictlError
from pycrictl.foreign import parse
from pycrictl.kube.pods import Pod
from pycrictl.wire.http1 import serialize_response
from pycrictl.wire.upgrade import accepted

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
_GOODBYE_S: Final = 5.0
_BUFFER_BYTES: Final = 256 * 1024


class Upgraded(web.StreamResponse):
    """A placeholder for a response that the library does not have to send."""

    async def prepare(self, request: web.BaseRequest) -> None:
        """Do nothing."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Do nothing."""


class Pipe(asyncio.BufferedProtocol):
    """Relays the bytes of a connection to another one, as fast as that accepts them.

    Args:
        target: the other connection, which ends with this one.

    Attributes:
        over: set when this connection has ended.
    """

    def __init__(self, target: asyncio.Transport) -> None:
        self.over = asyncio.Event()
        self._target = target
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))

    def feed_data(self, data: bytes | memoryview) -> tuple[bool, bytes]:
        """Relay received bytes; return the result that the library expects of a parser."""
        if not self._target.is_closing():
            self._target.write(bytes(data))
        return False, b""

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.feed_data(self._buffer[:nbytes])

    def pause_writing(self) -> None:
        self._target.pause_reading()

    def resume_writing(self) -> None:
        self._target.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the other connection as well, once all bytes for it are sent."""
        if not self._target.is_closing():  # closed twice, Python 3.11.2 could not abort TLS
            self._target.close()
        self.over.set()


@asynccontextmanager
async def joined(
    request: web.BaseRequest, downstream: asyncio.Transport, upstream: asyncio.Transport, back: Pipe
) -> AsyncIterator[None]:
    """Relay a client's bytes until one of the connections ends; ``back`` relays the other way."""
    library = request.protocol
    library.keep_alive(False)
    forth = Pipe(upstream)
    downstream.set_protocol(forth)
    try:
        yield
        await back.over.wait()  # it also ends when ``forth`` does
        with suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE_S):
                await forth.over.wait()
    finally:
        upstream.abort()
        downstream.abort()
        library.connection_lost(None)


def wants_stream(request: web.BaseRequest) -> bool:
    return "upgrade" in request.headers.get("Connection", "").lower()


async def serve_link(
    request: web.BaseRequest, connect: Callable[[SocketLink], Awaitable[None]]
) -> web.StreamResponse:
    """Upgrade the connection of a request, unless the client has disconnected.

    Args:
        connect: called with the thread's end of the connection, which the thread closes.
    """
    answer = accepted(request.headers.items(), PIECES_PROTOCOL)
    if answer is None:
        raise Refused(400, f"the bytes of a copy go over a WebSocket with {PIECES_PROTOCOL}")
    downstream = request.transport
    if downstream is None or downstream.is_closing():
        return Upgraded()
    here, there = socket.socketpair()
    link = SocketLink(there, idle_s=IDLE_S, max_bytes=MAX_PIECE_MESSAGE_BYTES)
    back = Pipe(downstream)
    loop = asyncio.get_running_loop()
    with ExitStack() as until_connected:
        until_connected.callback(link.abort)
        upstream, _ = await loop.create_unix_connection(lambda: back, sock=here)
        async with joined(request, downstream, upstream, back):
            downstream.write(answer)
            await connect(link)
            until_connected.pop_all()  # a thread owns it
    return Upgraded()


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
        connection.protocol.set_parser(back, None)  # relays the bytes received by now
        upstream.set_protocol(back)
    return Upgraded()
