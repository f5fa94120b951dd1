"""For how long a containerd has received nothing, by its TCP connections (sock_diag(7)).

containerd shows the offset of a layer only once a MiB of it is complete, which takes minutes on a
slow network. The kernel knows for each connection when data last arrived. Connections that others
opened, such as those of ``exec``, are left out by their port. This needs the right to read the
process's descriptors, and its network namespace; it costs some milliseconds on a node with a
thousand connections, so it is for downloads that seem to have stalled.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from pycrictl.base import noderoot

# linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h, linux/tcp.h; not in Python's socket module
_SOCK_DIAG: Final = 4
_BY_FAMILY: Final = 20
_DUMP: Final = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_INFO: Final = 2
_ESTABLISHED, _LISTEN = 1, 10
_HEADER: Final = struct.Struct("=IHHII")
_REQUEST: Final = struct.Struct("=BBBxI48x")
_MESSAGE: Final = struct.Struct("=xB2x48x16xI")
_PORT: Final = struct.Struct("!4xH")
_ATTRIBUTE: Final = struct.Struct("=HH")
_LAST_DATA_RECV: Final = 52  # tcpi_last_data_recv, in milliseconds
_TIMEOUT_S: Final = 1.0


class _Connection(NamedTuple):
    """A TCP socket; ``idle_s`` is the time since it last received data."""

    is_listening: bool
    port: int
    idle_s: float


def quiet_s(pid: int) -> float | None:
    """Return for how long a process has received nothing on connections that it opened.

    None if there is no such connection, or none that can be seen.
    """
    own = _sockets(pid)
    found: list[_Connection] = []
    if own:
        with suppress(OSError, struct.error):
            for family in (socket.AF_INET, socket.AF_INET6):
                found += _connections(family, own)
    served = {one.port for one in found if one.is_listening}
    idle_s = [one.idle_s for one in found if not one.is_listening and one.port not in served]
    return min(idle_s, default=None)


def _sockets(pid: int) -> set[int]:
    """Return the inodes of a process's sockets."""
    folder = noderoot.locate(f"/proc/{pid}/fd")
    found = set()
    with suppress(OSError):
        for name in os.listdir(folder):  # noqa: PTH208  # pathlib takes five times as long
            with suppress(OSError):  # closed meanwhile
                target = os.readlink(f"{folder}/{name}")  # noqa: PTH115  # as above
                if target.startswith("socket:["):
                    found.add(int(target[8:-1]))
    return found


def _connections(family: int, own: set[int]) -> Iterator[_Connection]:
    """Iterate over the TCP sockets with these inodes."""
    states = 1 << _ESTABLISHED | 1 << _LISTEN
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), states)
    with socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG
    ) as link:
        link.settimeout(_TIMEOUT_S)
        link.send(_HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _DUMP, 1, 0) + body)
        while True:
            data = memoryview(link.recv(1 << 16))
            while len(data) >= _HEADER.size:
                length, kind, _, _, _ = _HEADER.unpack_from(data)
                if kind != _BY_FAMILY:  # the end, or an error
                    return
                state, inode = _MESSAGE.unpack_from(data, _HEADER.size)
                if inode in own:
                    yield _connection(data[_HEADER.size : length], is_listening=state == _LISTEN)
                data = data[(length + 3) & ~3 :]


def _connection(message: memoryview, *, is_listening: bool) -> _Connection:
    (port,) = _PORT.unpack_from(message)
    idle_ms, rest = 0, message[_MESSAGE.size :]
    while len(rest) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(rest)
        if kind == _INFO and length >= _ATTRIBUTE.size + _LAST_DATA_RECV + 4:
            (idle_ms,) = struct.unpack_from("=I", rest, _ATTRIBUTE.size + _LAST_DATA_RECV)
        rest = rest[max((length + 3) & ~3, _ATTRIBUTE.size) :]
    return _Connection(is_listening, port, idle_ms / 1000)
