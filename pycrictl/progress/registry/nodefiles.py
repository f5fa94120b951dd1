"""What the files of a node say of registries: mirrors, logins, authorities.

They are read as CRI-O reads them: containers-registries.conf(5) with its drop-ins,
containers-auth.json(5) and containers-certs.d(5). Credential helpers, short names, prefixes with a
wildcard and which mirror is for tags or digests alone are left out.
Paths are those of the process that pulls, and ``root`` leads to its files.
"""

from __future__ import annotations

import base64
import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import tomli

from pycrictl.foreign import mapping, mappings, parsed, text
from pycrictl.progress.reference import DEFAULT_HOST, DEFAULT_TAG, parse
from pycrictl.tls import client_context

REGISTRIES: Final = "/etc/containers/registries.conf"
_LIMIT_BYTES: Final = 1 << 20
_CERTIFICATES: Final = ("/etc/containers/certs.d", "/etc/docker/certs.d")
_DOCKER_HUB: Final = "https://index.docker.io/v1/"


class Location(NamedTuple):
    """Where an image may be had; ``is_insecure``: by plain HTTP and any certificate as well."""

    reference: str
    is_insecure: bool = False
    is_mirror: bool = False


def locations(reference: str, root: str, environ: Mapping[str, str]) -> list[Location]:
    host, path, tag, digest = parse(reference)
    name = f"{host}/{path}"
    end = f"@{digest}" if digest else f":{tag or DEFAULT_TAG}"
    tables = _tables(root, environ)
    fitting = [one for one in tables if one and f"{name}/".startswith(f"{one}/")]
    prefix = max(fitting, key=len, default="")
    table, rest = tables.get(prefix, {}), name[len(prefix) :]
    found = [
        Location(f"{text(one.get('location'))}{rest}{end}", one.get("insecure") is True, True)
        for one in mappings(table.get("mirror"))
        if prefix
    ]
    if prefix and table.get("blocked") is not True:
        moved = f"{text(table.get('location')) or prefix}{rest}{end}"
        found.append(Location(moved, table.get("insecure") is True))
    return found if prefix else [Location(reference)]


def login(reference: str, root: str, environ: Mapping[str, str]) -> tuple[str, str, str] | None:
    host, path, _, _ = parse(reference)
    keys = [f"{host}/{path}"]
    while "/" in keys[-1]:
        keys.append(keys[-1].rpartition("/")[0])
    if host == DEFAULT_HOST:
        keys.append(_DOCKER_HUB)
    for file in _auth_files(environ):
        entries = mapping(parsed(_read(Path(f"{root}{file}"))).get("auths"))
        for key in keys:
            entry = mapping(entries.get(key))
            with suppress(ValueError):
                pair = base64.b64decode(text(entry.get("auth"))).decode()
                user, _, password = pair.rstrip("\0").partition(":")
                found = user, password, text(entry.get("identitytoken"))
                if any(found):
                    return found
    return None


def context_for(host: str, root: str, *, verifies: bool) -> ssl.SSLContext:
    context = client_context(verifies=verifies)
    for folder in _CERTIFICATES:
        for file in sorted(Path(f"{root}{folder}/{host}").glob("*")):
            with suppress(OSError):  # ssl.SSLError is one
                if file.suffix == ".crt":
                    context.load_verify_locations(file)
                elif file.suffix == ".cert":
                    context.load_cert_chain(file, file.with_suffix(".key"))
    return context


def _tables(root: str, environ: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the tables of ``[[registry]]`` by their prefix; a later file's count."""
    main = environ.get("CONTAINERS_REGISTRIES_CONF") or REGISTRIES
    drop_ins = sorted(Path(f"{root}{REGISTRIES}.d").glob("*.conf"))
    found = {}
    for file in (Path(f"{root}{main}"), *drop_ins):
        with suppress(ValueError, RecursionError):
            for table in mappings(tomli.loads(_read(file).decode()).get("registry")):
                found[text(table.get("prefix")) or text(table.get("location"))] = table
    return found


def _auth_files(environ: Mapping[str, str]) -> Iterator[str]:
    if named := environ.get("REGISTRY_AUTH_FILE"):
        yield named
        return
    runtime = environ.get("XDG_RUNTIME_DIR")
    yield f"{runtime}/containers/auth.json" if runtime else "/run/containers/0/auth.json"
    home = environ.get("HOME") or "/root"
    yield f"{home}/.config/containers/auth.json"
    yield f"{home}/.docker/config.json"


def _read(path: Path) -> bytes:
    with suppress(OSError), path.open("rb") as file:
        return file.read(_LIMIT_BYTES)
    return b""
