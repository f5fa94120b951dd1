"""Why calls fail: obstacles to a connection, and gRPC statuses, as this program's exceptions.

``try_connect`` reports the operating system's own reason (``errno``). ``probe`` finds problems that
appear only on an open connection: every HTTP/2 server answers the client's preface with a SETTINGS
frame (RFC 9113, section 3.4). Statuses become exceptions only here.
"""

from __future__ import annotations

import errno
import socket
import struct
from pathlib import Path
from typing import Final, NamedTuple

from pycrictl.base import errors
from pycrictl.base.errors import ConnectError, PycrictlError, RuntimeFault
from pycrictl.base.units import escape, format_duration, quote
from pycrictl.runtime.cri.calls.redact import redact_text
from pycrictl.streams.wire import codes

MISSING: Final = "no such file"
SOCKET_HINT: Final = (
    "is the runtime running? name its socket with -r/--runtime-endpoint or in /etc/crictl.yaml"
)

_SHOWN_BYTES: Final = 60

_SERVICE_HINT: Final = "check the runtime's service, such as: systemctl status containerd (or crio)"
_NAME_HINT: Final = "name the socket of a container runtime with -r/--runtime-endpoint"


class Obstacle(NamedTuple):
    """Why a connection cannot be made.

    The reason is a phrase that follows the socket's name and a colon. ``may_pass`` is true if
    the runtime may just be starting.
    """

    reason: str
    hint: str
    may_pass: bool = False


SILENT: Final = Obstacle(
    "it accepts connections but does not answer",
    f"the runtime hangs, or is just starting; {_SERVICE_HINT}",
)
CLOSES: Final = Obstacle("it closes every connection at once", _SERVICE_HINT)

_SETTINGS_HEAD: Final = b"\4\0\0\0\0\0"
"""Type, flags and stream of a SETTINGS frame, which follow its length."""

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0" + _SETTINGS_HEAD


def try_connect(path: str, timeout_s: float) -> socket.socket | Obstacle:
    """Connect to a unix socket; return the connection, for the caller to close, or the obstacle.

    It waits, up to ``timeout_s``, only if the listener's queue of connections is full.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Not settimeout: a non-blocking connect gives up at once when the queue is full.
        seconds, part = divmod(min(timeout_s, 1e9), 1)
        limit = struct.pack("@ll", int(seconds), int(part * 1e6) or 1)  # 0 would mean no limit
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        connection.connect(path)
    except OSError as error:
        connection.close()
        return _obstacle(path, error)
    except BaseException:
        connection.close()
        raise
    return connection


def probe(path: str, timeout_s: float) -> Obstacle | None:
    """Return the obstacle at a unix socket, None if a gRPC server answers there."""
    connection = try_connect(path, timeout_s)
    if isinstance(connection, Obstacle):
        return connection
    answer = b""
    with connection:
        connection.settimeout(timeout_s)
        try:
            connection.sendall(_PREFACE, socket.MSG_NOSIGNAL)
            while _SETTINGS_HEAD.startswith(answer[3:9]) and len(answer) < 9:
                piece = connection.recv(4096)
                if not piece:
                    return CLOSES
                answer += piece
        except TimeoutError:
            return SILENT
        except OSError:
            return CLOSES
    if answer[3:9] == _SETTINGS_HEAD:
        return None
    line = answer[:_SHOWN_BYTES].split(b"\n")[0].rstrip(b"\r").decode("utf-8", "replace")
    return Obstacle(f'it is not a gRPC server: it answers "{escape(line)}"', _NAME_HINT)


def _obstacle(path: str, error: OSError) -> Obstacle:
    match error.errno:
        case errno.ENOENT:
            return Obstacle(MISSING, SOCKET_HINT, may_pass=True)
        case errno.ECONNREFUSED:
            if not Path(path).is_socket():  # Linux refuses connections to other files, too
                return Obstacle("it is not a socket", SOCKET_HINT)
            reason = "connection refused: nothing listens there"
            return Obstacle(reason, _SERVICE_HINT, may_pass=True)
        case errno.EACCES | errno.EPERM:
            return Obstacle(
                "permission denied", "run it as root: with sudo, or over SSH with --sudo"
            )
        case errno.EAGAIN:
            return Obstacle(
                "its queue of connections is full", f"the runtime hangs; {_SERVICE_HINT}"
            )
        case _:
            return Obstacle(escape(error.strerror or str(error)), SOCKET_HINT)


DETAILS_LIMIT_CHARS: Final = 2000
FUNDAMENTAL: Final = frozenset(
    "Version Status ListPodSandbox PodSandboxStatus RunPodSandbox StopPodSandbox RemovePodSandbox"
    " ListContainers ContainerStatus CreateContainer StartContainer StopContainer RemoveContainer"
    " Exec ExecSync Attach PortForward ListImages ImageStatus PullImage RemoveImage".split()
)
"""A server that lacks one of these does not serve the CRI; newer CRI versions added the others."""


class Status(NamedTuple):
    """How a call ended.

    Attributes:
        obstacle: why the server was not reached or is not a gRPC server, else None.
    """

    code: int
    details: str = ""
    obstacle: Obstacle | None = None


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
    action: str,
    endpoint: str,
    method: str = "",
    timeout_s: float | None = None,
    timeout_flag: str = "--timeout",
    runtime: str = "",
) -> PycrictlError:
    """Return the exception for a failed call, with a message of one line.

    Args:
        action: what was being done, such as ``pulling image "x"``.
        method: the call's name; may be empty if ``action`` suffices.
        timeout_s: the deadline that this program set, None without one.
        runtime: the runtime's name and version, if known.
    """
    if status.obstacle is not None:
        return connect_error(status.obstacle, endpoint, action=action)
    code = status.code if status.code in MEANINGS else codes.UNKNOWN
    error, phrase = MEANINGS[code]
    text = one_line(status.details)
    who = runtime or f"the runtime at {quote(endpoint)}"
    hint = None
    if code == codes.UNIMPLEMENTED and method in FUNDAMENTAL:
        message = f"{action}: the server at {quote(endpoint)} does not serve the CRI (runtime.v1)"
        hint = "is it the right socket, and is the CRI enabled in the runtime's configuration?"
    elif code == codes.UNIMPLEMENTED:
        prefix = "" if action == method else f"{action}: "
        message = f"{prefix}{who} does not implement {method or f'it: {text}'}"
    elif code == codes.DEADLINE_EXCEEDED and timeout_s is not None:
        message = f"{action}: no answer within {format_duration(timeout_s)}"
        hint = f"the runtime may be busy: allow it more time with {timeout_flag}"
    elif code == codes.UNAVAILABLE:
        message = f"{action}: {who} is unavailable: {text or 'no reason given'}"
        hint = "it may be restarting: try again, and check its service"
    else:
        message = _joined(action, phrase, text)
    return error(message, code=codes.name_of(code), details=status.details, hint=hint)


def connect_error(obstacle: Obstacle, endpoint: str, *, action: str = "") -> ConnectError:
    """Return the exception for a server that cannot be reached.

    ``action`` is what was being done, for a client that had reached the server before.
    """
    if action and obstacle.may_pass:
        message = f"{action}: the runtime at {quote(endpoint)} went away: {obstacle.reason}"
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


def _joined(action: str, phrase: str, text: str) -> str:
    if not text:
        return f"{action}: {phrase or 'the runtime gave no reason'}"
    # Runtimes often include the phrase themselves: `image "x": not found`.
    return f"{action}: {text}" if phrase in text.lower() else f"{action}: {phrase}: {text}"
