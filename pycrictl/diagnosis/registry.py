"""Tests the connection from this node to a server of a registry, step by step.

The steps are DNS, TCP, TLS, then HTTP by the OCI distribution specification: access, and the first
byte of a manifest. They take the runtime's route: its HTTP proxy, and the CAs that it trusts.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from pycrictl.base.errors import ConfigError
from pycrictl.base.units import format_duration
from pycrictl.pulls.reference import Reference
from pycrictl.pulls.registries.credentials import Credentials, Keyring
from pycrictl.pulls.registries.mirrors import Endpoint, RegistryAccess
from pycrictl.pulls.registries.registry_client import (
    NO_ANSWER,
    RegistryAnswer,
    RegistryClient,
    challenge_of,
    reason_of,
)
from pycrictl.runtime.cri.calls.redact import redact_text

CREDENTIALS: Final = "the credentials of "
"""How the text of a step begins if the registry refused or accepted credentials."""


class Step(NamedTuple):
    """One step of a test; ``is_good`` is False if it failed, None if it was left out."""

    name: str
    is_good: bool | None
    text: str


class Route(NamedTuple):
    """The steps to a server, up to the first failure.

    Attributes:
        registry: HOST in the names of the images that the server has.
        url: the server's URL.
        is_mirror: it serves another registry's images.
        steps: the steps that were taken or left out.
        skew_s: how far this node's clock is ahead of the server's; None if unknown.
        proxy: the URL of the HTTP proxy in between, without a password; empty if none.
        credentials: where a pull's credentials come from, in words; empty if it has none.
        origin: the node's file that names the server; empty for the registry itself.
    """

    registry: str
    url: str
    is_mirror: bool
    steps: tuple[Step, ...]
    skew_s: float | None = None
    proxy: str = ""
    credentials: str = ""
    origin: str = ""

    @property
    def failure(self) -> Step | None:
        return next((step for step in self.steps if step.is_good is False), None)

    @property
    def works(self) -> bool:
        return self.failure is None and any(step.is_good for step in self.steps)


class Trial:
    """A test of one server.

    Args:
        is_named: the user named the repository, so it must exist.
        step_s: the time limit of a step.

    Raises:
        ValueError: the server cannot be tested: its address is invalid, or the proxy is no HTTP
            proxy.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        access: RegistryAccess,
        reference: Reference,
        keyring: Keyring | None = None,
        *,
        is_named: bool,
        step_s: float = 2.0,
    ) -> None:
        self._endpoint = endpoint
        self._step_s = step_s
        self._access = access
        self._keyring = keyring
        self._credentials: Credentials | None = None
        self._reference = reference
        self._must_exist = is_named and not endpoint.is_mirror
        self._client = RegistryClient(endpoint, access)
        self._proxy = self._client.proxy
        parts = urlsplit(self._proxy or f"{self._client.scheme}://{endpoint.host}")
        if parts.scheme not in ("http", "https"):
            raise ValueError(f"not tested: {parts.scheme} proxies are not supported")
        self._host = parts.hostname or ""
        self._port = parts.port or (80 if parts.scheme == "http" else 443)
        self._skew_s: float | None = None
        self._steps: list[Step] = []
        self._current = "dns"
        self._began_at = time.monotonic()

    def run(self) -> None:
        """Run the steps; another thread may call ``route`` meanwhile."""
        steps = {
            "dns": self._dns,
            "tcp": self._tcp,
            "tls": self._tls,
            "auth": self._auth,
            "first byte": self._first_byte,
        }
        self._began_at = time.monotonic()
        for self._current, make in steps.items():
            began = time.monotonic()
            try:
                is_good, text = make()
            except ConfigError as exc:
                is_good, text = False, exc.message
            except (OSError, ValueError) as exc:
                is_good, text = False, reason_of(exc)
            took = format_duration(max(round(time.monotonic() - began, 3), 0.001))
            text = f"{text} ({took})" if is_good else text
            self._steps.append(Step(self._current, is_good, text))
            if is_good is False:
                break
        self._current = ""

    def route(self) -> Route:
        """Return what is known so far."""
        steps, endpoint = tuple(self._steps), self._endpoint
        if self._current == "dns" and time.monotonic() - self._began_at >= self._step_s:
            steps += (Step("dns", False, NO_ANSWER),)  # nothing can interrupt it
        elif self._current:
            steps += (Step(self._current, None, "there was no time left for this step"),)
        return Route(
            self._reference.host,
            endpoint.url(self._client.scheme),
            endpoint.is_mirror,
            steps,
            self._skew_s,
            redact_text(self._proxy),
            self._credentials.origin if self._credentials is not None else "",
            endpoint.origin,
        )

    def _dns(self) -> tuple[bool | None, str]:
        answers = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(answer[4][0]) for answer in answers))
        return True, ", ".join(addresses[:3])

    def _tcp(self) -> tuple[bool | None, str]:
        with socket.create_connection((self._host, self._port), timeout=self._step_s) as connection:
            where = ", the proxy" if self._proxy else ""
            return True, f"{connection.getpeername()[0]} port {self._port}{where}"

    def _tls(self) -> tuple[bool | None, str]:
        if self._endpoint.schemes != ("http",):
            self._get("/")  # it decides which of several schemes the server speaks
        if self._client.scheme == "http":
            return None, "plain HTTP"
        is_checked = self._endpoint.verifies
        return True, "trusted certificate" if is_checked else "certificate not checked"

    def _auth(self) -> tuple[bool | None, str]:
        given = self._keyring.find(self._reference) if self._keyring is not None else None
        self._credentials = self._access.credentials_for(self._endpoint, self._reference, given)
        if self._credentials is not None:
            self._client = RegistryClient(self._endpoint, self._access, self._credentials)
        answer = self._get("/")
        status, headers, _ = answer
        with suppress(TypeError, ValueError):
            self._skew_s = time.time() - parsedate_to_datetime(headers.get("Date", "")).timestamp()
        if status == 200:
            return True, "no login needed"
        if status != 401:
            problem = "this is not a registry, or it is broken"
            return False, f"/v2/ is answered with {status}: {problem}"
        repository = self._endpoint.repository
        scope = f"repository:{repository}:pull" if repository else ""
        is_logged_in = self._client.log_in(
            answer, until=time.monotonic() + self._step_s, scope=scope
        )
        challenge = challenge_of(answer)
        if is_logged_in and challenge.kind == "basic":
            is_logged_in = self._get("/").status != 401
        if self._credentials is not None:
            verb = "accepted" if is_logged_in else "refused"
            return is_logged_in, f"{CREDENTIALS}{self._credentials.origin} are {verb}"
        if not is_logged_in:
            return None, "a login is needed: the next steps are skipped"
        return True, f"{urlsplit(challenge.realm).netloc} gives a token without a login"

    def _first_byte(self) -> tuple[bool | None, str]:
        reference = self._reference
        version = reference.digest or reference.tag
        if not self._endpoint.repository:
            target = "/"
        else:
            target = f"manifests/{version}" if version else "tags/list"
        status, _, _ = self._get(target)
        if status in (401, 403):
            return None, "a login is needed"
        if status == 404:
            problem = f"it does not have {self._endpoint.repository}{version and f':{version}'}"
            return (False, problem) if self._must_exist else (None, problem)
        return status < 500, f"status {status}"

    def _get(self, target: str) -> RegistryAnswer:
        return self._client.get(target, until=time.monotonic() + self._step_s)
