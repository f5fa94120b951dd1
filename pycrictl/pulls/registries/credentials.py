"""Credentials of registries: of a request, and in the files of Docker, podman and the kubelet.

The files are Docker's ``config.json`` and containers-auth.json(5). Their keys name a registry or a
part of it: HOST[:PORT][/PATH], with a scheme and ``/v1/`` perhaps, and in the kubelet's with ``*``
in labels of the host. The longest that fits an image decides.
"""

from __future__ import annotations

import base64
import re
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from pycrictl import noderoot
from pycrictl._proto import cri_pb2
from pycrictl.errors import ConfigError
from pycrictl.foreign import mapping, parse, parsed, text
from pycrictl.progress.reference import DEFAULT_HOST, Reference
from pycrictl.units import escape, format_duration, quote

HELPER_S: Final = 20.0
"""Time limit of a credential helper."""

_DOCKER_HUB: Final = "https://index.docker.io/v1/"
_HELPER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_TOKEN_USER: Final = "<token>"


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
    username, password = auth.username, auth.password
    if auth.auth and not username:
        username, password = _pair(auth.auth)
    found = Credentials(username, password, auth.identity_token, auth.registry_token)
    return found if any(found) else None


def fitting(keys: Iterable[str], reference: Reference) -> str:
    """Return the key of a file that fits an image best; empty if none does."""
    found = [(len(_name_of(key)), key) for key in keys if _fits(_name_of(key), reference)]
    return max(found, default=(0, ""))[1]


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


class AuthFile:
    """The logins in one file.

    Args:
        path: the file, as this process sees it.
        name: its name for people.
        is_given: the user named it, so it must be readable.
        runs_helpers: it may name credential helpers, which the kubelet's must not.
    """

    def __init__(
        self, path: str, name: str, *, is_given: bool = False, runs_helpers: bool = True
    ) -> None:
        self.path = path
        self.name = name
        self.is_given = is_given
        self._runs_helpers = runs_helpers
        self._document: dict[str, Any] | None = None

    def find(self, reference: Reference) -> Login | None:
        """Return the login for an image; raise ConfigError for what a user has to know."""
        if self._document is None:
            self._document = self._read()
        document = self._document
        if self._runs_helpers and (login := self._ask_helper(document, reference)) is not None:
            return login
        auths = mapping(document.get("auths"))
        entry = mapping(auths.get(fitting(auths, reference)))
        pair = text(entry.get("username")), text(entry.get("password"))
        encoded = text(entry.get("auth"), noderoot.FILE_LIMIT_BYTES)
        if encoded and not pair[0]:
            pair = _pair(encoded)
        found = Credentials(*pair, *(text(entry.get(key)) for key in _TOKENS))
        return Login(found, self.name) if any(found) else None

    def _read(self) -> dict[str, Any]:
        try:
            content = noderoot.read_named(self.path)
        except OSError as exc:
            if not self.is_given:
                return {}
            reason = (exc.strerror or str(exc)).lower()
            raise ConfigError(f"cannot read {quote(self.name, 4096)}: {reason}") from None
        with suppress(ValueError):
            if isinstance(document := parse(content), dict):
                return document
        if self.is_given:
            raise ConfigError(f"{quote(self.name, 4096)}: it is not a JSON object")
        return {}

    def _ask_helper(self, document: Mapping[str, Any], reference: Reference) -> Login | None:
        helpers = mapping(document.get("credHelpers"))
        key = fitting(helpers, reference)
        helper = text(helpers.get(key)) or text(document.get("credsStore"))
        if not helper:
            return None
        server = key or (_DOCKER_HUB if reference.host == DEFAULT_HOST else reference.host)
        credentials = ask_helper(helper, server)
        origin = f"docker-credential-{helper} (of {self.name})"
        return None if credentials is None else Login(credentials, origin)


_TOKENS: Final = ("identitytoken", "registrytoken")


def ask_helper(helper: str, server: str) -> Credentials | None:
    """Ask ``docker-credential-HELPER`` for a server (docker/docker-credential-helpers).

    Raise ConfigError if it fails; None if it knows none.
    """
    program = f"docker-credential-{helper}"
    what = f"the credential helper {quote(program)}"
    if not _HELPER.fullmatch(helper):
        raise ConfigError(f"{what}: its name is invalid")
    try:
        done = subprocess.run(
            [program, "get"], input=server.encode(), capture_output=True, timeout=HELPER_S
        )
    except FileNotFoundError:
        raise ConfigError(f"{what} is not installed") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{what} did not end within {format_duration(HELPER_S)}") from None
    except OSError as exc:
        raise ConfigError(f"{what} cannot be run: {(exc.strerror or str(exc)).lower()}") from None
    if done.returncode:
        said = (done.stdout or done.stderr).decode(errors="replace").strip()
        if "credentials not found" in said.lower():
            return None
        raise ConfigError(f"{what} failed: {escape(said.partition(chr(10))[0][:200])}")
    answer = parsed(done.stdout)
    username, secret = (text(answer.get(key), 1 << 20) for key in ("Username", "Secret"))
    if username == _TOKEN_USER:
        return Credentials(identity_token=secret)
    return Credentials(username, secret) if username else None


def _pair(encoded: str) -> tuple[str, str]:
    with suppress(ValueError):
        username, _, password = base64.b64decode(encoded).decode().rstrip("\0").partition(":")
        return username, password
    return "", ""
