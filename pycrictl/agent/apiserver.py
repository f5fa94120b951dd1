"""A client of the API server: few calls, kept connections, watches; its credential may rotate.

``kube.client`` makes one call at a time in a thread. A service asks more than that: many lists at
once, and watches, which the HTTP library that serves can do as well.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp

from pycrictl.agent.api.names import Document
from pycrictl.errors import (
    ConnectError,
    DeadlineExceeded,
    PycrictlError,
    RemoteProtocolError,
    RuntimeFault,
)
from pycrictl.foreign import mapping, parse, text
from pycrictl.kube.client import MAX_ANSWER_BYTES, parse_server, refusal, tls_context
from pycrictl.kube.credential import Credential
from pycrictl.streaming.loop import in_thread
from pycrictl.units import escape, format_duration

TIMEOUT_S: Final = 10.0

REREAD_S: Final = 30.0
"""How old the credential may be that a call is made with. Tokens live for an hour and more, and
are renewed after four fifths of that."""

PAGE: Final = 500
"""How many objects a list is asked for at once."""

MAX_LINE_BYTES: Final = 8 * 1024 * 1024
"""An event of a watch: an object has up to 1.5 MiB."""

SILENT_S: Final = 45
"""How long a connection may be without a sign of the other end: a watch may have none to send."""

_CONNECTIONS: Final = 32
_SLACK_S: Final = 30.0


class Expired(PycrictlError):
    """A watch cannot go on from its resource version; the list has to be asked for again."""


class ApiServer:
    """Asks the API server. All methods raise what ``kube.client.KubeClient`` does.

    Args:
        load: reads the credential, which may have been renewed; a ConfigError if there is none.
        timeout_s: limit of each call, but of watches.
    """

    def __init__(self, load: Callable[[], Credential], *, timeout_s: float = TIMEOUT_S) -> None:
        self._load = load
        self._timeout_s = timeout_s
        self._credential: Credential | None = None
        self._read_at = 0.0
        self._session: aiohttp.ClientSession | None = None
        self._retired: set[asyncio.Task[None]] = set()
        self.calls = 0
        self.failures = 0

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        """Return the object or list at a path."""
        return await self._call("GET", path, query)

    async def post(self, path: str, document: Document) -> Any:
        """Create an object, such as a review; return it as the server has it."""
        return await self._call("POST", path, document=document)

    async def put(self, path: str, document: Document) -> Any:
        """Replace an object, which must still have the resource version that the new one has."""
        return await self._call("PUT", path, document=document)

    async def pages(self, path: str, query: Mapping[str, str]) -> AsyncIterator[Document]:
        """Iterate over a list, page by page."""
        more = {**query, "limit": str(PAGE)}
        while True:
            page = await self.get(path, more)
            if not isinstance(page, dict):
                raise RemoteProtocolError("the API server's list is not one")
            yield page
            if not (follows := text(mapping(page.get("metadata")).get("continue"))):
                return
            more["continue"] = follows

    async def watch(self, path: str, query: Mapping[str, str]) -> AsyncIterator[Document]:
        """Iterate over the events of a watch, until the server ends it.

        Args:
            path: of the list.
            query: with ``resourceVersion`` and ``timeoutSeconds``.

        Raises:
            Expired: it cannot begin, or go on, from there.
        """
        silence_s = float(query["timeoutSeconds"]) + _SLACK_S
        try:
            async with self._response("GET", path, {**query, "watch": "true"}) as response:
                async for line in lines(response.content, MAX_LINE_BYTES, silence_s):
                    event = _decoded(line)
                    if not isinstance(event, dict) or not isinstance(event.get("object"), dict):
                        raise RemoteProtocolError("the API server's watch sent no event")
                    if event.get("type") == "ERROR":
                        raise _of_status(event["object"])
                    yield event
        except TimeoutError:
            raise self._too_late() from None

    async def close(self) -> None:
        """End all connections."""
        for task in self._retired:
            task.cancel()
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        document: Document | None = None,
    ) -> Any:
        try:
            async with asyncio.timeout(self._timeout_s):
                async with self._response(method, path, query, document) as response:
                    content = await _content(response)
        except TimeoutError:
            raise self._too_late() from None
        return _decoded(content)

    def _too_late(self) -> DeadlineExceeded:
        self.failures += 1
        limit = format_duration(self._timeout_s)
        return DeadlineExceeded(f"the API server did not answer within {limit}")

    @asynccontextmanager
    async def _response(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        document: Document | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Make a request; the response is one of success."""
        credential, session = await self._ready()
        url = parse_server(credential.server)
        headers = {"Accept": "application/json", "User-Agent": "pycrictl-agent"}
        if credential.token:
            headers["Authorization"] = f"Bearer {credential.token}"
        self.calls += 1
        try:
            async with session.request(
                method,
                f"{url.scheme}://{url.netloc}{url.path.rstrip('/')}{path}",
                params=query,
                json=document,
                headers=headers,
                allow_redirects=False,
                server_hostname=credential.server_name or None,
            ) as response:
                if response.status >= 300:
                    self.failures += 1
                    if response.status == 401:
                        self._read_at = 0.0  # it may have been renewed
                    content = await _content(response)
                    if response.status == 410:
                        raise Expired("the resource version is too old")
                    raise refusal(response.status, response.reason or "", content)
                try:
                    yield response
                finally:
                    abandon(response)
        except (aiohttp.ClientError, OSError) as exc:
            if isinstance(exc, TimeoutError):
                raise
            self.failures += 1
            raise ConnectError(
                f"cannot reach the API server at {escape(credential.server)}: {_reason(exc)}"
            ) from None

    async def _ready(self) -> tuple[Credential, aiohttp.ClientSession]:
        """Return the credential and the connections that are made with it."""
        now = time.monotonic()
        if self._credential is None or now - self._read_at >= REREAD_S:
            try:
                fresh = await in_thread(self._load)  # it may ask a program (kubeconfig's exec)
                if not _is_same_connection(fresh, self._credential):
                    tls_context(fresh)
            except PycrictlError:
                if self._credential is None:
                    raise
                fresh = self._credential  # it is being replaced at this moment
            self._read_at = now
            if not _is_same_connection(fresh, self._credential):
                self._retire()
            self._credential = fresh
        if self._session is None:
            connector = aiohttp.TCPConnector(
                ssl=tls_context(self._credential),
                limit=_CONNECTIONS,
                keepalive_timeout=60,
                socket_factory=_attentive,
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._timeout_s),
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("Accept-Encoding",),
            )
        return self._credential, self._session

    def _retire(self) -> None:
        """Let calls under way end on the connections that they began on."""
        session, self._session = self._session, None
        if session is None:
            return

        async def end() -> None:
            await asyncio.sleep(self._timeout_s)
            await session.close()

        task = asyncio.create_task(end())
        self._retired.add(task)
        task.add_done_callback(self._retired.discard)


def _attentive(address: aiohttp.AddrInfoType) -> socket.socket:
    """Return a socket that fails if the other end is silent for ``SILENT_S`` (tcp(7))."""
    made = socket.socket(*address[:3])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
        made.setsockopt(socket.IPPROTO_TCP, option, SILENT_S // 3)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_S * 1000)
    return made


def abandon(response: aiohttp.ClientResponse) -> None:
    """End the connection of a response that has not been read to its end.

    TLS is not closed in good order, for which the peer would have to answer.
    """
    connection = response.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()


async def lines(
    stream: aiohttp.StreamReader, max_bytes: int, silence_s: float
) -> AsyncIterator[bytes]:
    """Iterate over the lines of a body, without their ends; blank ones are left out.

    Args:
        stream: the body.
        max_bytes: of a line.
        silence_s: the longest time without a byte.

    Raises:
        DeadlineExceeded, RemoteProtocolError: it breaks one of these limits.
        ConnectError: the connection broke off.
    """
    rest = bytearray()
    while True:
        try:
            async with asyncio.timeout(silence_s):
                data = await stream.readany()
        except TimeoutError:
            raise DeadlineExceeded("nothing has come for too long") from None
        except (aiohttp.ClientError, OSError) as exc:
            raise ConnectError(f"the connection broke off: {_reason(exc)}") from None
        if not data:
            if rest.strip():
                yield bytes(rest)
            return
        rest += data
        *whole, tail = rest.split(b"\n")
        rest = bytearray(tail)
        if len(rest) > max_bytes:
            raise RemoteProtocolError("a line is too long")
        for line in whole:
            if line.strip():
                yield bytes(line)


def _is_same_connection(one: Credential, other: Credential | None) -> bool:
    """Return whether connections made with one credential serve the other."""
    return other is not None and all(
        getattr(one, key) == getattr(other, key)
        for key in ("server", "authority", "certificate", "key", "is_unverified")
    )


async def _content(response: aiohttp.ClientResponse) -> bytes:
    content = bytearray()
    async for data in response.content.iter_any():
        content += data
        if len(content) > MAX_ANSWER_BYTES:
            raise RemoteProtocolError("the API server's answer is too long")
    return bytes(content)


def _decoded(content: bytes) -> Any:
    try:
        return parse(content)
    except ValueError:
        raise RemoteProtocolError("the API server's answer is not valid JSON") from None


def _of_status(status: Document) -> PycrictlError:
    if status.get("code") == 410:
        return Expired("the resource version is too old")
    return RuntimeFault(escape(text(status.get("message"), 300) or "the watch failed"))


def _reason(exc: Exception) -> str:
    if isinstance(exc, aiohttp.ClientConnectorCertificateError):
        inner = exc.certificate_error
        if isinstance(inner, ssl.SSLCertVerificationError):
            return escape(inner.verify_message)
    inner_os = getattr(exc, "os_error", None)
    reason = getattr(inner_os or exc, "strerror", None) or str(exc) or type(exc).__name__
    return escape(str(reason).lower()[:300])
