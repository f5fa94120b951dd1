"""Credentials of registries: those of a request, of a user's files, and of the kubelet.

First come the files that the user names (``--authfile``, ``--docker-config`` or ``DOCKER_CONFIG``,
``REGISTRY_AUTH_FILE``), then what the kubelet has: its ``config.json``, and its credential provider
plugins (kubelet-credential-provider, exec API v1). The first that fits an image is used.

Files are Docker's ``config.json`` or containers-auth.json(5). Their keys name a registry or a part
of it: HOST[:PORT][/PATH], perhaps with a scheme and ``/v1/``; in those of the kubelet, the host's
labels may contain ``*``. The longest key that fits an image decides.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from pycrictl._proto import cri_pb2
from pycrictl.base import noderoot
from pycrictl.base.errors import ConfigError, reason_of
from pycrictl.base.foreign import mapping, mappings, parse, parsed, text, texts
from pycrictl.base.units import escape, quote, quote_path
from pycrictl.node.kubelet import find_kubelet, read_document
from pycrictl.pulls.reference import DEFAULT_HOST, Reference

_KEYS: Final = ("username", "password", "identitytoken", "registrytoken", "auth")
_log = logging.getLogger("pycrictl.registries")


class Credentials(NamedTuple):
    """Credentials for a registry, which are never shown, and where they come from, in words."""

    username: str = ""
    password: str = ""
    identity_token: str = ""
    registry_token: str = ""
    origin: str = ""

    def __repr__(self) -> str:
        return "Credentials(…)"

    @property
    def basic(self) -> str:
        """The ``Authorization`` of Basic authentication (RFC 7617); empty without a user."""
        pair = base64.b64encode(f"{self.username}:{self.password}".encode()).decode()
        return f"Basic {pair}" if self.username else ""

    def auth(self) -> cri_pb2.AuthConfig:
        """Return them for a request to pull."""
        secrets = dict(zip(self._fields[:4], self, strict=False))
        return cri_pb2.AuthConfig(**secrets)


def credentials_of(auth: cri_pb2.AuthConfig) -> Credentials | None:
    """Return the credentials of a request to pull; None if it has none."""
    secrets = Credentials(auth.username, auth.password, auth.identity_token, auth.registry_token)
    return _decoded(secrets, auth.auth)


def _decoded(credentials: Credentials, auth: str) -> Credentials | None:
    """Return credentials with the user and password that ``auth`` holds; None if all are empty."""
    if auth and not credentials.username:
        with suppress(ValueError):
            username, _, password = base64.b64decode(auth).decode().rstrip("\0").partition(":")
            credentials = credentials._replace(username=username, password=password)
    return credentials if any(credentials[:4]) else None


def fitting(keys: Iterable[str], reference: Reference) -> str:
    """Return the key of a file that fits an image best, the longest one; empty if none does."""
    best = (0, "", "")
    for key in keys:
        name = re.sub(r"^https?://|(/v[12])?/*$", "", key)
        name = re.sub(r"^(?:index|registry-1)\.docker\.io", DEFAULT_HOST, name)
        pattern = re.escape(name).replace(r"\*", "[^.:/]*")  # a "*" matches within one label
        if re.fullmatch(f"{pattern}(/.*)?", reference.name):
            best = max(best, (len(name), name, key))
    return best[2]


@dataclass(eq=False)
class Keyring:
    """The credentials of files and of the kubelet, in the order of their use."""

    files: Sequence[str]  # those that the user names; a folder means its config.json
    warn: Callable[[str], None]  # called with why the kubelet's cannot be used
    of_node: bool = False  # whether the kubelet's are used
    _known: dict[str, Credentials | None] = field(default_factory=dict, init=False)

    def find(self, reference: Reference) -> Credentials | None:
        """Return the credentials for an image; each repository is looked up once.

        ``ConfigError`` says what is wrong with a credential helper, or a file that the user named.
        """
        if reference.name not in self._known:
            self._known[reference.name] = next(filter(None, self._all(reference)), None)
        return self._known[reference.name]

    def _all(self, reference: Reference) -> Iterator[Credentials | None]:
        for name in self.files:
            path = noderoot.given(name)
            tail = "/config.json" if os.path.isdir(path) else ""
            yield credentials_in(path + tail, name + tail, reference)
        if self.of_node:
            try:
                yield from _of_kubelet(reference)
            except ConfigError as exc:
                self.warn(exc.message)


def credentials_in(path: str, name: str, reference: Reference) -> Credentials | None:
    """Return an image's credentials from a file, or from a helper that the file names.

    ``path`` is where this process finds the file, ``name`` its name in messages. ``ConfigError``
    says what is wrong with the file or the helper (docker/docker-credential-helpers).
    """
    try:
        document = mapping(parse(noderoot.read_named(path)))
    except (OSError, ValueError) as exc:
        raise ConfigError(f"cannot read {quote_path(name)}: {reason_of(exc)}") from None
    credentials, helpers = None, mapping(document.get("credHelpers"))
    key = fitting(helpers, reference)
    if helper := text(helpers.get(key)) or text(document.get("credsStore")):
        program = f"docker-credential-{helper}"
        host = reference.host
        server = key or ("https://index.docker.io/v1/" if host == DEFAULT_HOST else host)
        title = f"the credential helper {quote(program)}"
        answer = ask_program(title, [program, "get"], server, os.environ)
        entry = {"username": answer.get("Username"), "password": answer.get("Secret")}
        if entry["username"] == "<token>":
            entry = {"identitytoken": answer.get("Secret")}
        credentials = _chosen({host: entry}, f"{program} (of {name})", reference)
    return credentials or _chosen(mapping(document, "auths"), name, reference)


def _chosen(auths: Mapping[str, Any], origin: str, reference: Reference) -> Credentials | None:
    """Return the entry that fits an image, and log the place."""
    entry = mapping(auths.get(fitting(auths, reference)))
    user, secret, identity, registry, auth = (text(entry.get(key), 1 << 20) for key in _KEYS)
    credentials = _decoded(Credentials(user, secret, identity, registry, origin), auth)
    none = "" if credentials else "none in "
    _log.debug("credentials for %s: %s%s", reference.name, none, origin)
    return credentials


def ask_program(
    title: str, argv: list[str], question: str, env: Mapping[str, str], *, timeout_s: float = 60.0
) -> dict[str, Any]:
    """Ask a credential helper or plugin; return its JSON object, empty if it knows no credentials.

    The time limit is the kubelet's for its plugins. ``ConfigError`` says why there is no answer.
    """
    try:
        done = subprocess.run(
            argv, input=question.encode(), capture_output=True, timeout=timeout_s, env=env
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{title} did not answer within {timeout_s:g} s") from None
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{title} cannot be run: {escape(reason_of(exc))}") from None
    said = (done.stderr or done.stdout).decode(errors="replace").strip().partition("\n")[0]
    if done.returncode and "credentials not found" not in said.lower():  # a helper's words
        raise ConfigError(f"{title} failed ({done.returncode}): {escape(said[:200])}")
    return parsed(done.stdout)


def _of_kubelet(reference: Reference) -> Iterator[Credentials | None]:
    """Yield what the kubelet has for an image; raise ConfigError if its plugins are broken."""
    kubelet = find_kubelet(Path(noderoot.directory()))
    path = f"{kubelet.root_dir or '/var/lib/kubelet'}/config.json"
    if os.path.exists(local := noderoot.locate(path)):
        yield credentials_in(local, path, reference)
    config, folder = kubelet.provider_config, kubelet.provider_bin_dir
    if not (config and folder) or noderoot.directory() != "/":
        return  # plugins run on the node itself only
    try:
        files = sorted(Path(config).iterdir()) if os.path.isdir(config) else [config]
        documents = [read_document(str(file)) for file in files]
    except OSError as exc:
        raise ConfigError(f"cannot read {quote_path(config)}: {reason_of(exc)}") from None
    for document in documents:
        for provider in mappings(document.get("providers")):
            # Those that need the token of a service account are left out.
            needs_token = bool(mapping(provider.get("tokenAttributes")))
            if not needs_token and fitting(texts(provider.get("matchImages")), reference):
                yield _of_plugin(folder, provider, reference)


def _of_plugin(
    folder: str, provider: Mapping[str, Any], reference: Reference
) -> Credentials | None:
    """Ask a plugin; its response may be for other images as well."""
    name = text(provider.get("name"))
    version, kind = text(provider.get("apiVersion")), "CredentialProviderRequest"
    question = {"apiVersion": version, "kind": kind, "image": reference.name}
    variables = mappings(provider.get("env"))
    own = {text(variable.get("name")): text(variable.get("value")) for variable in variables}
    words = [f"{folder}/{name}", *texts(provider.get("args"))]
    origin = f"the kubelet's plugin {name}"
    answer = ask_program(origin, words, json.dumps(question), {**os.environ, **own})
    return _chosen(mapping(answer.get("auth")), origin, reference)
