"""Clients that attack an agent directly, bypassing the API server, and their certificates."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.cluster.agent import standing
from tests.kube.apiserver import FRONT_PROXY, ApiServer
from tests.serving import believing, send_at_once
from tests.streams.servers import Certificates, make_certificates

FORGED = {"X-Remote-User": "admin", "X-Remote-Group": "system:masters"}

Pair = tuple[str, str]
"""The paths of a certificate and its key."""


class Hands:
    """Client certificates that an attacker may present, by kind, and the front proxy's own."""

    def __init__(self, api: ApiServer, folder: Path) -> None:
        self._folder = folder
        other = folder / "other"
        other.mkdir()
        own, proxy = api.certificates, api.front_proxy
        stranger = make_certificates(other, client=f"/CN={FRONT_PROXY}")
        self.all: dict[str, Pair | None] = {
            "none": None,
            "user": _pair(own, "jane"),
            "admin": _pair(own, "admin"),
            "kubelet": _pair(own, "client"),
            "another CA": _pair(stranger, "client"),
            "its server": (proxy.cert("server"), proxy.key("server")),
            "another name": self._signed(proxy, "name", "/CN=metrics-proxy"),
            "another case": self._signed(proxy, "case", f"/CN={FRONT_PROXY.upper()}"),
            "users' CA": self._signed(own, "users", f"/CN={FRONT_PROXY}"),
            "expired": self._signed(proxy, "expired", f"/CN={FRONT_PROXY}", days=0),
            "no client's": self._signed(proxy, "use", f"/CN={FRONT_PROXY}", use="serverAuth"),
        }
        self.front_proxy: Pair = _pair(proxy, "client")

    def _signed(
        self,
        authority: Certificates,
        name: str,
        subject: str,
        *,
        days: int = 2,
        use: str = "clientAuth",
    ) -> Pair:
        key, request, made = (str(self._folder / f"{name}.{end}") for end in ("key", "csr", "pem"))
        extension = self._folder / f"{name}.ext"
        extension.write_text(f"extendedKeyUsage={use}\n")
        words = "req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout"
        commands = (
            [*words.split(), key, "-subj", subject, "-out", request],
            [
                "x509", "-req", "-days", str(days), "-in", request, "-extfile", str(extension),
                "-CA", authority.ca, "-CAkey", authority.key("ca"), "-set_serial", "7",
                "-out", made,
            ],
        )  # fmt: skip
        for command in commands:
            subprocess.run(["openssl", *command], check=True, capture_output=True)
        return made, key


def _pair(certificates: Certificates, name: str) -> Pair:
    return certificates.cert(name), certificates.key(name)


def reach(address: tuple[str, int], pair: Pair | None = None) -> ssl.SSLSocket:
    plain = socket.create_connection(address, timeout=20)
    send_at_once(plain)
    return believing(pair).wrap_socket(plain)


def watch(address: tuple[str, int], path: str, pair: Pair, user: str) -> tuple[ssl.SSLSocket, int]:
    """Start a watch as the front proxy would for a user; return the connection and the status."""
    connection = reach(address, pair)
    lines = [f"GET {path}?watch=true HTTP/1.1", "Host: a", f"X-Remote-User: {user}", "", ""]
    connection.sendall("\r\n".join(lines).encode())
    return connection, int(connection.recv(4096).split()[1])


def ask(
    address: tuple[str, int],
    path: str,
    pair: Pair | None = None,
    headers: Mapping[str, str] | None = None,
    method: str = "GET",
    body: bytes | None = None,
) -> tuple[int, bytes]:
    """Send a request to an agent; return status 0 if it fails without a response."""
    try:
        answer = standing.ask(address, path, pair, headers, method, body)
    except (OSError, http.client.HTTPException):
        return 0, b""
    return answer.status, answer.content


def names(content: bytes) -> list[str]:
    document: Any = json.loads(content)
    return sorted(
        f"{item['metadata']['namespace']}/{item['metadata']['name']}" for item in document["items"]
    )
