"""The servers that a runtime asks for an image, and how it reaches them."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

from pycrictl.pulls.reference import DEFAULT_HOST, Reference, parse
from pycrictl.pulls.registries.credentials import Login

Scheme = Literal["http", "https"]

_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server that a runtime asks for a repository.

    Attributes:
        host: its name and port, as in a URL.
        path: the root of its API, such as ``/v2``.
        repository: the repository's name there; empty if only the server is known.
        prefix: what that name begins with for every repository of the registry; or empty.
        schemes: how it may be reached, in the order to be tried.
        is_mirror: it serves another registry's images.
        verifies: its certificate must be trusted.
        authorities: files of certificates (PEM) to trust beside the system's.
        identities: files of a client certificate and of its key; the key may be in the former.
        headers: sent with each request.
        namespace: the mirrored registry, sent as the argument ``ns`` (containerd); or empty.
        has_tags: it may be asked what a tag means, not only for digests.
        origin: the node's file that names it; empty for the registry itself.
    """

    host: str
    path: str = "/v2"
    repository: str = ""
    prefix: str = ""
    schemes: tuple[Scheme, ...] = ("https",)
    is_mirror: bool = False
    verifies: bool = True
    authorities: tuple[str, ...] = ()
    identities: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    namespace: str = ""
    has_tags: bool = True
    origin: str = ""

    def url(self, scheme: Scheme | None = None) -> str:
        """Return its address for people, without ``/v2``; the first scheme if none is given."""
        place = f"/{self.prefix}" if self.prefix else ""
        return f"{scheme or self.schemes[0]}://{self.host}{self.path.removesuffix('/v2')}{place}"


def server_of(host: str) -> str:
    """Return the host of a registry's API: Docker Hub has another than its images name."""
    return "registry-1.docker.io" if host == DEFAULT_HOST else host


def own_endpoint(reference: Reference) -> Endpoint:
    """Return the server of a registry itself; on the loopback, plain HTTP is tried first."""
    host, repository = reference.host, reference.path
    if is_loopback(host):
        return Endpoint(host, repository=repository, schemes=("http", "https"), verifies=False)
    return Endpoint(server_of(host), repository=repository)


def is_loopback(host: str) -> bool:
    """Return whether HOST or HOST:PORT is a name or an address of this machine's loopback."""
    name = urlsplit(f"//{host}").hostname or ""
    address = _address(name)
    return name == "localhost" or (address is not None and address.is_loopback)


def certificates_in(folder: Path) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Return the authorities (``*.crt``) and identities (``*.cert``, ``*.key``) in a folder.

    This is Docker's layout, which containerd and CRI-O read too.
    """
    files = sorted(folder.glob("*")) if os.path.isdir(folder) else []
    authorities = tuple(str(file) for file in files if file.suffix == ".crt")
    pairs = [(file, file.with_suffix(".key")) for file in files if file.suffix == ".cert"]
    identities = tuple((str(file), str(key) if os.path.exists(key) else "") for file, key in pairs)
    return authorities, identities


class RegistryAccess:
    """How a runtime reaches registries; this class is for runtimes that are not known.

    Attributes:
        bundle: the file of certificates (PEM) that it trusts; empty for this program's own.
        doubt: why it may go another way; empty if all is known.
        trap: what of its configuration has no effect, and why; empty if nothing.
    """

    def __init__(
        self, environ: Mapping[str, str] | None = None, *, bundle: str = "", doubt: str = ""
    ) -> None:
        self._environ = environ or {}
        self.bundle = bundle
        self.doubt = doubt
        self.trap = ""

    def proxy_of(self, url: str) -> str:
        """Return the URL of the HTTP proxy for a URL, by the environment; empty if there is none.

        The rules are those of Go's ``golang.org/x/net/http/httpproxy``, as containerd and CRI-O are
        written in Go; Python's differ in ``NO_PROXY``.
        """
        parts = urlsplit(url)
        proxy, host = self._variable(f"{parts.scheme}_PROXY"), parts.hostname or ""
        if not proxy or is_loopback(parts.netloc.rpartition("@")[2]):
            return ""
        port = _PORTS[parts.scheme]
        with suppress(ValueError):
            port = parts.port or port
        exceptions = map(str.strip, self._variable("NO_PROXY").lower().split(","))
        if any(_is_exception(entry, host, port) for entry in exceptions if entry):
            return ""
        return proxy if "://" in proxy else f"http://{proxy}"

    def _variable(self, name: str) -> str:
        return self._environ.get(name.upper()) or self._environ.get(name.lower(), "")

    def meanings(self, text: str) -> list[Reference]:
        """Return what a reference may mean, in the order in which it is tried."""
        return [parse(text)]

    def endpoints(self, reference: Reference) -> list[Endpoint]:
        """Return the servers for a reference, in the order in which they are asked.

        The path is empty for a whole registry. Without tag and digest, all servers are returned,
        also those that are asked only for one of the two.
        """
        return [own_endpoint(reference)]

    def login_for(
        self, endpoint: Endpoint, reference: Reference, given: Login | None
    ) -> Login | None:
        """Return the credentials that the runtime uses there; ``given`` are those of the pull."""
        return given


def _is_exception(entry: str, host: str, port: int) -> bool:
    """Return whether an entry of ``NO_PROXY`` matches: ``*``, CIDR, or an address or domain[:PORT].

    ``example.com`` also means its subdomains; ``.example.com`` and ``*.example.com`` only those.
    """
    address = _address(host)
    if entry == "*":
        return True
    if "/" in entry:
        try:
            return address is not None and address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    if _address(entry.strip("[]")) is None:
        entry, colon, number = entry.rpartition(":") if ":" in entry else (entry, "", "")
        if colon and number != str(port):
            return False
    entry = entry.strip("[]").removeprefix("*")
    if address is not None:
        return address == _address(entry)
    return host == entry or host.endswith(entry if entry.startswith(".") else f".{entry}")


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
