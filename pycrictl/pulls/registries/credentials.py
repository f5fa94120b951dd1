"""Credentials of registries, from a request (CRI ``AuthConfig``) or from files of the node.

The files are those of containers-auth.json(5) and Docker's ``config.json``. Not supported:
credential helpers.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from pycrictl import noderoot
from pycrictl._proto import cri_pb2
from pycrictl.foreign import mapping, parsed, text
from pycrictl.progress.reference import DEFAULT_HOST, Reference

_DOCKER_HUB: Final = "https://index.docker.io/v1/"


class Credentials(NamedTuple):
    """Credentials for a registry; never shown."""

    username: str = ""
    password: str = ""
    identity_token: str = ""
    registry_token: str = ""

    def __repr__(self) -> str:
        return "Credentials(…)"

    @property
    def basic(self) -> str:
        """The ``Authorization`` of Basic authentication (RFC 7617); empty without a user."""
        pair = base64.b64encode(f"{self.username}:{self.password}".encode()).decode()
        return f"Basic {pair}" if self.username else ""


def credentials_of(auth: cri_pb2.AuthConfig) -> Credentials | None:
    """Return the credentials of a request to pull; None if it has none."""
    username, password = auth.username, auth.password
    if auth.auth and not username:
        username, password = _pair(auth.auth)
    found = Credentials(username, password, auth.identity_token, auth.registry_token)
    return found if any(found) else None


def login(reference: Reference, environ: Mapping[str, str], root: str) -> Credentials | None:
    """Return the credentials of a login on the node, for the longest fitting name."""
    keys = [reference.name]
    while "/" in keys[-1]:
        keys.append(keys[-1].rpartition("/")[0])
    if reference.host == DEFAULT_HOST:
        keys.append(_DOCKER_HUB)
    for file in _auth_files(environ):
        entries: dict[str, object] = {}
        with suppress(OSError):
            entries = mapping(parsed(noderoot.read_named(f"{root}{file}")).get("auths"))
        for entry in (mapping(entries.get(key)) for key in keys):
            found = Credentials(*_pair(text(entry.get("auth"))), text(entry.get("identitytoken")))
            if any(found):
                return found
    return None


def _pair(encoded: str) -> tuple[str, str]:
    with suppress(ValueError):
        username, _, password = base64.b64decode(encoded).decode().rstrip("\0").partition(":")
        return username, password
    return "", ""


def _auth_files(environ: Mapping[str, str]) -> Iterator[str]:
    if named := environ.get("REGISTRY_AUTH_FILE"):
        yield named
        return
    runtime = environ.get("XDG_RUNTIME_DIR")
    yield f"{runtime}/containers/auth.json" if runtime else "/run/containers/0/auth.json"
    home = environ.get("HOME") or "/root"
    yield f"{home}/.config/containers/auth.json"
    yield f"{home}/.docker/config.json"
