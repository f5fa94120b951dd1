"""The calls of a copy to the agents' API, and for how long failures are retried."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import quote

from pycrictl.base.errors import (
    ConfigError,
    ConnectError,
    CopyError,
    Denied,
    Exhausted,
    Interrupted,
    NotFound,
    PycrictlError,
    RemoteProtocolError,
    StreamError,
    Unavailable,
    UpgradeRefused,
    UsageError,
)
from pycrictl.base.foreign import mapping, parsed, text
from pycrictl.base.units import escape
from pycrictl.cluster.agent.api.names import COPIES, COPY_KIND, GROUP, VERSION
from pycrictl.cluster.kubectl import api_errors
from pycrictl.cluster.kubectl.kubectl_proxy import fetch
from pycrictl.copy.transfer.link import SocketLink, open_link
from pycrictl.copy.transfer.messages import PIECES_PROTOCOL
from pycrictl.streams.target import Target

TIMEOUT_S: Final = 60.0
"""The API server has the same time limit for a request."""

IDLE_S: Final = 30.0
"""How long a connection may be silent during a transfer before it counts as broken."""

GIVE_UP_S: Final = 15 * 60.0
"""The agent removes a session after this time without a request."""

DENIED_S: Final = 30.0
"""How long refusals are retried: an API server that has just started may refuse valid requests."""

_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 10.0
_LASTING: Final = (UsageError, ConfigError, CopyError, NotFound, Interrupted)

T = TypeVar("T")


class Lost(CopyError):
    """The session of a copy or its container no longer exists."""


class Forgotten(Lost):
    """The agent no longer has the session, for example after a restart."""


@dataclass(frozen=True)
class CopyApi:
    target: Callable[[str], Target]
    namespace: str
    pod: str
    idle_s: float = IDLE_S

    @property
    def _path(self) -> str:
        namespace, pod = quote(self.namespace, safe=""), quote(self.pod, safe="")
        return f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/pods/{pod}/{COPIES}"

    def begin(self, spec: dict[str, Any], session: str = "") -> dict[str, Any]:
        """Begin a copy; return its session.

        ``session`` may name it, 32 unguessable hexadecimal digits: it can then be abandoned even if
        the answer is lost.
        """
        kind = {"apiVersion": f"{GROUP}/{VERSION}", "kind": COPY_KIND}
        metadata = {"metadata": {"name": session}} if session else {}
        return self._call("POST", "", {**kind, **metadata, "spec": spec})

    def get(self, session: str) -> dict[str, Any]:
        return self._call("GET", f"/{session}")

    def commit(self, session: str) -> dict[str, Any]:
        return self._call("POST", f"/{session}/commit", {})

    def abandon(self, session: str, *, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
        return self._call("POST", f"/{session}/abandon", {}, timeout_s=timeout_s)

    def open(self, session: str, offset: int) -> SocketLink:
        target = self.target(f"{self._path}/{session}/data?offset={offset}")
        try:
            return open_link(
                target, PIECES_PROTOCOL,
                label="the agent", timeout_s=self.idle_s, idle_s=self.idle_s,
            )  # fmt: skip
        except UpgradeRefused as exc:
            raise error_of(exc.status, exc.body) from exc

    def _call(
        self,
        method: str,
        suffix: str,
        document: dict[str, Any] | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> dict[str, Any]:
        target = self.target(self._path + suffix)
        body = json.dumps(document).encode() if document is not None else b""
        try:
            content = asyncio.run(fetch(target, method, body, timeout_s=timeout_s))
        except UpgradeRefused as exc:
            raise error_of(exc.status, exc.body) from exc
        except StreamError as exc:
            raise ConnectError(exc.message, hint=exc.hint) from exc
        if found := parsed(content):
            return found
        raise RemoteProtocolError("the agent's answer is not an object")


def error_of(status: int, body: bytes) -> PycrictlError:
    """Return the error for an unsuccessful response.

    * Lost: the session or its container no longer exists;
    * CopyError: the copy is not possible; Exhausted: not possible now;
    * Denied; NotFound for the pod; and others as in ``api_errors.of_answer``.
    """
    found = parsed(body)
    is_ours = mapping(found.get("details")).get("kind") == COPIES
    message = escape(text(found.get("message")))
    if status == 403 and message:
        return api_errors.forbidden(message)
    if status == 429:
        return Exhausted(message or "try again later", code="ResourceExhausted", details=message)
    if is_ours and message:
        if status in (404, 410):
            return Forgotten(message) if status == 404 else Lost(message)
        if status == 501:
            return CopyError(message, hint=api_errors.INSTALL_COPIES)
        if status < 500:
            return CopyError(message)
        if status == 503:
            return Unavailable(message, code="Unavailable", details=message)
    return api_errors.of_answer(UpgradeRefused(message, status=status, body=body))


@dataclass
class RetryPolicy:
    """Retries after failures, with growing pauses, until there is progress.

    Attributes:
        note: is called with the first failure after each progress.
        retries: limit of retries without progress; None: for as long as the session exists.
    """

    note: Callable[[str], None]
    retries: int | None = None
    sleep: Callable[[float], None] = time.sleep
    _failures: int = 0
    _since_s: float = 0.0

    def renew(self) -> None:
        self._failures = 0

    def call(self, act: Callable[[], T]) -> T:
        while True:
            try:
                return act()
            except PycrictlError as exc:
                self.back_off(exc)

    def back_off(self, exc: PycrictlError) -> None:
        """Pause after a failure; raise it if it should not be retried."""
        now = time.monotonic()
        if not self._failures:
            self._since_s = now
        self._failures += 1
        limit_s = DENIED_S if isinstance(exc, Denied) else GIVE_UP_S
        is_too_often = self.retries is not None and self._failures > self.retries
        if isinstance(exc, _LASTING) or is_too_often or now - self._since_s > limit_s:
            raise exc
        if self._failures == 1:
            reason = "not now" if isinstance(exc, Exhausted) else "the copy was interrupted"
            self.note(f"{reason}: {exc.message}; retrying")
        self.sleep(min(_FIRST_PAUSE_S * 2 ** (self._failures - 1), _LONGEST_PAUSE_S))
