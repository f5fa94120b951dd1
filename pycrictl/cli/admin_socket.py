"""The proxy on the node, found by its admin socket."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

from pycrictl.base import noderoot
from pycrictl.base.config import socket_path
from pycrictl.base.errors import PycrictlError
from pycrictl.cli import complete
from pycrictl.proxy import admin
from pycrictl.runtime.cri.calls.client import CriClient

STATUS_TIMEOUT_S: Final = 1.0

AdminSocket = Annotated[
    str,
    typer.Option(
        "--admin-socket",
        metavar="SOCKET",
        autocompletion=complete.sockets,
        help="Admin socket of the proxy on this node.",
    ),
]
DEFAULT: Final = "unix:///run/pycrictl/admin.sock"


class ProxyClient(NamedTuple):
    admin: str
    listen: str
    upstream: str

    def is_of(self, client: CriClient) -> bool:
        paths = Path(self.listen), Path(self.upstream)
        return any(os.path.exists(path) and path.samefile(client.path) for path in paths)

    def status(self) -> dict[str, Any]:
        return admin.ask(self.admin, "status", timeout_s=STATUS_TIMEOUT_S)


def find_proxy(admin_socket: str, *, is_strict: bool = False) -> ProxyClient | None:
    """Return the proxy at an admin socket; None if there is no socket, or its proxy is too old.

    If the proxy does not answer, raise PycrictlError if ``is_strict``, else return None.
    """
    path = noderoot.given(socket_path(admin_socket, "admin-socket"))
    if not Path(path).exists():
        return None
    try:
        sockets = admin.ask(path, "sockets", timeout_s=STATUS_TIMEOUT_S)
        return ProxyClient(path, *(noderoot.locate(sockets[key]) for key in ("listen", "upstream")))
    except KeyError:
        return None
    except PycrictlError:
        if is_strict:
            raise
        return None


def proxy_of(client: CriClient, admin_socket: str) -> ProxyClient | None:
    try:
        proxy = find_proxy(admin_socket)
        return proxy if proxy is not None and proxy.is_of(client) else None
    except OSError:
        return None


def client_of(proxy: ProxyClient, client: CriClient) -> CriClient:
    return CriClient(proxy.listen, timeout_s=client.timeout_s)
