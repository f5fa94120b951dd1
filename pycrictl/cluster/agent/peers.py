"""Finds and queries other agents, within limits of number and time."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ipaddress
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp

from pycrictl.base import foreign
from pycrictl.base.errors import (
    ConfigError,
    ConnectError,
    DeadlineExceeded,
    Denied,
    NotFound,
    PycrictlError,
    RemoteProtocolError,
    RuntimeFault,
    Unavailable,
    Unimplemented,
    reason_of,
)
from pycrictl.base.foreign import count, mappings, parsed, text, texts
from pycrictl.base.tls import client_context
from pycrictl.base.units import TEXT_LIMIT, escape
from pycrictl.cluster.agent.api.names import PORT, SERVICE, Document
from pycrictl.cluster.agent.asyncapi import AsyncApiClient, abandon, read_body

NODES_AT_ONCE: Final = 32
ADDRESSES_S: Final = 60.0
MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024
MAX_VALUES: Final = 300_000
"""The most JSON values in an answer: enough for some 2,000 pulls with all their layers."""

MAX_TOKEN_BYTES: Final = 64 * 1024


class Peers:
    """Queries other agents.

    Args:
        namespace: the namespace of the agents' Service.
        ca: PEM of the agents' CA.
        timeout_s: the time limit for connecting to an agent, and for a whole request.
        missing_s: the shortest time between two look-ups of the agents' addresses.
    """

    def __init__(
        self,
        api: AsyncApiClient,
        *,
        namespace: str,
        token_file: str,
        ca: str,
        timeout_s: float = 4.0,
        missing_s: float = 5.0,
    ) -> None:
        self.timeout_s, self.missing_s = timeout_s, missing_s
        self.trust(ca)
        self.asked = 0
        self._api = api
        self._namespace = namespace
        self._token_file = token_file
        self._addresses: dict[str, tuple[str, int]] = {}
        self._looked_at = -ADDRESSES_S
        self._is_stale = False
        self._lock = asyncio.Lock()
        self._slots = asyncio.Semaphore(NODES_AT_ONCE)
        self._session: aiohttp.ClientSession | None = None

    def trust(self, ca: str) -> None:
        """Verify agents by this CA from now on."""
        self._context = client_context(ca_data=ca)

    def own_user(self) -> str:
        try:
            return subject_of(self._token())
        except PycrictlError:
            return ""

    async def get(self, node: str, path: str, query: Mapping[str, str]) -> Document:
        """Return the document that a node's agent responds with."""
        whole = f"{path}?{urlencode(query)}"
        try:
            async with (
                self._slots,
                asyncio.timeout(self.timeout_s),
                self.request(node, "GET", whole, {}, b"") as response,
            ):
                try:
                    content = await read_body(response, MAX_ANSWER_BYTES)
                finally:
                    abandon(response)
            if len(content) > MAX_ANSWER_BYTES:
                raise RemoteProtocolError("its answer is too long")
            if response.status != 200:
                raise _refusal(response.status, content)
            with contextlib.suppress(ValueError):
                document = foreign.parse(content, most=MAX_VALUES)
                if isinstance(document, dict):
                    return document
            raise RemoteProtocolError("its answer is not valid")
        except TimeoutError:
            raise DeadlineExceeded(f"it did not answer within {self.timeout_s:g} s") from None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    @asynccontextmanager
    async def request(
        self,
        node: str,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request to a node's agent, and yield the response."""
        async with (
            self._asking(node, path, headers) as where,
            self._connections().request(
                method, data=body or None, allow_redirects=False, **where
            ) as response,
        ):
            yield response

    @asynccontextmanager
    async def stream(
        self,
        node: str,
        path: str,
        headers: Mapping[str, str],
        protocol: str,
        max_bytes: int,
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Open a WebSocket at a node's agent; raise WSServerHandshakeError if the agent refuses."""
        async with (
            self._asking(node, path, headers) as where,
            self._connections().ws_connect(
                protocols=(protocol,), max_msg_size=max_bytes, **where
            ) as socket,
        ):
            yield socket

    @asynccontextmanager
    async def _asking(
        self, node: str, path: str, headers: Mapping[str, str]
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield the library's arguments for a request to a node's agent."""
        host, port = await self._address(node)
        netloc = f"{f'[{host}]' if ':' in host else host}:{port}"
        own = {"Authorization": f"Bearer {self._token()}", "User-Agent": "pycrictl-agent"}
        self.asked += 1
        try:
            yield {
                "url": f"https://{netloc}{path}",
                "headers": {**own, **headers},
                # A connection is used again only with the TLS settings it was opened with.
                "ssl": self._context,
                "server_hostname": SERVICE,
            }
        except (aiohttp.ClientError, OSError) as exc:
            if isinstance(exc, TimeoutError | aiohttp.WSServerHandshakeError):
                raise
            self._is_stale = True  # it may have moved
            raise ConnectError(f"its agent at {netloc} cannot be reached") from None

    async def _address(self, node: str) -> tuple[str, int]:
        """Return the address of a node's agent; look it up again if the agent may have moved."""
        age_s = time.monotonic() - self._looked_at
        is_due = age_s >= self.missing_s and (self._is_stale or node not in self._addresses)
        if is_due or age_s >= ADDRESSES_S:
            async with self._lock:
                if time.monotonic() - self._looked_at >= self.missing_s:
                    await self._look()
        if (known := self._addresses.get(node)) is not None:
            return known
        raise Unavailable("no agent is known to run on it")

    async def _look(self) -> None:
        self._is_stale = False
        addresses: dict[str, tuple[str, int]] = {}
        path = f"/apis/discovery.k8s.io/v1/namespaces/{self._namespace}/endpointslices"
        with contextlib.suppress(PycrictlError):
            query = {"labelSelector": f"kubernetes.io/service-name={SERVICE}"}
            async for page in self._api.pages(path, query):
                for document in mappings(page.get("items")):
                    ports = [count(port.get("port")) for port in mappings(document.get("ports"))]
                    port = next(filter(None, ports), PORT)
                    for endpoint in mappings(document.get("endpoints")):
                        node = text(endpoint.get("nodeName"))
                        first = next(iter(texts(endpoint.get("addresses"))), "")
                        if node and _is_address(first):
                            addresses[node] = first, port
            self._addresses = addresses
        self._looked_at = time.monotonic()  # set last: callers wait for the lock meanwhile

    def _connections(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=2 * NODES_AT_ONCE + 1000, keepalive_timeout=30
                ),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self.timeout_s),
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("Accept-Encoding",),
            )
        return self._session

    def _token(self) -> str:
        """Read the token, which the kubelet renews in its file."""
        if not self._token_file:
            raise ConfigError("no token for other agents is configured (--peer-token)")
        try:
            with Path(self._token_file).open("rb") as file:
                token = file.read(MAX_TOKEN_BYTES).decode("ascii").strip()
        except (OSError, ValueError) as exc:
            raise ConfigError(f"cannot read the token in --peer-token: {reason_of(exc)}") from None
        if not token or not token.isprintable():
            raise ConfigError("the token in --peer-token is empty or malformed")
        return token


def subject_of(token: str) -> str:
    """Return the ``sub`` of a JWT without verifying it; empty if the token is no JWT."""
    try:
        claims = base64.urlsafe_b64decode(token.split(".")[1] + "==")  # more padding does no harm
        return text(parsed(claims).get("sub"))
    except (ValueError, IndexError):
        return ""


def _refusal(status: int, content: bytearray) -> PycrictlError:
    message = text(parsed(bytes(content)).get("message"), TEXT_LIMIT)
    kinds: dict[int, type[RuntimeFault]] = {
        401: Denied,
        403: Denied,
        404: NotFound,
        405: Unimplemented,
    }
    return kinds.get(status, RuntimeFault)(escape(message or f"it answered {status}"))


def _is_address(address: str) -> bool:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True
