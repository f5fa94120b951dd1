"""gRPC statuses become this program's exceptions, here and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import grpc

from pycrictl import errors
from pycrictl.cri.redact import redact_text
from pycrictl.errors import ConnectError, PycrictlError, RuntimeFault
from pycrictl.units import escape, format_bytes, format_duration, quote

DETAILS_LIMIT_CHARS: Final = 2000


class Kind(NamedTuple):
    """What a status becomes: its class, its name as Go writes it, its phrase in a message."""

    error: type[RuntimeFault]
    code: str
    phrase: str


KINDS: Final = {
    grpc.StatusCode.OK: Kind(RuntimeFault, "OK", ""),
    grpc.StatusCode.CANCELLED: Kind(errors.Cancelled, "Canceled", "cancelled"),
    grpc.StatusCode.UNKNOWN: Kind(RuntimeFault, "Unknown", ""),
    grpc.StatusCode.INVALID_ARGUMENT: Kind(errors.Invalid, "InvalidArgument", "invalid argument"),
    grpc.StatusCode.DEADLINE_EXCEEDED: Kind(
        errors.DeadlineExceeded, "DeadlineExceeded", "the runtime ran out of time"
    ),
    grpc.StatusCode.NOT_FOUND: Kind(errors.NotFound, "NotFound", "not found"),
    grpc.StatusCode.ALREADY_EXISTS: Kind(errors.AlreadyExists, "AlreadyExists", "already exists"),
    grpc.StatusCode.PERMISSION_DENIED: Kind(errors.Denied, "PermissionDenied", "permission denied"),
    grpc.StatusCode.RESOURCE_EXHAUSTED: Kind(
        errors.Exhausted, "ResourceExhausted", "a limit is reached"
    ),
    grpc.StatusCode.FAILED_PRECONDITION: Kind(
        errors.FailedPrecondition, "FailedPrecondition", "not possible in its state"
    ),
    grpc.StatusCode.ABORTED: Kind(RuntimeFault, "Aborted", "aborted"),
    grpc.StatusCode.OUT_OF_RANGE: Kind(errors.Invalid, "OutOfRange", "out of range"),
    grpc.StatusCode.UNIMPLEMENTED: Kind(errors.Unimplemented, "Unimplemented", "not implemented"),
    grpc.StatusCode.INTERNAL: Kind(RuntimeFault, "Internal", "internal error"),
    grpc.StatusCode.UNAVAILABLE: Kind(errors.Unavailable, "Unavailable", "unavailable"),
    grpc.StatusCode.DATA_LOSS: Kind(RuntimeFault, "DataLoss", "data loss"),
    grpc.StatusCode.UNAUTHENTICATED: Kind(errors.Denied, "Unauthenticated", "not authenticated"),
}

# What gRPC says of a call that this program itself has cancelled.
_OWN_CANCELLATIONS: Final = ("Locally cancelled by application!", "Channel closed!")

# gRPC's own words around the reason of a failed connection.
_CONNECT_PREFIX: Final = (
    r"failed to connect to all addresses; last error: (?:[A-Z_]+: )?(?:unix:\S+: )?"
)
_TOO_LARGE: Final = r"Received message larger than max \((\d+) vs\. (\d+)\)"
_HTTP_STATUS: Final = r"Received http2 :?(?:header with )?status: (\d+)"
_UNKNOWN_SERVICE: Final = r"unknown service (\S+)"


def to_error(
    exc: grpc.RpcError,
    *,
    what: str,
    endpoint: str,
    method: str = "",
    timeout_s: float | None = None,
    timeout_flag: str = "--timeout",
    runtime: str = "",
) -> PycrictlError:
    """The exception for a failed call, with a message of one line.

    Args:
        exc: what grpc raised; a call that is an error as well, as all but hand-made ones are.
        what: what was being done, such as ``pulling image "x"``.
        endpoint: of the server that was called.
        method: the call's name, where it is not to be read from ``what``.
        timeout_s: the deadline that this program set, None without one.
        timeout_flag: the flag that sets it.
        runtime: the runtime's name and version, where known.
    """
    code, details = grpc.StatusCode.UNKNOWN, ""
    if isinstance(exc, grpc.Call):
        code, details = exc.code() or code, exc.details() or ""
    kind = KINDS[code]
    text = "" if details in _OWN_CANCELLATIONS else one_line(details)
    who = runtime or f"the runtime at {quote(endpoint)}"
    if match := re.match(_HTTP_STATUS, details):
        return ConnectError(
            f"{quote(endpoint)} is no gRPC server: it answers with the HTTP status {match[1]}",
            hint="name the socket of a container runtime with -r/--runtime-endpoint",
        )
    hint = None
    if code is grpc.StatusCode.UNIMPLEMENTED:
        message, hint = _not_implemented(what, method, who, endpoint, text)
    elif code is grpc.StatusCode.DEADLINE_EXCEEDED and timeout_s is not None:
        message = f"{what}: no answer within {format_duration(timeout_s)}"
        hint = f"the runtime may be busy: allow it more time with {timeout_flag}"
    elif code is grpc.StatusCode.UNAVAILABLE:
        message = f"{what}: {who} is unavailable: {text or 'no reason given'}"
        hint = "it may be restarting: try again, and check its service"
    elif match := re.search(_TOO_LARGE, details):
        size, limit = format_bytes(int(match[1])), format_bytes(int(match[2]))
        message = f"{what}: the answer has {size}, more than the limit of {limit}"
        hint = "ask for less, with filters or by ID"
    else:
        message = _joined(what, kind, text)
    return kind.error(message, code=kind.code, details=details, hint=hint)


@contextmanager
def mapped(what: str, endpoint: str) -> Iterator[None]:
    """Turns a ``grpc.RpcError`` of the block into the exception of ``to_error``."""
    try:
        yield
    except grpc.RpcError as exc:
        raise to_error(exc, what=what, endpoint=endpoint) from None


def one_line(details: str) -> str:
    """A server's text as one line: printable, without credentials of URLs, and not endless."""
    text = escape(redact_text(" ".join(re.sub(_CONNECT_PREFIX, "", details).split())))
    if len(text) > DETAILS_LIMIT_CHARS:
        text = text[:DETAILS_LIMIT_CHARS] + "…"
    return text.rstrip(".")


def _joined(what: str, kind: Kind, text: str) -> str:
    if not text:
        return f"{what}: {kind.phrase or 'the runtime gave no reason'}"
    # Runtimes often say it themselves: `image "x": not found`.
    if not kind.phrase or kind.phrase in text.lower():
        return f"{what}: {text}"
    return f"{what}: {kind.phrase}: {text}"


def _not_implemented(
    what: str, method: str, who: str, endpoint: str, text: str
) -> tuple[str, str | None]:
    if match := re.search(_UNKNOWN_SERVICE, text):
        return (
            f"{what}: the server at {quote(endpoint)} has no {match[1]}",
            "is it the right socket, and is the CRI enabled in the runtime's configuration?",
        )
    prefix = "" if what == method else f"{what}: "
    if not method:
        return f"{prefix}{who} does not implement it: {text}", None
    return f"{prefix}{who} does not implement {method}", None
