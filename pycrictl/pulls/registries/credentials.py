"""Credentials of registries: those of a request, of a user's files, and of the kubelet.

First come the files that the user names (``--authfile``, ``--docker-config`` or ``DOCKER_CONFIG``,
``REGISTRY_AUTH_FILE``), then what the kubelet has: its ``config.json``, and its credential provider
plugins (kubelet-credential-provider, exec API v1). The first that fits an image is used.

Files are Docker's ``config.json`` or containers-auth.json(5). Their keys name a registry or a part
of it: HOST[:PORT][/PATH], with a scheme and ``/v1/`` perhaps, and in the kubelet's with ``*`` in
labels of the host. The longest that fits an image decides.
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
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, NamedTuple

from pycrictl._proto import cri_pb2
from pycrictl.base import noderoot
from pycrictl.base.errors import ConfigError, reason_of
from pycrictl.base.foreign import mapping, mappings, parse, parsed, text, texts
from pycrictl.base.units import escape, quote
from pycrictl.node.kubelet import find_kubelet, read_document
from pycrictl.pulls.reference import DEFAULT_HOST, Reference

_SECRET_CHARS: Final = 1 << 20
_DOCKER_HUB: Final = "https://index.docker.io/v1/"
_KEYS: Final = ("username", "password", "auth", "identitytoken", "registrytoken")
_KUBELET_ROOT: Final = "/var/lib/kubelet"
_log = logging.getLogger("pycrictl.registries")


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

    def auth(self) -> cri_pb2.AuthConfig:
        """Return them for a request to pull."""
        return cri_pb2.AuthConfig(**self._asdict())


class Login(NamedTuple):
    """Credentials, and where they come from, in words."""

    credentials: Credentials
    origin: str


def credentials_of(auth: cri_pb2.AuthConfig) -> Credentials | None:
    """Return the credentials of a request to pull; None if it has none."""
    tokens = auth.identity_token, auth.registry_token
    return _credentials(auth.username, auth.password, auth.auth, *tokens)


def credentials_in(entry: Mapping[str, Any]) -> Credentials | None:
    """Return the credentials in an entry of a file or of containerd's settings."""
    return _credentials(*(text(entry.get(key), _SECRET_CHARS) for key in _KEYS))


def _credentials(username: str, password: str, auth: str, *tokens: str) -> Credentials | None:
    if auth and not username:
        with suppress(ValueError):
            pair = base64.b64decode(auth).decode().rstrip("\0")
            username, _, password = pair.partition(":")
    credentials = Credentials(username, password, *tokens)
    return credentials if any(credentials) else None


def fitting(keys: Iterable[str], reference: Reference) -> str:
    """Return the key of a file that fits an image best; empty if none does."""
    names = [(len(_name_of(key)), key) for key in keys if _fits(_name_of(key), reference)]
    return max(names, default=(0, ""))[1]


def _name_of(key: str) -> str:
    """Return HOST[/PATH] of a key."""
    name = re.sub(r"^https?://|/+$|/v[12]/*$", "", re.sub(r"/+$", "", key))
    return re.sub(r"^(?:index|registry-1)\.docker\.io", DEFAULT_HOST, name)


def _fits(name: str, reference: Reference) -> bool:
    host, _, path = name.partition("/")
    # The dots of an address or of a port are those of labels, too: "*" matches within one.
    labels, patterns = reference.host.split("."), host.split(".")
    is_host = len(labels) == len(patterns) and all(map(fnmatchcase, labels, patterns))
    has_port = ":" in host or ":" not in reference.host
    is_fitting = host == reference.host or (bool(host) and is_host and has_port)
    return is_fitting and (not path or f"{reference.path}/".startswith(f"{path}/"))


class Keyring:
    """The credentials of files and, with ``of_node``, of the kubelet, in the order of their use.

    Args:
        files: those that the user names; a folder means its ``config.json``.
        warn: is told why the kubelet's cannot be used.
    """

    def __init__(
        self, files: Sequence[str], warn: Callable[[str], None], *, of_node: bool = False
    ) -> None:
        self._files = files
        self._warn = warn
        self._of_node = of_node
        self._known: dict[str, Login | None] = {}

    def find(self, reference: Reference) -> Login | None:
        """Return the login for an image; each repository is looked for once.

        Raises:
            ConfigError: a file that the user named, or a helper that it names, is broken.
        """
        if reference.name not in self._known:
            self._known[reference.name] = next(filter(None, self._logins(reference)), None)
        return self._known[reference.name]

    def _logins(self, reference: Reference) -> Iterator[Login | None]:
        for name in self._files:
            if os.path.isdir(noderoot.given(name)):
                name = f"{name}/config.json"
            yield login_in(noderoot.given(name), name, reference)
        if self._of_node:
            try:
                yield from _of_kubelet(reference)
            except ConfigError as exc:
                self._warn(exc.message)


def login_in(path: str, name: str, reference: Reference) -> Login | None:
    """Return the login for an image in a file, or of a credential helper that the file names.

    Args:
        path: the file, as this process sees it.
        name: its name for people.

    Raises:
        ConfigError: the file, or a helper (docker/docker-credential-helpers), is broken.
    """
    try:
        document = mapping(parse(noderoot.read_named(path)))
    except (OSError, ValueError) as exc:
        reason = reason_of(exc)
        raise ConfigError(f"cannot read {quote(name, 4096)}: {reason}") from None
    helpers = mapping(document.get("credHelpers"))
    key = fitting(helpers, reference)
    if helper := text(helpers.get(key)) or text(document.get("credsStore")):
        program = f"docker-credential-{helper}"
        server = key or (_DOCKER_HUB if reference.host == DEFAULT_HOST else reference.host)
        answer = ask_program(f"the credential helper {quote(program)}", [program, "get"], server)
        username, secret = (text(answer.get(key), _SECRET_CHARS) for key in ("Username", "Secret"))
        entry = {"username": username, "password": secret}
        if username == "<token>":
            entry = {"identitytoken": secret}
        if login := _login({reference.host: entry}, f"{program} (of {name})", reference):
            return login
    return _login(mapping(document, "auths"), name, reference)


def _login(auths: Mapping[str, Any], origin: str, reference: Reference) -> Login | None:
    """Return the entry that fits an image as a login, and log the place."""
    credentials = credentials_in(mapping(auths.get(fitting(auths, reference))))
    where = f"none in {origin}" if credentials is None else origin
    _log.debug("credentials for %s: %s", reference.name, where)
    return None if credentials is None else Login(credentials, origin)


def ask_program(
    what: str,
    words: Sequence[str],
    question: str,
    environ: Mapping[str, str] | None = None,
    *,
    timeout_s: float = 60.0,
) -> dict[str, Any]:
    """Ask a program that knows credentials; return its JSON object, empty if it knows none.

    The time limit is the kubelet's for its plugins.

    Raises:
        ConfigError: it cannot be run, is late, or fails.
    """
    try:
        done = subprocess.run(
            words, input=question.encode(), capture_output=True, timeout=timeout_s, env=environ
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{what} did not answer within {timeout_s:g} s") from None
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{what} cannot be run: {escape(reason_of(exc))}") from None
    said = (done.stderr or done.stdout).decode(errors="replace").strip().partition("\n")[0]
    if done.returncode and "credentials not found" not in said.lower():  # a helper's words
        raise ConfigError(f"{what} failed ({done.returncode}): {escape(said[:200])}")
    return parsed(done.stdout)


def _of_kubelet(reference: Reference) -> Iterator[Login | None]:
    """Yield what the kubelet has for an image; raise ConfigError if its plugins are broken."""
    kubelet = find_kubelet(Path(noderoot.directory()))
    path = f"{kubelet.root_dir or _KUBELET_ROOT}/config.json"
    if os.path.exists(local := noderoot.locate(path)):
        yield login_in(local, path, reference)
    config = Path(kubelet.provider_config)
    if not (kubelet.provider_config and kubelet.provider_bin_dir) or noderoot.directory() != "/":
        return  # plugins run on the node itself only
    try:
        files = sorted(config.iterdir()) if config.is_dir() else [config]
        documents = [read_document(str(file)) for file in files]
    except OSError as exc:
        reason = reason_of(exc)
        raise ConfigError(f"cannot read {quote(str(config), 4096)}: {reason}") from None
    for document in documents:
        for provider in mappings(document.get("providers")):
            # Those that need the token of a service account are left out.
            needs_token = bool(mapping(provider.get("tokenAttributes")))
            if not needs_token and fitting(texts(provider.get("matchImages")), reference):
                yield _of_plugin(kubelet.provider_bin_dir, provider, reference)


def _of_plugin(folder: str, provider: Mapping[str, Any], reference: Reference) -> Login | None:
    """Ask a plugin, whose response may hold for other images too."""
    name = text(provider.get("name"))
    question = {
        "apiVersion": text(provider.get("apiVersion")),
        "kind": "CredentialProviderRequest",
        "image": reference.name,
    }
    variables = mappings(provider.get("env"))
    own = {text(variable.get("name")): text(variable.get("value")) for variable in variables}
    words, origin = (
        [f"{folder}/{name}", *texts(provider.get("args"))],
        f"the kubelet's plugin {name}",
    )
    answer = ask_program(origin, words, json.dumps(question), {**os.environ, **own})
    return _login(mapping(answer.get("auth")), origin, reference)
