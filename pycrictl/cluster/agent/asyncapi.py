"""The agent's client of the API server: calls, lists, watches, and lists that follow changes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlencode

import aiohttp
from aiohttp import web

from pycrictl.base.errors import PycrictlError, RemoteProtocolError
from pycrictl.base.foreign import mapping, mappings, text
from pycrictl.base.servicelog import Log
from pycrictl.cluster.agent.api.names import Document
from pycrictl.kube.apiclient import (
    MAX_ANSWER_BYTES,
    ApiServer,
    Expired,
    events_of,
    headers_for,
    late,
    read_document,
)
from pycrictl.kube.credential import Credential
from pycrictl.streams.loop import end_tasks, in_thread

TIMEOUT_S: Final = 10.0

PAGE: Final = 500

SILENT_S: Final = 45
"""How long TCP may receive nothing from the server, keepalives included; watches may be idle."""

WATCH_S: Final = 300
FIRST_BACKOFF_S: Final = 1.0
LONGEST_BACKOFF_S: Final = 30.0

_SLACK_S: Final = 30.0

T = TypeVar("T")


class AsyncApiClient:
    """Calls to the API server; errors as in ``ApiServer``. ``load`` reads the credential."""

    def __init__(self, load: Callable[[], Credential], *, reread_s: float = 30.0) -> None:
        self._server = ApiServer(load, reread_s=reread_s)
        self._session: aiohttp.ClientSession | None = None

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        return await self._call("GET", f"{path}?{urlencode(query)}" if query else path)

    async def post(self, path: str, document: Mapping[str, Any]) -> Any:
        return await self._call("POST", path, document)

    async def pages(self, path: str, query: Mapping[str, str]) -> AsyncIterator[dict[str, Any]]:
        more = {**query, "limit": str(PAGE)}
        while True:
            page = await self.get(path, more)
            if not isinstance(page, dict):
                raise RemoteProtocolError("the API server did not return a list")
            yield page
            if not (follows := text(mapping(page.get("metadata")).get("continue"))):
                return
            more["continue"] = follows

    async def watch(self, path: str, query: Mapping[str, str]) -> AsyncIterator[dict[str, Any]]:
        """Iterate over the events of a watch, until the server ends it.

        Args:
            query: must have ``resourceVersion`` and ``timeoutSeconds``.
        """
        target = f"{path}?{urlencode({**query, 'watch': 'true'})}"
        silence_s = float(query["timeoutSeconds"]) + _SLACK_S
        limit = aiohttp.ClientTimeout(sock_connect=TIMEOUT_S, sock_read=silence_s)
        async with self._response("GET", target, None, limit) as response:
            async for event in events_of(response.content.iter_any()):
                yield event

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _call(
        self, method: str, target: str, document: Mapping[str, Any] | None = None
    ) -> Any:
        limit = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with self._response(method, target, document, limit) as response:
            return read_document(await read_body(response, MAX_ANSWER_BYTES))

    @asynccontextmanager
    async def _response(
        self,
        method: str,
        target: str,
        document: Mapping[str, Any] | None,
        limit: aiohttp.ClientTimeout,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield a successful response; errors while it is read are translated as well."""
        try:
            server = self._server
            current = server.current
            credential, context = await in_thread(current) if server.is_due else current()
            async with self._connections().request(
                method,
                credential.server.rstrip("/") + target,
                data=None if document is None else json.dumps(document).encode(),
                headers=headers_for(credential, method, has_body=document is not None),
                ssl=context,
                allow_redirects=False,
                timeout=limit,
            ) as response:
                if response.status >= 300:
                    content = await read_body(response, MAX_ANSWER_BYTES)
                    raise server.refusal(response.status, response.reason or "", bytes(content))
                try:
                    yield response
                finally:
                    abandon(response)
        except (TimeoutError, aiohttp.ClientError, OSError, PycrictlError) as exc:
            if isinstance(exc, PycrictlError):
                raise
            if isinstance(exc, TimeoutError):
                raise late(TIMEOUT_S) from None
            raise server.unreached(_os_error_of(exc)) from None

    def _connections(self) -> aiohttp.ClientSession:
        if self._session is None:
            # A connection is used again only with the TLS settings that it was opened with.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, socket_factory=_noticing_silence),
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("Accept-Encoding",),
            )
        return self._session


async def list_all(
    api: AsyncApiClient, path: str, query: Mapping[str, str], parse: Callable[[Document], T | None]
) -> tuple[dict[str, T], str]:
    """Return the objects of a list by UID, and its resource version.

    ``parse`` returns None for an object to leave out.
    """
    parsed: dict[str, T] = {}
    version = ""
    async for page in api.pages(path, query):
        for document in mappings(page.get("items")):
            if (item := parse(document)) is not None:
                parsed[_uid(document)] = item
        version = text(mapping(page.get("metadata")).get("resourceVersion"))
    return parsed, version


class Reflector(Generic[T]):
    """Keeps a list up to date by a watch, like client-go's reflectors.

    After a failure it keeps the old items, and lists again after a pause.

    Args:
        path: the API path of the list.
        parse: returns None for an object to leave out.

    Attributes:
        items: the objects by UID.
        error: why the list could not be refreshed the last time; None if it could.
    """

    def __init__(
        self,
        api: AsyncApiClient,
        path: str,
        query: Mapping[str, str],
        parse: Callable[[Document], T | None],
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.items: dict[str, T] = {}
        self.error: PycrictlError | None = None
        self.task: asyncio.Task[None] | None = None
        self._api = api
        self._path = path
        self._query = query
        self._parse = parse
        self._on_change = on_change
        self._failed_at = 0.0
        self._was_tried = asyncio.Event()
        self._log = Log(__name__)

    def start(self) -> None:
        if self.task is None:
            self._was_tried.clear()
            self.task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End the watch; ``items`` is kept, but no longer updated."""
        task, self.task = self.task, None
        if task is not None:
            await end_tasks([task])

    @property
    def failing_s(self) -> float:
        return time.monotonic() - self._failed_at if self.error is not None else 0.0

    async def ready(self, timeout_s: float) -> None:
        """Wait for the first attempt to list; raise the last error if there are no items."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._was_tried.wait()
        if self.error is not None and not self.items:
            raise self.error

    async def _run(self) -> None:
        backoff_s = FIRST_BACKOFF_S
        while True:
            try:
                self.items, version = await list_all(
                    self._api, self._path, self._query, self._parse
                )
                self.error = None
                backoff_s = FIRST_BACKOFF_S
                self._changed()
                while version:
                    version = await self._watch(version)
            except Expired:
                continue
            except PycrictlError as exc:
                if self.error is None:
                    self._failed_at = time.monotonic()
                    self._log.warning("no_watch", path=self._path, error=exc.message)
                self.error = exc
                self._changed()
            await asyncio.sleep(backoff_s * random.uniform(0.8, 1.2))
            backoff_s = min(2 * backoff_s, LONGEST_BACKOFF_S)

    async def _watch(self, version: str) -> str:
        """Follow one watch to its end; return the version where the next one resumes."""
        query = {
            **self._query,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(random.randint(WATCH_S, 2 * WATCH_S)),
        }
        begun = asyncio.get_running_loop().time()
        async for event in self._api.watch(self._path, query):
            document = event["object"]
            version = text(mapping(document.get("metadata")).get("resourceVersion")) or version
            if event.get("type") == "BOOKMARK":
                continue
            item = self._parse(document) if event.get("type") != "DELETED" else None
            if item is None:
                self.items.pop(_uid(document), None)
            else:
                self.items[_uid(document)] = item
            self._changed()
        if asyncio.get_running_loop().time() - begun < FIRST_BACKOFF_S:
            await asyncio.sleep(FIRST_BACKOFF_S)  # the server ends watches at once
        return version

    def _changed(self) -> None:
        self._was_tried.set()
        self._on_change()


def path_of_pods(namespace: str = "") -> str:
    """Return the path of the list of a namespace's pods; without a namespace, of all pods."""
    return f"/api/v1/namespaces/{namespace}/pods" if namespace else "/api/v1/pods"


def _uid(document: Document) -> str:
    fields = mapping(document.get("metadata"))
    return text(fields.get("uid")) or f"{fields.get('namespace', '')}/{fields.get('name', '')}"


def abandon(response: aiohttp.ClientResponse) -> None:
    """Abort the connection of a response that was not read to its end, without a TLS close."""
    connection = response.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()


async def read_body(message: aiohttp.ClientResponse | web.BaseRequest, most: int) -> bytearray:
    """Return the body of a message; stop reading once it is longer than ``most`` bytes."""
    content = bytearray()
    async for data in message.content.iter_any():
        content += data
        if len(content) > most:
            break
    return content


def _os_error_of(exc: Exception) -> OSError:
    if isinstance(exc, aiohttp.ClientConnectorCertificateError):
        cause: Exception = exc.certificate_error
    else:
        cause = exc.os_error if isinstance(exc, aiohttp.ClientConnectorError) else exc
    return cause if isinstance(cause, OSError) else OSError(str(exc))


def _noticing_silence(address: aiohttp.AddrInfoType) -> socket.socket:
    """Return a socket that fails if the other end is silent for ``SILENT_S`` (tcp(7))."""
    connection = socket.socket(*address[:3])
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
        connection.setsockopt(socket.IPPROTO_TCP, option, SILENT_S // 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_S * 1000)
    return connection
