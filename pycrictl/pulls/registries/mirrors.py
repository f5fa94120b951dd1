"""The endpoints that the runtime of this node asks for an image, and how it reaches them.

Mirrors come first, in their order. Settings are read from the runtime's process and files.

containerd: ``hosts.toml`` files below ``config_path`` or, if that is not set,
``registry.mirrors``; both are settings of its CRI plugin.

CRI-O: containers-registries.conf(5) and its drop-ins, containers-certs.d(5).

Not supported: credentials, headers and the capability ``resolve`` in containerd's configuration; in
CRI-O's, registries other than Docker Hub for short names, prefixes with a wildcard, a tag or a
digest, and crio.conf(5).
"""

from __future__ import annotations

import ipaddress
import os
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from pycrictl.base import noderoot
from pycrictl.base.errors import ConfigError
from pycrictl.base.foreign import mapping, mappings, text, texts
from pycrictl.base.processes import command_line, environ_of, flags_in
from pycrictl.base.units import escape
from pycrictl.pulls.reference import DEFAULT_HOST, Reference
from pycrictl.pulls.registries.credentials import Credentials, credentials_in
from pycrictl.runtime.containerd.daemon import (
    CriSettings,
    config_path,
    read_document,
    read_settings,
    runtime_pid,
)

Scheme = Literal["http", "https"]

_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server that a runtime asks for a repository.

    Attributes:
        host: its name and port, as in a URL.
        path: the root of its API, such as ``/v2``.
        repository: the repository's name there; empty if only the server is known.
        schemes: how it may be reached, in the order to be tried.
        is_mirror: it serves another registry's images.
        verifies: whether its certificate is verified.
        authorities: files of certificates (PEM) to trust beside the system's.
        identities: pairs of files: a client certificate and its key; empty if in the same file.
        namespace: the registry to send as the query parameter ``ns`` (containerd); or empty.
        origin: the file on the node that names the server; empty for the registry itself.
    """

    host: str
    path: str = "/v2"
    repository: str = ""
    schemes: tuple[Scheme, ...] = ("https",)
    is_mirror: bool = False
    verifies: bool = True
    authorities: tuple[str, ...] = ()
    identities: tuple[tuple[str, str], ...] = ()
    namespace: str = ""
    origin: str = ""

    def url(self, scheme: Scheme | None = None) -> str:
        """Return its address for people, without ``/v2``; the first scheme if none is given."""
        return f"{scheme or self.schemes[0]}://{self.host}{self.path.removesuffix('/v2')}"


def server_of(host: str) -> str:
    """Return the host of a registry's API; Docker Hub's is not the one in image names."""
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
    return name in ("localhost", "::1") or name.startswith("127.")


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
    """How a runtime reaches registries; this class itself is for unknown runtimes.

    Attributes:
        bundle: the file of CAs (PEM) that the runtime trusts; empty for those of pycrictl itself.
        doubt: why the runtime may reach registries in another way; empty if all is known.
        trap: a ``config_path`` without effect, as it names several folders; empty if none.
    """

    def __init__(
        self, environ: Mapping[str, str] | None = None, *, bundle: str = "", doubt: str = ""
    ) -> None:
        self._environ = environ or {}
        self.bundle = bundle
        self.doubt = doubt
        self.trap = ""

    def proxy_of(self, url: str) -> str:
        """Return the HTTP proxy for a URL, by the runtime's environment; empty if there is none.

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

    def endpoints(self, reference: Reference) -> list[Endpoint]:
        """Return the servers for a reference, in the order in which they are asked.

        A reference with an empty path stands for a whole registry.
        """
        return [own_endpoint(reference)]

    def credentials_for(
        self, endpoint: Endpoint, reference: Reference, given: Credentials | None
    ) -> Credentials | None:
        """Return the credentials that the runtime uses there; ``given`` are those of the pull."""
        return given


def _is_exception(entry: str, host: str, port: int) -> bool:
    """Return whether an entry of ``NO_PROXY`` matches: ``*``, CIDR, an address or domain[:PORT].

    ``example.com`` also means its subdomains; ``.example.com`` and ``*.example.com`` only those.
    """
    with suppress(ValueError):
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    name = entry.removesuffix(f":{port}").removeprefix("*")
    domain = name if name.startswith(".") else f".{name}"
    return entry == "*" or name.strip("[]") == host or host.endswith(domain)


_BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Where Go's ``crypto/x509`` finds the system's authorities on Linux; it takes the first."""


def access_of(endpoint: str, name: str, version: str) -> RegistryAccess:
    """Return how the runtime behind a socket reaches registries.

    Args:
        endpoint: the URL of the socket.
        name, version: its ``runtime_name`` and ``runtime_version`` (CRI ``Version``); empty if it
            does not answer.
    """
    program = {"containerd": "containerd", "cri-o": "crio"}.get(name.lower(), "")
    if not program:
        doubt = f"{escape(name)}'s settings are not read" if name else "the runtime does not answer"
        return RegistryAccess(doubt=doubt)
    pid = runtime_pid(endpoint, program)
    environ, doubt = environ_of(pid), ""
    if not pid:
        doubt = f"the process of {program} is not visible from here"
    elif not environ:
        doubt = f"only root sees the environment of {program}, which may name a proxy"
    if program == "crio":
        return crio_access(pid, noderoot.directory().rstrip("/"), doubt=doubt)
    bundle = bundle_of(environ, noderoot.locate)
    settings = read_settings(config_path(pid or None))
    numbers = re.match(r"v?(\d+)\.(\d+)", version)
    release = (int(numbers[1]), int(numbers[2])) if numbers else (1, 0)
    return ContainerdAccess(settings, release, environ, bundle=bundle, doubt=doubt)


def crio_access(pid: int, root: str, *, doubt: str = "") -> CrioAccess:
    """Return the access of a CRI-O process whose files are below ``root``."""
    environ = environ_of(pid)
    bundle = bundle_of(environ, lambda path: f"{root}{path}")
    return CrioAccess(flags_in(command_line(pid)), environ, root, bundle=bundle, doubt=doubt)


def bundle_of(environ: Mapping[str, str], local: Callable[[str], str]) -> str:
    """Return the file of authorities that a Go program trusts; empty if there is none."""
    named = environ.get("SSL_CERT_FILE")
    files = map(local, [named] if named else _BUNDLES)
    return next((file for file in files if os.path.isfile(file)), "")


# containerd

DEFAULT_CONFIG_PATH: Final = "/etc/containerd/certs.d:/etc/docker/certs.d"
"""The default of containerd 2.2 and later; earlier ones have none."""


class ContainerdAccess(RegistryAccess):
    """The access of a containerd with these settings; ``version`` is (major, minor)."""

    def __init__(
        self,
        settings: CriSettings,
        version: tuple[int, int],
        environ: Mapping[str, str] | None = None,
        **more: str,
    ) -> None:
        super().__init__(environ, **more)
        self._registry = mapping(settings.table.get("registry"))
        self._origin = settings.registry_origin
        path = text(self._registry.get("config_path"))
        if not path and not self._registry.get("mirrors") and version >= (2, 2):
            path = DEFAULT_CONFIG_PATH
        self._folders = [Path(part) for part in path.split(":") if part]
        if len(self._folders) > 1 and version >= (2, 1) and not settings.pulls_locally:
            if any(os.path.isdir(noderoot.locate(str(folder))) for folder in self._folders):
                self.trap = path
            self._folders = [Path(path)]

    def endpoints(self, reference: Reference) -> list[Endpoint]:
        return self._of_folders(reference) if self._folders else self._of_mirrors(reference)

    def _of_folders(self, reference: Reference) -> list[Endpoint]:
        own = own_endpoint(reference)
        if (folder := self._folder_of(reference.host)) is None:
            return [own]
        file = folder / "hosts.toml"
        document = read_document(noderoot.locate(str(file)))
        if not document:
            pair = certificates_in(Path(noderoot.locate(str(folder))))
            return [replace(own, authorities=pair[0], identities=pair[1])]
        hosts = [
            (_at(url, reference, mapping(settings)), mapping(settings))
            for url, settings in mapping(document.get("host")).items()
        ]
        server = text(document.get("server"))
        if server:
            own = replace(_at(server, reference, document), is_mirror=False)
        hosts.append((own, document))
        return [
            replace(_configured(host, settings, folder), origin=str(file))
            for host, settings in hosts
            if "pull" in (texts(settings.get("capabilities")) or ["pull"])
        ]

    def _folder_of(self, host: str) -> Path | None:
        name, colon, port = host.rpartition(":")
        for folder in self._folders:
            for entry in (f"{name}_{port}_" if colon else host, host, "_default"):
                if os.path.exists(noderoot.locate(str(folder / entry))):
                    return folder / entry
        return None

    def _of_mirrors(self, reference: Reference) -> list[Endpoint]:
        host, own = reference.host, own_endpoint(reference)
        mirrors = mapping(self._registry.get("mirrors"))
        urls = texts(mapping(mirrors.get(host, mirrors.get("*"))).get("endpoint"))
        endpoints = []
        for url in urls:
            if "://" not in url:
                url = f"{'http' if is_loopback(url.partition('/')[0]) else 'https'}://{url}"
            endpoints.append(_at(url, reference, {"override_path": bool(urlsplit(url).path)}))
        if all(endpoint.host != host for endpoint in endpoints):
            endpoints.append(replace(own, schemes=own.schemes[:1]))
        return [
            replace(self._with_tls(endpoint), origin=self._origin if endpoint.is_mirror else "")
            for endpoint in endpoints
        ]

    def _with_tls(self, endpoint: Endpoint) -> Endpoint:
        tls = mapping(self._registry, "configs", endpoint.host, "tls")
        settings = {
            "skip_verify": tls.get("insecure_skip_verify"),
            "ca": tls.get("ca_file"),
            "client": [[tls.get("cert_file"), tls.get("key_file")]],
        }
        return _configured(endpoint, settings, Path("/"))


def _at(url: str, reference: Reference, settings: Mapping[str, Any]) -> Endpoint:
    """Return the endpoint at a URL, as containerd reads it."""
    parts = urlsplit(url if url.startswith("http") else f"https://{url}")
    path = posixpath.normpath(parts.path) if parts.path.strip("/") else ""
    if settings.get("override_path") is not True and not path.endswith("/v2"):
        path += "/v2"
    host = parts.netloc.rpartition("@")[2]
    is_own = host == server_of(reference.host)
    return Endpoint(
        host,
        path,
        reference.path,
        schemes=("http",) if parts.scheme == "http" else ("https",),
        is_mirror=not is_own,
        namespace="" if is_own else reference.host,
    )


def _configured(endpoint: Endpoint, settings: Mapping[str, Any], folder: Path) -> Endpoint:
    """Return an endpoint with its table of ``hosts.toml``; paths are relative to ``folder``."""

    def local(name: str) -> str:
        return noderoot.locate(str(folder / name)) if name else ""

    clients = ([*texts(_list(item)), "", ""] for item in _list(settings.get("client")))
    skips = settings.get("skip_verify")
    return replace(
        endpoint,
        verifies=endpoint.verifies if skips is None else skips is not True,
        authorities=tuple(map(local, filter(None, texts(_list(settings.get("ca")))))),
        identities=tuple((local(pair[0]), local(pair[1])) for pair in clients if pair[0]),
    )


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else [value]


# CRI-O

REGISTRIES_CONF: Final = "/etc/containers/registries.conf"
_CERTIFICATES: Final = ("/etc/containers/certs.d", "/etc/docker/certs.d")
_AUTH_FILES: Final = (
    "/run/containers/0/auth.json",
    "/root/.config/containers/auth.json",
    "/root/.docker/config.json",
)


class CrioAccess(RegistryAccess):
    """The access of a CRI-O whose files are below ``root``, by its command line and environment."""

    def __init__(
        self, flags: Mapping[str, str], environ: Mapping[str, str], root: str, **more: str
    ) -> None:
        super().__init__(environ, **more)
        self._root = root
        self._main = flags.get("registries-conf") or REGISTRIES_CONF
        self._folder = flags.get("registries-conf-dir") or f"{REGISTRIES_CONF}.d"
        named = flags.get("global-auth-file")
        self._auth_files = [named] if named else _AUTH_FILES

    def endpoints(self, reference: Reference) -> list[Endpoint]:
        name = reference.name.rstrip("/")
        tables = {
            text(table.get("prefix")) or text(table.get("location")): (table, file)
            for document, file in self._documents()
            for table in mappings(document.get("registry"))
        }
        fitting = [prefix for prefix in tables if prefix and _is_below(name, prefix)]
        if not fitting:
            return [self._endpoint(name, {})]
        prefix = max(fitting, key=len)
        table, file = tables[prefix]
        rest = name[len(prefix) :]
        endpoints = [
            replace(self._endpoint(f"{text(item.get('location'))}{rest}", item), is_mirror=True)
            for item in mappings(table.get("mirror"))
            if _serves(item, table, is_by_digest=bool(reference.digest))
        ]
        if table.get("blocked") is not True:
            location = text(table.get("location")) or prefix
            endpoints.append(self._endpoint(f"{location}{rest}", table))
        return [replace(item, origin=file) for item in endpoints]

    def credentials_for(
        self, endpoint: Endpoint, reference: Reference, given: Credentials | None
    ) -> Credentials | None:
        """Return the pull's credentials for its image's host, else those of a login on the node."""
        host = DEFAULT_HOST if endpoint.host == server_of(DEFAULT_HOST) else endpoint.host
        if given is not None and host == reference.host:
            return given
        there = Reference(host, endpoint.repository, "", "")
        for path in self._auth_files:
            with suppress(ConfigError):
                if credentials := credentials_in(self._local(path), path, there):
                    return credentials
        return None

    def _endpoint(self, name: str, settings: Mapping[str, Any]) -> Endpoint:
        host, _, repository = name.partition("/")
        pairs = [certificates_in(Path(self._local(f"{folder}/{host}"))) for folder in _CERTIFICATES]
        is_insecure = settings.get("insecure") is True
        return Endpoint(
            server_of(host),
            repository=repository,
            schemes=("https", "http") if is_insecure else ("https",),
            verifies=not is_insecure,
            authorities=tuple(file for authorities, _ in pairs for file in authorities),
            identities=tuple(pair for _, identities in pairs for pair in identities),
        )

    def _documents(self) -> Iterator[tuple[dict[str, Any], str]]:
        """Yield the configuration files in effect; later ones override earlier ones."""
        for file in (self._main, *self._in(self._folder)):
            if document := read_document(self._local(file)):
                yield document, file

    def _in(self, folder: str) -> list[str]:
        here = Path(self._local(folder))
        files = sorted(here.glob("**/*.conf")) if os.path.isdir(here) else []
        return [f"{folder}/{file.relative_to(here)}" for file in files]

    def _local(self, path: str) -> str:
        return noderoot.below(self._root, path) if self._root else path


def _is_below(name: str, prefix: str) -> bool:
    """Return whether HOST[/PATH] is a prefix or below it."""
    return name.startswith(prefix) and name[len(prefix) : len(prefix) + 1] in ("", "/", ":")


def _serves(mirror: Mapping[str, Any], table: Mapping[str, Any], *, is_by_digest: bool) -> bool:
    if table.get("mirror-by-digest-only") is True:
        return is_by_digest
    return mirror.get("pull-from-mirror") != ("tag-only" if is_by_digest else "digest-only")
