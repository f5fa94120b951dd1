"""The only place where gRPC statuses become this program's exceptions."""

from __future__ import annotations

from typing import Final, NamedTuple

from pycrictl.base import errors
from pycrictl.base.errors import ConnectError, PycrictlError, RuntimeFault
from pycrictl.base.units import escape, format_bytes, format_duration, quote
from pycrictl.runtime.cri.calls.methods import FUNDAMENTAL
from pycrictl.runtime.cri.calls.obstacle import Obstacle
from pycrictl.runtime.cri.calls.redact import redact_text
from pycrictl.streams.wire import codes

DETAILS_LIMIT_CHARS: Final = 2000


class Status(NamedTuple):
    """How a call ended.

    Attributes:
        obstacle: why the server was not reached or is not a gRPC server, else None.
        limit_bytes: the largest response message that is allowed, if it was exceeded, else 0.
    """

    code: int
    details: str = ""
    obstacle: Obstacle | None = None
    limit_bytes: int = 0


MEANINGS: Final[dict[int, tuple[type[RuntimeFault], str]]] = {
    codes.OK: (RuntimeFault, ""),
    codes.CANCELLED: (errors.Cancelled, "cancelled"),
    codes.UNKNOWN: (RuntimeFault, ""),
    codes.INVALID_ARGUMENT: (errors.Invalid, "invalid argument"),
    codes.DEADLINE_EXCEEDED: (errors.DeadlineExceeded, "the runtime ran out of time"),
    codes.NOT_FOUND: (errors.NotFound, "not found"),
    codes.ALREADY_EXISTS: (errors.AlreadyExists, "already exists"),
    codes.PERMISSION_DENIED: (errors.Denied, "permission denied"),
    codes.RESOURCE_EXHAUSTED: (errors.Exhausted, "a limit is reached"),
    codes.FAILED_PRECONDITION: (errors.FailedPrecondition, "not possible in its state"),
    codes.ABORTED: (RuntimeFault, "aborted"),
    codes.OUT_OF_RANGE: (errors.Invalid, "out of range"),
    codes.UNIMPLEMENTED: (errors.Unimplemented, "not implemented"),
    codes.INTERNAL: (RuntimeFault, "internal error"),
    codes.UNAVAILABLE: (errors.Unavailable, "unavailable"),
    codes.DATA_LOSS: (RuntimeFault, "data loss"),
    codes.UNAUTHENTICATED: (errors.Denied, "not authenticated"),
}
"""For each status code, the exception class and the phrase in its message."""


def to_error(
    status: Status,
    *,
    what: str,
    endpoint: str,
    method: str = "",
    timeout_s: float | None = None,
    timeout_flag: str = "--timeout",
    runtime: str = "",
) -> PycrictlError:
    """Return the exception for a failed call, with a message of one line.

    Args:
        what: what was being done, such as ``pulling image "x"``.
        method: the call's name; may be empty if ``what`` suffices.
        timeout_s: the deadline that this program set, None without one.
        runtime: the runtime's name and version, if known.
    """
    if status.obstacle is not None:
        return connect_error(status.obstacle, endpoint, what=what)
    code = status.code if status.code in MEANINGS else codes.UNKNOWN
    error, phrase = MEANINGS[code]
    text = one_line(status.details)
    who = runtime or f"the runtime at {quote(endpoint)}"
    hint = None
    if code == codes.UNIMPLEMENTED and method in FUNDAMENTAL:
        message = f"{what}: the server at {quote(endpoint)} does not serve the CRI (runtime.v1)"
        hint = "is it the right socket, and is the CRI enabled in the runtime's configuration?"
    elif code == codes.UNIMPLEMENTED:
        prefix = "" if what == method else f"{what}: "
        message = f"{prefix}{who} does not implement {method or f'it: {text}'}"
    elif code == codes.DEADLINE_EXCEEDED and timeout_s is not None:
        message = f"{what}: no answer within {format_duration(timeout_s)}"
        hint = f"the runtime may be busy: allow it more time with {timeout_flag}"
    elif code == codes.UNAVAILABLE:
        message = f"{what}: {who} is unavailable: {text or 'no reason given'}"
        hint = "it may be restarting: try again, and check its service"
    elif status.limit_bytes:
        limit = format_bytes(status.limit_bytes)
        message = f"{what}: the answer is larger than the limit of {limit}"
        hint = "ask for less, with filters or by ID"
        if method == "ExecSync":
            hint = "without --sync, the output has no limit"
    else:
        message = _joined(what, phrase, text)
    return error(message, code=codes.name_of(code), details=status.details, hint=hint)


def connect_error(obstacle: Obstacle, endpoint: str, *, what: str = "") -> ConnectError:
    """Return the exception for a server that cannot be reached.

    ``what`` describes the operation of a client that had reached the server before.
    """
    if what and obstacle.may_pass:
        message = f"{what}: the runtime at {quote(endpoint)} went away: {obstacle.reason}"
    else:
        message = f"{unreachable(endpoint)}{obstacle.reason}"
    return ConnectError(message, hint=obstacle.hint)


def unreachable(endpoint: str) -> str:
    """Return the beginning of the message of every failed connection."""
    return f"cannot reach the runtime at {quote(endpoint)}: "


def one_line(details: str) -> str:
    """Return a server's text as one printable line, without credentials in URLs, cut to length."""
    text = escape(redact_text(" ".join(details.split())))
    if len(text) > DETAILS_LIMIT_CHARS:
        text = text[:DETAILS_LIMIT_CHARS] + "…"
    return text.rstrip(".")


def _joined(what: str, phrase: str, text: str) -> str:
    if not text:
        return f"{what}: {phrase or 'the runtime gave no reason'}"
    # Runtimes often include the phrase themselves: `image "x": not found`.
    return f"{what}: {text}" if phrase in text.lower() else f"{what}: {phrase}: {text}"
