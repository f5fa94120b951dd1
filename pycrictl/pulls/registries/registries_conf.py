"""The registries of CRI-O: containers-registries.conf(5) and its drop-ins, containers-certs.d(5).

Not supported: aliases of short names, prefixes with a tag or digest, ``SSL_CERT_DIR``, and files of
root's own below ``$HOME/.config``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pycrictl.base import noderoot
from pycrictl.base.errors import ConfigError
from pycrictl.base.foreign import mapping, mappings, text, texts
from pycrictl.pulls.reference import DEFAULT_HOST, Reference, parse
from pycrictl.pulls.registries.credentials import Login, login_in
from pycrictl.pulls.registries.endpoint import Endpoint, RegistryAccess, certificates_in, server_of
from pycrictl.runtime.containerd.config_toml import read_document

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
        lists = [texts(one.get("unqualified-search-registries")) for one, _ in self._documents()]
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
        found = [
            replace(self._endpoint(text(one.get("location")), rest, one), is_mirror=True)
            for one in mappings(table.get("mirror"))
            if _serves(one, table, is_by_digest=bool(reference.digest))
        ]
        if table.get("blocked") is not True:
            found.append(self._endpoint(text(table.get("location")) or name[:end], rest, table))
        return [replace(one, origin=file) for one in found]

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
