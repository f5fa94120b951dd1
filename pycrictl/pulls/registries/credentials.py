"""Credentials of registries: of a request, and in the files of Docker, podman and the kubelet.

The files are Docker's ``config.json`` and containers-auth.json(5). Their keys name a registry or a
part of it: HOST[:PORT][/PATH], with a scheme and ``/v1/`` perhaps, and in the kubelet's with ``*``
in labels of the host. The longest that fits an image decides.
"""

from __future__ import annotations

import base64
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Final, NamedTuple

from pycrictl._proto import cri_pb2
from pycrictl.base import noderoot
from pycrictl.base.errors import ConfigError
from pycrictl.base.foreign import mapping, parse, parsed, text
from pycrictl.base.units import escape, format_duration, quote
from pycrictl.pulls.reference import DEFAULT_HOST, Reference

HELPER_S: Final = 20.0
"""Time limit of a credential helper."""

SECRET_CHARS: Final = 1 << 20

_DOCKER_HUB: Final = "https://index.docker.io/v1/"
_KEYS: Final = ("username", "password", "auth", "identitytoken", "registrytoken")
_HELPER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


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
    return _credentials(*(text(entry.get(key), SECRET_CHARS) for key in _KEYS))


def _credentials(username: str, password: str, auth: str, *tokens: str) -> Credentials | None:
    if auth and not username:
        with suppress(ValueError):
            pair = base64.b64decode(auth).decode().rstrip("\0")
            username, _, password = pair.partition(":")
    found = Credentials(username, password, *tokens)
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
        self.name = name
        self.is_given = is_given
        self._path = path
        self._runs_helpers = runs_helpers

    def find(self, reference: Reference) -> Login | None:
        """Return the login for an image; raise ConfigError for what a user has to know."""
        if self._runs_helpers and (login := self._ask_helper(reference)) is not None:
            return login
        auths = mapping(self._document.get("auths"))
        found = credentials_in(mapping(auths.get(fitting(auths, reference))))
        return None if found is None else Login(found, self.name)

    @cached_property
    def _document(self) -> dict[str, Any]:
        document, reason = None, "it is not a JSON object"
        try:
            document = parse(noderoot.read_named(self._path))
        except OSError as exc:
            reason = (exc.strerror or str(exc)).lower()
        except ValueError:
            pass
        if not isinstance(document, dict) and self.is_given:
            raise ConfigError(f"cannot read {quote(self.name, 4096)}: {reason}")
        return mapping(document)

    def _ask_helper(self, reference: Reference) -> Login | None:
        helpers = mapping(self._document.get("credHelpers"))
        key = fitting(helpers, reference)
        helper = text(helpers.get(key)) or text(self._document.get("credsStore"))
        if not helper:
            return None
        server = key or (_DOCKER_HUB if reference.host == DEFAULT_HOST else reference.host)
        found = ask_helper(helper, server)
        origin = f"docker-credential-{helper} (of {self.name})"
        return None if found is None else Login(found, origin)


def ask_helper(helper: str, server: str) -> Credentials | None:
    """Ask ``docker-credential-HELPER`` for a server (docker/docker-credential-helpers).

    Raise ConfigError if it fails; None if it knows none.
    """
    program = f"docker-credential-{helper}"
    what = f"the credential helper {quote(program)}"
    if not _HELPER.fullmatch(helper):
        raise ConfigError(f"{what}: its name is invalid")
    done = ask_program(what, [program, "get"], server.encode(), limit_s=HELPER_S)
    if done.returncode:
        said = (done.stdout or done.stderr).decode(errors="replace").strip().partition("\n")[0]
        if "credentials not found" in said.lower():
            return None
        raise ConfigError(f"{what} failed: {escape(said[:200])}")
    answer = parsed(done.stdout)
    username, secret = (text(answer.get(key), SECRET_CHARS) for key in ("Username", "Secret"))
    if username == "<token>":
        return Credentials(identity_token=secret)
    return Credentials(username, secret) if username else None


def ask_program(
    what: str,
    words: Sequence[str],
    question: bytes,
    *,
    limit_s: float,
    environ: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run a program that knows credentials; raise ConfigError if it cannot be run or is late."""
    try:
        return subprocess.run(
            words, input=question, capture_output=True, timeout=limit_s, env=environ
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{what} did not end within {format_duration(limit_s)}") from None
    except (OSError, ValueError) as exc:  # a path may hold a NUL
        reason = (getattr(exc, "strerror", None) or str(exc)).lower()
        raise ConfigError(f"{what} cannot be run: {reason}") from None
