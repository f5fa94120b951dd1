"""What is wrong with a socket, found with plain socket calls.

gRPC tells a missing file, a dead daemon and a web server apart in words that only its authors
understand. Before the first call ``try_connect`` gives the operating system's own reason; after a
call that failed for want of a connection, ``diagnose`` shakes hands as far as every HTTP/2 server
must go along: it answers the client's preface with a SETTINGS frame (RFC 9113, section 3.4).
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
import time
from enum import Enum, auto
from pathlib import Path
from typing import Final, NamedTuple

from pycrictl.units import escape

PATH_LIMIT_BYTES: Final = 107
"""The longest path of a unix socket on Linux: ``sun_path`` has 108 bytes with its final NUL."""

MISSING: Final = "no such file"
SOCKET_HINT: Final = (
    "is the runtime running? name its socket with -r/--runtime-endpoint or in /etc/crictl.yaml"
)

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_EMPTY_SETTINGS: Final = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
_FRAME_HEADER_BYTES: Final = 9
_SHOWN_BYTES: Final = 60

_SERVICE_HINT: Final = "check the runtime's service, such as: systemctl status containerd"


class Obstacle(NamedTuple):
    """Why a connection cannot be made.

    Attributes:
        reason: a phrase that follows the socket's name and a colon.
        hint: what the user can do about it.
        may_pass: whether a runtime that is just starting looks like this.
    """

    reason: str
    hint: str
    may_pass: bool = False


class Finding(Enum):
    """What the peer of a socket does."""

    UNREACHABLE = auto()
    SILENT = auto()
    CLOSES = auto()
    FOREIGN = auto()
    ALIVE = auto()


class Diagnosis(NamedTuple):
    """What was found, as a phrase that follows the socket's name and a colon, and what to do."""

    finding: Finding
    reason: str
    hint: str


def try_connect(path: str, timeout_s: float) -> socket.socket | Obstacle:
    """Connect to a unix socket: the connection, which the caller closes, or what is in the way.

    Waits up to ``timeout_s`` only when the listener's queue of connections is full.
    """
    if len(os.fsencode(path)) > PATH_LIMIT_BYTES:
        return Obstacle(
            f"the path is longer than the {PATH_LIMIT_BYTES} bytes that a socket's may have",
            "use a shorter path, such as that of a symbolic link",
        )
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Not settimeout: a non-blocking connect gives up at once when the queue is full.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(timeout_s))
        connection.connect(path)
    except OSError as error:
        connection.close()
        return _obstacle(path, error)
    except BaseException:
        connection.close()
        raise
    return connection


def diagnose(path: str, timeout_s: float) -> Diagnosis:
    """Find out what the server behind a socket does, in ``timeout_s`` at most."""
    deadline = time.monotonic() + timeout_s
    connection = try_connect(path, timeout_s)
    if isinstance(connection, Obstacle):
        return Diagnosis(Finding.UNREACHABLE, connection.reason, connection.hint)
    with connection:
        received, has_ended = _shake_hands(connection, deadline)
    if not _may_be_settings(received):
        line = received[:_SHOWN_BYTES].split(b"\n")[0].rstrip(b"\r").decode("utf-8", "replace")
        return Diagnosis(
            Finding.FOREIGN,
            f'it is no gRPC server: it answers "{escape(line)}"',
            "name the socket of a container runtime with -r/--runtime-endpoint",
        )
    if len(received) >= _FRAME_HEADER_BYTES:
        return Diagnosis(Finding.ALIVE, "it answers", "")
    if has_ended:
        return Diagnosis(Finding.CLOSES, "it closes every connection at once", _SERVICE_HINT)
    return Diagnosis(
        Finding.SILENT,
        "it accepts connections but does not answer",
        f"the runtime hangs, or is just starting; {_SERVICE_HINT}",
    )


def _shake_hands(connection: socket.socket, deadline: float) -> tuple[bytes, bool]:
    """Open HTTP/2: the first bytes of the answer, and whether the peer has closed or reset."""
    received = b""
    try:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        connection.sendall(_PREFACE + _EMPTY_SETTINGS)
        while len(received) < _FRAME_HEADER_BYTES and _may_be_settings(received):
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            chunk = connection.recv(256)
            if not chunk:
                return received, True
            received += chunk
    except TimeoutError:
        return received, False
    except OSError:
        return received, True
    return received, False


def _may_be_settings(received: bytes) -> bool:
    """Whether this begins like the header of a SETTINGS frame that is no acknowledgement.

    That is three bytes of length (the first is 0 below 64 KiB), the type, no flags, and stream 0.
    """
    header = received[:_FRAME_HEADER_BYTES]
    return header[:1] in (b"", b"\x00") and b"\x04\x00\x00\x00\x00\x00".startswith(header[3:])


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
            return Obstacle("permission denied", "run it as root, for instance with sudo")
        case errno.EAGAIN:
            return Obstacle(
                "its queue of connections is full", f"the runtime hangs; {_SERVICE_HINT}"
            )
        case errno.EPROTOTYPE:
            return Obstacle("it is a socket of another type", SOCKET_HINT)
        case _:
            return Obstacle(escape(error.strerror or str(error)), SOCKET_HINT)


def _kind_of_file(path: str) -> str | None:
    """What stands at ``path`` if it is no socket: Linux says "refused" of any other file, too."""
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return None
    if stat.S_ISSOCK(mode):
        return None
    if stat.S_ISDIR(mode):
        return "a directory"
    return "a file"


def _timeval(seconds: float) -> bytes:
    whole = int(min(seconds, 1e9))
    # All zero would mean to wait forever.
    return struct.pack("@ll", whole, max(1, int((min(seconds, 1e9) - whole) * 1e6)))
