"""gRPC statuses become this program's exceptions, here and nowhere else."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pycrictl import errors
from pycrictl.cri.calls.redact import redact_text
from pycrictl.errors import ConnectError, PycrictlError, RuntimeFault
from pycrictl.units import escape, format_bytes, format_duration, quote
from pycrictl.wire import codes

if TYPE_CHECKING:
    import grpc

DETAILS_LIMIT_CHARS: Final = 2000


class Status(NamedTuple):
    """How a call failed.

    Attributes:
        code: of gRPC.
        details: the words that came with it.
        http_status: what came in its place, from a server that has no gRPC.
    """

    code: int
    details: str = ""
    http_status: str = ""


class Kind(NamedTuple):
    """What a status becomes: its class, and its phrase in a message."""

    error: type[RuntimeFault]
    phrase: str


KINDS: Final = {
    codes.OK: Kind(RuntimeFault, ""),
    codes.CANCELLED: Kind(errors.Cancelled, "cancelled"),
    codes.UNKNOWN: Kind(RuntimeFault, ""),
    codes.INVALID_ARGUMENT: Kind(errors.Invalid, "invalid argument"),
    codes.DEADLINE_EXCEEDED: Kind(errors.DeadlineExceeded, "the runtime ran out of time"),
    codes.NOT_FOUND: Kind(errors.NotFound, "not found"),
    codes.ALREADY_EXISTS: Kind(errors.AlreadyExists, "already exists"),
    codes.PERMISSION_DENIED: Kind(errors.Denied, "permission denied"),
    codes.RESOURCE_EXHAUSTED: Kind(errors.Exhausted, "a limit is reached"),
    codes.FAILED_PRECONDITION: Kind(errors.FailedPrecondition, "not possible in its state"),
    codes.ABORTED: Kind(RuntimeFault, "aborted"),
    codes.OUT_OF_RANGE: Kind(errors.Invalid, "out of range"),
    codes.UNIMPLEMENTED: Kind(errors.Unimplemented, "not implemented"),
    codes.INTERNAL: Kind(RuntimeFault, "internal error"),
    codes.UNAVAILABLE: Kind(errors.Unavailable, "unavailable"),
    codes.DATA_LOSS: Kind(RuntimeFault, "data loss"),
    codes.UNAUTHENTICATED: Kind(errors.Denied, "not authenticated"),
}

# What gRPC says of a call that this program itself has cancelled.
_OWN_CANCELLATIONS: Final = ("Locally cancelled by application!", "Channel closed!")

# gRPC's own words around the reason of a failed connection.
_CONNECT_PREFIX: Final = (
    r"failed to connect to all addresses; last error: (?:[A-Z_]+: )?(?:unix:\S+: )?"
)
_TOO_LARGE: Final = r"Received message larger than max \((\d+) vs\. (\d+)\)"
_HTTP_STATUS: Final = re.compile(r"Received http2 :?(?:header with )?status: (\d+)")
_UNKNOWN_SERVICE: Final = r"unknown service (\S+)"


def status_of(exc: grpc.RpcError) -> Status:
    """What grpc raised, which is a call as well unless it is made by hand."""
    if not hasattr(exc, "code") or not hasattr(exc, "details"):
        return Status(codes.UNKNOWN)
    code: Any = exc.code()
    details = exc.details() or ""
    match = _HTTP_STATUS.match(details)
    return Status(code.value[0] if code else codes.UNKNOWN, details, match[1] if match else "")


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
    """The exception for a failed call, with a message of one line.

    Args:
        status: how it failed.
        what: what was being done, such as ``pulling image "x"``.
        endpoint: of the server that was called.
        method: the call's name, where it is not to be read from ``what``.
        timeout_s: the deadline that this program set, None without one.
        timeout_flag: the flag that sets it.
        runtime: the runtime's name and version, where known.
    """
    code, details, http_status = status
    code = code if code in KINDS else codes.UNKNOWN
    kind = KINDS[code]
    text = "" if details in _OWN_CANCELLATIONS else one_line(details)
    who = runtime or f"the runtime at {quote(endpoint)}"
    if http_status:
        return ConnectError(
            f"{quote(endpoint)} is no gRPC server: it answers with the HTTP status {http_status}",
            hint="name the socket of a container runtime with -r/--runtime-endpoint",
        )
    hint = None
    if code == codes.UNIMPLEMENTED:
        message, hint = _not_implemented(what, method, who, endpoint, text)
    elif code == codes.DEADLINE_EXCEEDED and timeout_s is not None:
        message = f"{what}: no answer within {format_duration(timeout_s)}"
        hint = f"the runtime may be busy: allow it more time with {timeout_flag}"
    elif code == codes.UNAVAILABLE:
        message = f"{what}: {who} is unavailable: {text or 'no reason given'}"
        hint = "it may be restarting: try again, and check its service"
    elif match := re.search(_TOO_LARGE, details):
        size, limit = format_bytes(int(match[1])), format_bytes(int(match[2]))
        message = f"{what}: the answer has {size}, more than the limit of {limit}"
        hint = "ask for less, with filters or by ID"
    else:
        message = _joined(what, kind, text)
    return kind.error(message, code=codes.name_of(code), details=details, hint=hint)


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
