"""What systemd gives a service, and what it wants to know: sockets, states, keep-alives."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Final, NamedTuple, TextIO

from pycrictl.errors import UsageError
from pycrictl.units import quote

_FIRST_DESCRIPTOR: Final = 3  # SD_LISTEN_FDS_START


class Passed(NamedTuple):
    """A socket of a socket unit.

    Attributes:
        name: the unit's ``FileDescriptorName``.
        path: where clients find it.
        socket: it listens.
    """

    name: str
    path: str
    socket: socket.socket


def notify(state: str, environ: Mapping[str, str]) -> bool:
    """Report a state to systemd, such as ``READY=1`` or ``STOPPING=1`` (sd_notify(3)).

    Returns:
        Whether it was sent; nobody listens for it unless the unit has ``Type=notify``.
    """
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(state.encode(), address)
    except OSError:
        return False
    return True


def passed_sockets(environ: Mapping[str, str]) -> list[Passed]:
    """Return the sockets that this process has from systemd (sd_listen_fds(3)).

    Raises:
        UsageError: one is not a listening unix socket.
    """
    if environ.get("LISTEN_PID") != str(os.getpid()):
        return []
    count = int(environ.get("LISTEN_FDS", "0"))
    names = environ.get("LISTEN_FDNAMES", "").split(":")
    found = []
    for number in range(count):
        sock = socket.socket(fileno=_FIRST_DESCRIPTOR + number)
        os.set_inheritable(sock.fileno(), False)
        name = names[number] if number < len(names) else ""
        is_unix = sock.family == socket.AF_UNIX and sock.type == socket.SOCK_STREAM
        if not is_unix or not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise UsageError(f"the socket {quote(name)} of systemd is not a listening unix socket")
        found.append(Passed(name, str(sock.getsockname()), sock))
    return found


def watchdog_s(environ: Mapping[str, str]) -> float | None:
    """Return within which time systemd wants a keep-alive; None if it wants none.

    See sd_watchdog_enabled(3).
    """
    text = environ.get("WATCHDOG_USEC", "")
    if not text.isdigit() or environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    return int(text) / 1e6 or None


def is_journal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Return whether a stream goes to the journal, which takes priorities (sd-daemon(3))."""
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environ.get("JOURNAL_STREAM", "") == f"{found.st_dev}:{found.st_ino}"
