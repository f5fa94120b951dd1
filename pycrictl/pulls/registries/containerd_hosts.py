"""The registries of containerd: ``hosts.toml`` by ``config_path``, else ``registry.mirrors``.

Both are settings of its CRI plugin; with a ``config_path``, containerd ignores the rest.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from pycrictl.base import noderoot
from pycrictl.base.foreign import mapping, text, texts
from pycrictl.pulls.reference import Reference
from pycrictl.pulls.registries.credentials import Login, credentials_in
from pycrictl.pulls.registries.endpoint import (
    Endpoint,
    RegistryAccess,
    Scheme,
    certificates_in,
    is_loopback,
    own_endpoint,
    server_of,
)
from pycrictl.runtime.containerd.config_toml import CriSettings, read_document

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
            if any(os.path.isdir(noderoot.locate(str(one))) for one in self._folders):
                self.trap = path
            self._folders = [Path(path)]

    def endpoints(self, reference: Reference) -> list[Endpoint]:
        found = self._of_folders(reference) if self._folders else self._of_mirrors(reference)
        if reference.tag and not reference.digest:
            return [one for one in found if one.has_tags]
        return found

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
            found = certificates_in(Path(noderoot.locate(str(folder))))
            return [replace(own, authorities=found[0], identities=found[1])]
        hosts = [
            (_at(url, reference, mapping(settings)), mapping(settings))
            for url, settings in mapping(document.get("host")).items()
        ]
        server = text(document.get("server"))
        if server:
            own = replace(_at(server, reference, document), is_mirror=False)
        hosts.append((own, document))
        return [
            replace(_configured(one, settings, folder), origin=str(file))
            for one, settings in hosts
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
        found = [
            _at(url, reference, {"override_path": bool(urlsplit(url).path)})
            for url in (url if "://" in url else f"{_default_scheme(url)}://{url}" for url in urls)
        ]
        if all(one.host != host for one in found):
            found.append(replace(own, schemes=schemes))
        return [
            replace(self._with_tls(one), origin=self._origin if one.is_mirror else "")
            for one in found
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
        identities=tuple((local(one[0]), local(one[1])) for one in identities if len(one) == 2),
        headers=headers,
        has_tags="resolve" in (texts(settings.get("capabilities")) or ["resolve"]),
    )


def _default_scheme(host: str) -> str:
    return "http" if is_loopback(host.partition("/")[0]) else "https"
