"""The address behind a stream URL, and what a TLS connection to it needs.

Stream URLs come from a runtime. Their path holds a token that opens the stream, so no message
ever shows more of a URL than its scheme, host and port.
"""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pycrictl.base.errors import ConfigError, ConnectError, RemoteProtocolError, StreamError
from pycrictl.base.tls import client_context

_DEFAULT_PORTS: Final = {"http": 80, "ws": 80, "https": 443, "wss": 443}
_URL: Final = re.compile(r"[\x21-\x7e]+")
_ALPN: Final = ["http/1.1"]
_HOST_NAME: Final = re.compile(r"(?=.{1,253}\.?$)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")


class TlsFiles:
    """What verified TLS connections need, from PEM files that are read once.

    Args:
        ca: the trusted authorities; by default, the system's.
        cert, key: a client certificate and its key, which go together.
        server_name: the name in the server's certificate; by default, the host of the URL.
        is_required: whether a stream without TLS is refused.

    Raises:
        ConfigError: a file cannot be used, or only one of certificate and key is given.
    """

    def __init__(
        self,
        *,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        server_name: str | None = None,
        is_required: bool = True,
    ) -> None:
        if (cert is None) != (key is None):
            raise ConfigError("a TLS certificate and its key must be given together")
        self.server_name = server_name
        self.is_required = is_required
        path = ca
        try:
            self.context = client_context(ca_file=ca)
            self.context.set_alpn_protocols(_ALPN)
            if cert is not None:
                path = cert
                # Without a password function, OpenSSL would ask for one on the terminal.
                self.context.load_cert_chain(cert, key, password=lambda: "")
        except (OSError, ValueError) as exc:
            raise ConfigError(f'cannot use the TLS file "{path}": {reason_of(exc)}') from exc


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed stream URL; if ``socket`` is set, connections use that Unix socket."""

    scheme: str
    host: str
    port: int
    path: str = field(repr=False)
    socket: str = ""

    @property
    def is_tls(self) -> bool:
        return self.scheme in ("https", "wss")

    @property
    def authority(self) -> str:
        """Host and port in the form of the ``Host`` header (RFC 9110, 7.2)."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def label(self) -> str:
        return f"{self.scheme}://{self.authority}"


def parse_url(url: str) -> Target:
    # urlsplit() silently drops control characters, so this check comes first.
    if not _URL.fullmatch(url):
        raise RemoteProtocolError("the stream URL contains invalid characters")
    try:
        parts = urlsplit(url)
        port = parts.port
        host = parts.hostname or ""
        is_address = ":" in host and bool(ipaddress.IPv6Address(host))
    except ValueError:
        raise RemoteProtocolError("the stream URL has an invalid host or port") from None
    if parts.scheme not in _DEFAULT_PORTS:
        raise RemoteProtocolError("the stream URL is not an absolute http, https, ws or wss URL")
    if "@" in parts.netloc:
        raise RemoteProtocolError("the stream URL contains user information")
    if port == 0 or not (is_address or _HOST_NAME.fullmatch(host)):
        raise RemoteProtocolError("the stream URL has an invalid host or port")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme, host, port or _DEFAULT_PORTS[parts.scheme], path)


def beside(target: Target, socket: str) -> Target:
    """Return the target with the Unix socket that serves the same streams, if there is one.

    A proxy keeps it beside ``socket``, its CRI socket (``proxy.serve.listen``). A container with a
    network of its own can connect to it, but not to the node's loopback address.
    """
    link = Path(socket)
    folders = [link.resolve().parent]
    with suppress(OSError):
        # The proxy that returned the URL may have handed over since.
        folders += (
            path_beside
            for path_beside in link.parent.iterdir()
            if path_beside.name.startswith(f"{link.name}.")
        )
    sockets = (folder / str(target.port) for folder in folders)
    path = next((str(path_beside) for path_beside in sockets if path_beside.is_socket()), "")
    return replace(target, socket=path)


def tls_of(target: Target, files: TlsFiles | None) -> tuple[ssl.SSLContext, str] | None:
    """Return the context of a TLS connection, and the server's name; None without TLS.

    Without files no certificate is verified, because runtimes sign their own; crictl does the
    same. With files, the server's certificate must be valid and match its name.
    """
    if not target.is_tls:
        if files is not None and files.is_required:
            raise ConnectError(
                f'the stream at "{target.label}" is not encrypted',
                hint="the runtime serves its streams without TLS: leave out the --tls options",
            )
        return None
    if files is not None:
        return files.context, files.server_name or target.host
    context = client_context(verifies=False)
    context.set_alpn_protocols(_ALPN)
    return context, target.host


def cannot_connect(target: Target, exc: Exception, timeout_s: float) -> ConnectError:
    is_late = isinstance(exc, TimeoutError)
    reason = f"no connection within {timeout_s:g} s" if is_late else reason_of(exc)
    return ConnectError(f'cannot connect to "{target.label}": {reason}')


def connection_broke(label: str, exc: OSError) -> StreamError:
    return StreamError(f'the connection to "{label}" broke: {reason_of(exc)}')


def reason_of(exc: Exception) -> str:
    if isinstance(exc, ssl.SSLCertVerificationError):
        return exc.verify_message
    if isinstance(exc, ssl.SSLError):
        return (exc.reason or "TLS error").lower().replace("_", " ")
    if isinstance(exc, OSError) and exc.errno and exc.errno > 0:
        # Not the exception's own text, which asyncio replaces by a longer one.
        return os.strerror(exc.errno).lower()
    return getattr(exc, "strerror", None) or str(exc) or type(exc).__name__
