"""The endpoints that the runtime of this node asks for an image, and how it reaches them.

They come from its process and its files: mirrors first, in their order, and HTTP proxies.

containerd: ``hosts.toml`` by ``config_path``, else ``registry.mirrors``. Both are settings of its
CRI plugin; with a ``config_path``, containerd ignores the rest.

CRI-O: containers-registries.conf(5) and its drop-ins, containers-certs.d(5). Not supported: aliases
of short names, prefixes with a tag or digest, ``SSL_CERT_DIR``, and files of root's own below
``$HOME/.config``.
"""

from __future__ import annotations

import ipaddress
import os
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from pycrictl.base import noderoot
from pycrictl.base.errors import ConfigError
from pycrictl.base.foreign import mapping, mappings, text, texts
from pycrictl.base.processes import command_line, environ_of, flags_in
from pycrictl.base.units import escape
from pycrictl.pulls.reference import DEFAULT_HOST, Reference, parse
from pycrictl.pulls.registries.credentials import Login, credentials_in, login_in
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


_BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Where Go's ``crypto/x509`` finds the system's authorities on Linux; it takes the first."""


def access_of(endpoint: str, name: str, version: str) -> RegistryAccess:
    """Return the access of the runtime behind a socket.

    Args:
        endpoint: the URL of the socket.
        name, version: its ``runtime_name`` and ``runtime_version`` (CRI ``Version``); empty if it
            does not answer.
    """
    program = {"containerd": "containerd", "cri-o": "crio"}.get(name.lower(), "")
    if not program:
        what = f"how {escape(name)} reaches registries" if name else "the runtime does not answer"
        return RegistryAccess(doubt=what)
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
        self._version = version
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
        endpoints = self._of_folders(reference) if self._folders else self._of_mirrors(reference)
        if reference.tag and not reference.digest:
            return [endpoint for endpoint in endpoints if endpoint.has_tags]
        return endpoints

    def login_for(
        self, endpoint: Endpoint, reference: Reference, given: Login | None
    ) -> Login | None:
        """Return the pull's, which containerd sends to mirrors too, or those of its settings."""
        own = credentials_in(mapping(self._registry, "configs", endpoint.host, "auth"))
        return given or (Login(own, self._origin) if own else None)

    def _of_folders(self, reference: Reference) -> list[Endpoint]:
        own = own_endpoint(reference)
        if (folder := self._folder_of(reference.host)) is None:
            return [own]
        file = folder / "hosts.toml"
        document = read_document(noderoot.locate(str(file)))
        if self._version < (1, 7):  # reads nothing else outside of the tables of hosts
            document = {key: document[key] for key in ("server", "host") if key in document}
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
        schemes: tuple[Scheme, ...] = ("http",) if is_loopback(host) else ("https",)
        endpoints = [
            _at(url, reference, {"override_path": bool(urlsplit(url).path)})
            for url in (url if "://" in url else f"{_default_scheme(url)}://{url}" for url in urls)
        ]
        if all(endpoint.host != host for endpoint in endpoints):
            endpoints.append(replace(own, schemes=schemes))
        return [
            replace(self._with_tls(endpoint), origin=self._origin if endpoint.is_mirror else "")
            for endpoint in endpoints
        ]

    def _with_tls(self, endpoint: Endpoint) -> Endpoint:
        tls = mapping(self._registry, "configs", endpoint.host, "tls")
        pair = text(tls.get("cert_file")), text(tls.get("key_file"))
        settings = {
            "skip_verify": tls.get("insecure_skip_verify"),
            "ca": text(tls.get("ca_file")),
            "client": [list(pair)] if pair[0] else [],
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

    ca, client = settings.get("ca"), settings.get("client")
    pairs = [client] if isinstance(client, str) else client if isinstance(client, list) else []
    identities = [(pair, "") if isinstance(pair, str) else tuple(texts(pair)) for pair in pairs]
    headers = {
        name: text(value[0] if isinstance(value, list) and value else value)
        for name, value in mapping(settings.get("header")).items()
    }
    skips = settings.get("skip_verify")
    return replace(
        endpoint,
        verifies=endpoint.verifies if skips is None else skips is not True,
        authorities=tuple(
            local(name) for name in texts(ca if isinstance(ca, list) else [ca]) if name
        ),
        identities=tuple((local(pair[0]), local(pair[1])) for pair in identities if len(pair) == 2),
        headers=headers,
        has_tags="resolve" in (texts(settings.get("capabilities")) or ["resolve"]),
    )


def _default_scheme(host: str) -> str:
    return "http" if is_loopback(host.partition("/")[0]) else "https"


# CRI-O

REGISTRIES_CONF: Final = "/etc/containers/registries.conf"
_CERTIFICATES: Final = ("/etc/containers/certs.d", "/etc/docker/certs.d")


class CrioAccess(RegistryAccess):
    """The access of a CRI-O whose files are below ``root``, by its command line and environment."""

    def __init__(
        self, flags: Mapping[str, str], environ: Mapping[str, str], root: str, **more: str
    ) -> None:
        super().__init__(environ, **more)
        self._root = root
        home = environ.get("HOME") or "/root"

        def given(name: str) -> str:
            return flags.get(name) or environ.get(f"CONTAINER_{name.replace('-', '_').upper()}", "")

        self._main = given("registries-conf") or REGISTRIES_CONF
        self._folder = given("registries-conf-dir") or f"{REGISTRIES_CONF}.d"
        self._auth_files = [
            f"{environ.get('XDG_RUNTIME_DIR') or '/run'}/containers/auth.json",
            "/run/containers/0/auth.json",
            f"{home}/.config/containers/auth.json",
            f"{home}/.docker/config.json",
        ]
        if named := given("global-auth-file") or self._global_auth_file(flags):
            self._auth_files = [named]

    def meanings(self, text: str) -> list[Reference]:
        reference = parse(text)
        if reference.host != DEFAULT_HOST or text.startswith(DEFAULT_HOST):
            return [reference]
        lists = [
            texts(document.get("unqualified-search-registries"))
            for document, _ in self._documents()
        ]
        hosts = next((hosts for hosts in reversed(lists) if hosts), [DEFAULT_HOST])
        return [parse(f"{host}/{text}") for host in hosts]

    def endpoints(self, reference: Reference) -> list[Endpoint]:
        name = reference.name.rstrip("/")
        tables = {
            text(table.get("prefix")) or text(table.get("location")): (table, file)
            for document, file in self._documents()
            for table in mappings(document.get("registry"))
        }
        fitting = [prefix for prefix in tables if prefix and _end_of(prefix, name)]
        if not fitting:
            return [self._endpoint(name, "", {})]
        prefix = max(fitting, key=len)
        table, file = tables[prefix]
        end = _end_of(prefix, name)
        rest = name[end:]
        endpoints = [
            replace(self._endpoint(text(item.get("location")), rest, item), is_mirror=True)
            for item in mappings(table.get("mirror"))
            if _serves(item, table, is_by_digest=bool(reference.digest))
        ]
        if table.get("blocked") is not True:
            endpoints.append(self._endpoint(text(table.get("location")) or name[:end], rest, table))
        return [replace(item, origin=file) for item in endpoints]

    def login_for(
        self, endpoint: Endpoint, reference: Reference, given: Login | None
    ) -> Login | None:
        """Return the pull's for the host that it names, else those of a login on the node."""
        host = DEFAULT_HOST if endpoint.host == server_of(DEFAULT_HOST) else endpoint.host
        if given is not None and host == reference.host:
            return given
        there = Reference(host, endpoint.repository, "", "")
        for path in self._auth_files:
            with suppress(ConfigError):
                if login := login_in(self._local(path), path, there):
                    return login
        return None

    def _global_auth_file(self, flags: Mapping[str, str]) -> str:
        """Return ``global_auth_file`` of crio.conf(5); empty if it is not set."""
        folder = flags.get("config-dir") or flags.get("d") or "/etc/crio/crio.conf.d"
        main = flags.get("config") or flags.get("c") or "/etc/crio/crio.conf"
        tables = [
            mapping(read_document(self._local(file)), "crio", "image")
            for file in (main, *self._in(folder))
        ]
        named = [text(table.get("global_auth_file")) for table in tables]
        return next(filter(None, reversed(named)), "")

    def _endpoint(self, location: str, rest: str, settings: Mapping[str, Any]) -> Endpoint:
        host, _, repository = f"{location}{rest}".partition("/")
        pairs = [certificates_in(Path(self._local(f"{folder}/{host}"))) for folder in _CERTIFICATES]
        is_insecure = settings.get("insecure") is True
        return Endpoint(
            server_of(host),
            repository=repository,
            prefix=location.partition("/")[2] if rest else "",
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


def _end_of(prefix: str, name: str) -> int:
    """Return where a prefix, perhaps ``*.DOMAIN``, ends in HOST[/PATH]; 0 if it does not match."""
    if prefix.startswith("*."):
        start = name.partition("/")[0].find(prefix[1:])
        end = start + len(prefix) - 1 if start >= 0 else 0
    else:
        end = len(prefix) if name.startswith(prefix) else 0
    return end if name[end : end + 1] in ("", "/", ":") else 0


def _serves(mirror: Mapping[str, Any], table: Mapping[str, Any], *, is_by_digest: bool) -> bool:
    if table.get("mirror-by-digest-only") is True:
        return is_by_digest
    return mirror.get("pull-from-mirror") != ("tag-only" if is_by_digest else "digest-only")
