"""How an API server forwards requests to an APIService behind it.

The user goes into headers, and the connection has the front proxy's certificate. Bytes are passed
on as they arrive.
"""

from __future__ import annotations

import http.client
import json
import select
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from tests.kube.access import User
from tests.kube.objects import Document
from tests.serving import Handler, send_at_once

GROUP, VERSION = "progress.pycrictl.dev", "v1alpha1"
BASE = f"/apis/{GROUP}/{VERSION}"

_HOP_BY_HOP = {
    "connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding",
    "upgrade",
}  # fmt: skip
_DIAL_S = 5.0


@dataclass
class ApiService:
    group: str
    version: str
    host: str
    port: int

    @property
    def prefix(self) -> str:
        return f"/apis/{self.group}/{self.version}"

    def owns(self, path: str) -> bool:
        return path == self.prefix or path.startswith(f"{self.prefix}/")


@dataclass
class Forwarding:
    """Where and how to forward a request."""

    host: str
    port: int
    context: ssl.SSLContext
    user: User


def user_headers(user: User) -> list[tuple[str, str]]:
    extra = [
        (f"X-Remote-Extra-{quote(key, safe='').lower()}", service)
        for key, all_ in user.extra.items()
        for service in all_
    ]
    uid = [("X-Remote-Uid", user.uid)] if user.uid else []
    groups = [("X-Remote-Group", group) for group in user.all_groups]
    return [("X-Remote-User", user.name), *uid, *groups, *extra]


def forwarded_target(target: str) -> str:
    """Rewrite a request's path and query as the aggregator does: decode, then encode."""
    url = urlsplit(target)
    query = sorted(parse_qsl(url.query, keep_blank_values=True), key=lambda pair: pair[0])
    path = quote(unquote(url.path), safe="/:@!$&'()*+,;=~-._")
    return f"{path}?{urlencode(query)}" if query else path


def forward(handler: Handler, how: Forwarding, target: str, body: bytes) -> None:
    peer = f"{how.host}:{how.port}"
    headers = [
        (key, value)
        for key, value in handler.headers.items()
        if key.lower() not in {*_HOP_BY_HOP, "authorization", "host"}
        and not key.lower().startswith(("x-remote-", "impersonate-"))
    ]
    headers += [("Host", peer), *user_headers(how.user)]
    try:
        raw = socket.create_connection((how.host, how.port), timeout=_DIAL_S)
        raw.settimeout(None)
        send_at_once(raw)
        upstream = how.context.wrap_socket(raw, server_hostname=how.host)
    except OSError as exc:
        reason = (exc.strerror or str(exc)).lower()
        text = f"error trying to reach service: dial tcp {peer}: connect: {reason}\n"
        handler.send(503, text.encode(), "text/plain; charset=utf-8")
        return
    is_upgrade = "upgrade" in handler.headers.get("Connection", "").lower()
    headers.append(("Connection", "Upgrade" if is_upgrade else "close"))
    headers += [("Upgrade", handler.headers["Upgrade"])] if is_upgrade else []
    lines = [f"{handler.command} {target} HTTP/1.1", *(f"{key}: {value}" for key, value in headers)]
    handler.close_connection = True
    with upstream:
        has_answered = False
        with suppress(OSError):
            upstream.sendall("\r\n".join([*lines, "", ""]).encode() + body)
            for is_answer in _passed(handler.connection, upstream):
                has_answered |= is_answer
    if not has_answered:
        eof = b"error trying to reach service: EOF\n"
        handler.send(503, eof, "text/plain; charset=utf-8")


def _passed(client: socket.socket, upstream: socket.socket) -> Iterator[bool]:
    """Pass bytes both ways until one side ends; yield whether each piece is an answer."""
    other = {client: upstream, upstream: client}
    while True:
        ready = [side for side in other if isinstance(side, ssl.SSLSocket) and side.pending()]
        for side in ready or select.select(list(other), [], [])[0]:
            if not (data := side.recv(65536)):
                return
            other[side].sendall(data)
            yield side is upstream


# Requests that the API server makes itself


OPENAPI_AGGREGATOR = User("system:aggregator")


def schemas_of(service: ApiService, context: ssl.SSLContext) -> Document:
    """Return an APIService's index of its schemas (OpenAPI v3); empty if it is down."""
    connection = http.client.HTTPSConnection(
        service.host, service.port, context=context, timeout=_DIAL_S
    )
    headers = {"Accept": "application/json", **dict(user_headers(OPENAPI_AGGREGATOR))}
    try:
        connection.request("GET", "/openapi/v3", headers=headers)
        document: Document = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        return {}
    finally:
        connection.close()
    return document if "paths" in document else {}
