"""Local ports that stand for ports of a pod: how they are given, and listening on them."""

from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from pycrictl.errors import ConnectError, UsageError

_PAIR: Final = re.compile(r"(?:([0-9]{0,5}):)?([0-9]{1,5})")
_MAX_PORT: Final = 65535
_LOCALHOST: Final = ("127.0.0.1", "::1")
_EVERYWHERE: Final = ("0.0.0.0", "::")
_TRIES: Final = 20


@dataclass(frozen=True, slots=True)
class PortPair:
    """A local port, 0 for any that is free, and the port of the pod."""

    local: int
    remote: int


@dataclass(frozen=True, slots=True)
class Listener:
    """A local socket that listens, and the port of the pod that it stands for."""

    socket: socket.socket
    remote: int

    @property
    def port(self) -> int:
        """The local port."""
        return int(self.socket.getsockname()[1])

    @property
    def label(self) -> str:
        """Address and port, as they are written in URLs."""
        return _label(self.socket.getsockname()[0], self.port)


def parse_pair(text: str) -> PortPair:
    """Read ``[LOCAL:]REMOTE``; ``:REMOTE`` and ``0:REMOTE`` are for any local port.

    Raises:
        UsageError: it is nothing of that.
    """
    match = _PAIR.fullmatch(text)
    if match is None:
        raise UsageError(f'invalid ports "{text}"', hint="write [LOCAL:]REMOTE, such as 8080:80")
    remote = int(match[2])
    local = remote if match[1] is None else int(match[1] or "0")
    if not 0 < remote <= _MAX_PORT or local > _MAX_PORT:
        raise UsageError(f'invalid ports "{text}"', hint="a port of a pod is 1 to 65535")
    return PortPair(local, remote)


def listen(
    addresses: Sequence[str], pairs: Sequence[PortPair], *, note: Callable[[str], None]
) -> list[Listener]:
    """Listen on all addresses for each pair, in its order.

    An address where the port is taken is left out. ``note`` gets a line about it, but for one
    of the two that ``localhost`` stands for; and of a pair without any left.

    Args:
        addresses: IP addresses, or ``localhost`` for both loopback addresses.

    Raises:
        UsageError: an address is none.
        ConnectError: nothing is left at all.
    """
    hosts = _hosts(addresses)
    optional = _LOCALHOST if "localhost" in addresses else ()
    listeners: list[Listener] = []
    for pair in pairs:
        sockets, failures = _listen(hosts, pair.local)
        added = [Listener(each, pair.remote) for each in sockets]
        if added:
            for host, reason in failures.items():
                if host not in optional:
                    note(f"cannot listen on {_label(host, added[0].port)}: {reason}")
        else:
            note(f"cannot listen on port {pair.local}: {next(iter(failures.values()))}")
        listeners += added
    if not listeners:
        raise ConnectError("none of the local ports can be listened on")
    return listeners


def _label(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _hosts(addresses: Sequence[str]) -> dict[str, socket.AddressFamily]:
    """Return the addresses to listen on, each once, and none that another one includes."""
    hosts: dict[str, socket.AddressFamily] = {}
    for name in addresses:
        for host in _LOCALHOST if name == "localhost" else [name]:
            family = _family(host)
            hosts[socket.inet_ntop(family, socket.inet_pton(family, host))] = family
    whole = {hosts[host] for host in _EVERYWHERE if host in hosts}
    alone = (host for host, family in hosts.items() if family not in whole or host in _EVERYWHERE)
    return {host: hosts[host] for host in alone}


def _family(host: str) -> socket.AddressFamily:
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError):
            socket.inet_pton(family, host)
            return family
    raise UsageError(f'"{host}" is not an IP address', hint="or localhost, for 127.0.0.1 and ::1")


def _listen(
    hosts: Mapping[str, socket.AddressFamily], port: int
) -> tuple[list[socket.socket], dict[str, str]]:
    """Listen on one port everywhere; return the sockets, and by host why there is one less."""
    for left in reversed(range(_TRIES)):
        sockets, failures = _try_to_listen(hosts, port)
        # A number that was free at the first address only: ask for another one.
        if port or not sockets or errno.EADDRINUSE not in failures.values() or not left:
            break
        for each in sockets:
            each.close()
    return sockets, {host: os.strerror(number).lower() for host, number in failures.items()}


def _try_to_listen(
    hosts: Mapping[str, socket.AddressFamily], port: int
) -> tuple[list[socket.socket], dict[str, int]]:
    sockets: list[socket.socket] = []
    failures: dict[str, int] = {}
    for host, family in hosts.items():
        try:
            created = socket.create_server((host, port), family=family, backlog=128)
        except OSError as exc:
            failures[host] = exc.errno or 0
            continue
        sockets.append(created)
        port = port or created.getsockname()[1]
    return sockets, failures
