"""Why a connection fails, as a readable phrase with a hint.

``try_connect`` reports the operating system's own reason (``errno``). ``look`` finds problems that
appear only on an open connection: every HTTP/2 server answers the client's preface with a SETTINGS
frame (RFC 9113, section 3.4).
"""

from __future__ import annotations

import errno
import socket
import struct
from pathlib import Path
from typing import Final, NamedTuple

from pycrictl.base.units import escape

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


def look(path: str, timeout_s: float) -> Obstacle | None:
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


def web_server(status: str) -> Obstacle:
    """Return the obstacle of a server that speaks HTTP/2 but not gRPC, by its HTTP status."""
    return Obstacle(
        f"it is not a gRPC server: it answers with the HTTP status {status}", _NAME_HINT
    )


def _obstacle(path: str, error: OSError) -> Obstacle:
    match error.errno:
        case errno.ENOENT:
            return Obstacle(MISSING, SOCKET_HINT, may_pass=True)
        case errno.ECONNREFUSED:
            kind = _kind_of_file(path)
            if kind is not None:
                return Obstacle(f"it is {kind}, not a socket", SOCKET_HINT)
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
        case errno.EPROTOTYPE:
            return Obstacle("it is a socket of another type", SOCKET_HINT)
        case _:
            return Obstacle(escape(error.strerror or str(error)), SOCKET_HINT)


def _kind_of_file(path: str) -> str | None:
    """Return what ``path`` is if not a socket: Linux refuses connections to other files, too."""
    file = Path(path)
    if file.is_socket() or not file.exists():
        return None
    return "a directory" if file.is_dir() else "a file"
