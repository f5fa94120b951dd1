"""The agent's client of the API server, with aiohttp: calls, paged lists, watches."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp

from pycrictl.base.errors import PycrictlError, RemoteProtocolError, RuntimeFault
from pycrictl.base.foreign import mapping, parse, text
from pycrictl.base.units import escape
from pycrictl.kube.apiclient import (
    MAX_ANSWER_BYTES,
    ApiServer,
    Expired,
    headers_for,
    late,
    read_document,
)
from pycrictl.kube.credential import Credential
from pycrictl.streams.loop import in_thread

TIMEOUT_S: Final = 10.0

PAGE: Final = 500
MAX_LINE_BYTES: Final = 8 * 1024 * 1024
"""The limit for one event of a watch; an object has up to 1.5 MiB."""

SILENT_S: Final = 45
"""How long TCP may receive nothing from the server, keepalives included; watches may be idle."""

_SLACK_S: Final = 30.0
_TEXT_LIMIT: Final = 300


class AsyncApiClient:
    """Calls to the API server; errors as in ``ApiServer``, whose credential ``load`` reads."""

    def __init__(self, load: Callable[[], Credential]) -> None:
        self.calls = 0
        self.failures = 0
        self._server = ApiServer(load)
        self._session: aiohttp.ClientSession | None = None

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        return await self._call("GET", f"{path}?{urlencode(query)}" if query else path)

    async def post(self, path: str, document: Mapping[str, Any]) -> Any:
        return await self._call("POST", path, document)

    async def put(self, path: str, document: Mapping[str, Any]) -> Any:
        return await self._call("PUT", path, document)

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
            query: with ``resourceVersion`` and ``timeoutSeconds``.
        """
        target = f"{path}?{urlencode({**query, 'watch': 'true'})}"
        silence_s = float(query["timeoutSeconds"]) + _SLACK_S
        limit = aiohttp.ClientTimeout(sock_connect=TIMEOUT_S, sock_read=silence_s)
        rest = b""
        async with self._response("GET", target, None, limit) as response:
            async for data in response.content.iter_any():
                *lines, rest = (rest + data).split(b"\n")
                if len(rest) > MAX_LINE_BYTES:
                    raise RemoteProtocolError("a line of the API server's watch is too long")
                for line in filter(bytes.strip, lines):
                    yield _event(line)

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
        self.calls += 1
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
                server_hostname=credential.server_name or None,
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
            self.failures += 1
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


def abandon(response: aiohttp.ClientResponse) -> None:
    """Abort the connection of a response that was not read to its end, without a TLS close."""
    connection = response.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()


async def read_body(response: aiohttp.ClientResponse, most: int) -> bytearray:
    """Return the body of a response; one that is longer than ``most`` bytes is cut off there."""
    content = bytearray()
    async for data in response.content.iter_any():
        content += data
        if len(content) > most:
            break
    return content


def _event(line: bytes) -> dict[str, Any]:
    try:
        event = parse(line)
    except ValueError:
        event = None
    if not isinstance(event, dict) or not isinstance(event.get("object"), dict):
        raise RemoteProtocolError("the API server's watch sent no event")
    if event.get("type") != "ERROR":
        return event
    status = event["object"]
    if status.get("code") == 410:
        raise Expired("the resource version is too old")
    raise RuntimeFault(escape(text(status.get("message"), _TEXT_LIMIT) or "the watch failed"))


def _os_error_of(exc: Exception) -> OSError:
    if isinstance(exc, aiohttp.ClientConnectorCertificateError):
        found: Exception = exc.certificate_error
    else:
        found = exc.os_error if isinstance(exc, aiohttp.ClientConnectorError) else exc
    return found if isinstance(found, OSError) else OSError(str(exc))


def _noticing_silence(address: aiohttp.AddrInfoType) -> socket.socket:
    """Return a socket that fails if the other end is silent for ``SILENT_S`` (tcp(7))."""
    found = socket.socket(*address[:3])
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
        found.setsockopt(socket.IPPROTO_TCP, option, SILENT_S // 3)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_S * 1000)
    return found
