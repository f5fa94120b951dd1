"""One call to the runtime: its log lines, its answer, and what is told when it fails."""

from __future__ import annotations

import logging
import time
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from google.protobuf.message import DecodeError

from pycrictl._proto import cri_pb2
from pycrictl.cri.calls.diagnose import Finding, diagnose
from pycrictl.cri.calls.errmap import Status, one_line, to_error
from pycrictl.cri.calls.methods import Method, deadline_s
from pycrictl.cri.calls.redact import describe
from pycrictl.errors import ConnectError, PycrictlError, RemoteProtocolError
from pycrictl.units import quote
from pycrictl.wire import codes

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from pycrictl.cri.calls.tracing import Tracer

log = logging.getLogger("pycrictl.cri")

POST_MORTEM_TIMEOUT_S: Final = 1.0

# gRPC adds the deadline to the time of day; what lies beyond any machine's life overflows it.
_LONGEST_TIMEOUT_S: Final = 1e9


class _Default(Enum):
    TIMEOUT = "as the call's own rule says"


DEFAULT: Final = _Default.TIMEOUT
"""The deadline of ``methods.deadline_s``; None stands for no deadline."""

Timeout = float | None | Literal[_Default.TIMEOUT]


class Caller(Protocol):
    """What a call needs of the client that makes it; see ``CriClient``."""

    path: str
    endpoint: str
    timeout_s: float
    runtime: str
    tracer: Tracer | None


class Attempt:
    """One call: what it was about, for its log lines and its error."""

    def __init__(
        self,
        client: Caller,
        method: Method,
        request: Message,
        timeout_s: Timeout,
        what: str | None,
        timeout_flag: str,
    ) -> None:
        if timeout_s is DEFAULT:
            timeout_s = deadline_s(method.name, request, client.timeout_s)
        self.client = client
        self.method = method
        self.deadline_s = None if timeout_s is None else min(timeout_s, _LONGEST_TIMEOUT_S)
        self.what = what if what is not None else method.name
        self.timeout_flag = timeout_flag
        self.started = time.monotonic()
        self.span = client.tracer.begin(method.name) if client.tracer is not None else None
        self.logs = log.isEnabledFor(logging.DEBUG)
        if self.logs:
            log.debug("> %s %s", method.name, describe(request))

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with the request."""
        if self.client.tracer is None or self.span is None:
            return ()
        return (self.client.tracer.context(self.span),)

    def end(self, error: str = "") -> None:
        """Ends the call's span, if there is one."""
        if self.client.tracer is not None and self.span is not None:
            self.client.tracer.end(self.span, error)

    def decoded(self, answer: bytes) -> Any:
        try:
            message = self.method.response_type.FromString(answer)
        except DecodeError:
            name = self.method.response_type.DESCRIPTOR.name
            raise RemoteProtocolError(
                f"{self.what}: the answer of {quote(self.client.endpoint)} is not a valid {name}"
            ) from None
        if self.logs:
            log.debug(
                "< %s after %.0f ms, %d bytes: %s",
                self.method.name,
                (time.monotonic() - self.started) * 1000,
                len(answer),
                describe(message),
            )
        if isinstance(message, cri_pb2.VersionResponse):
            name_and_version = f"{message.runtime_name} {message.runtime_version}"
            self.client.runtime = one_line(name_and_version)
        return message

    def failure(self, status: Status) -> PycrictlError:
        """What to tell of a failed call, after a post-mortem when the connection is in doubt."""
        error = self._error(status)
        self.end(error.message)
        return error

    def _error(self, status: Status) -> PycrictlError:
        elapsed_s = time.monotonic() - self.started
        if self.logs:
            log.debug("< %s failed: %s", self.method.name, _described(status))
        if status.code in (codes.UNAVAILABLE, codes.DEADLINE_EXCEEDED):
            found = diagnose(self.client.path, POST_MORTEM_TIMEOUT_S)
            if found.finding is Finding.UNREACHABLE:
                where = quote(self.client.endpoint)
                return ConnectError(
                    f"{self.what}: the runtime at {where} went away: {found.reason}",
                    hint=found.hint,
                )
            if found.finding is not Finding.ALIVE:
                where = unreachable(self.client.endpoint)
                return ConnectError(where + found.reason, hint=found.hint)
        return to_error(
            status,
            what=self.what,
            endpoint=self.client.endpoint,
            method=self.method.name,
            # A deadline that the runtime set itself and that passed earlier is not ours.
            timeout_s=self._deadline_passed(elapsed_s),
            timeout_flag=self.timeout_flag,
            runtime=self.client.runtime,
        )

    def _deadline_passed(self, elapsed_s: float) -> float | None:
        if self.deadline_s is not None and elapsed_s >= 0.9 * self.deadline_s:
            return self.deadline_s
        return None


def unreachable(endpoint: str) -> str:
    """How the message of every failed connection begins."""
    return f"cannot reach the runtime at {quote(endpoint)}: "


def _described(status: Status) -> str:
    return f"{codes.name_of(status.code)} {one_line(status.details)}"
