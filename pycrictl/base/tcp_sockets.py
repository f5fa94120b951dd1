"""The TCP sockets of this network namespace, as the kernel knows them (sock_diag(7))."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

ESTABLISHED: Final = 1
LISTEN: Final = 10
"""States of TCP (linux/tcp_states.h)."""

# linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h, linux/tcp.h; not in Python's socket module
_SOCK_DIAG: Final = 4
_BY_FAMILY: Final = 20
_DUMP: Final = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_INFO: Final = 2
_HEADER: Final = struct.Struct("=IHHII")
_REQUEST: Final = struct.Struct("=BBBxI48x")
_MESSAGE: Final = struct.Struct("=xB2x4s16s16s12x16xI")
_ATTRIBUTE: Final = struct.Struct("=HH")
_RECEIVED: Final = struct.Struct("=52xII")  # tcpi_last_data_recv and tcpi_last_ack_recv (ms)


class TcpSocket(NamedTuple):
    """A TCP socket.

    Attributes:
        ends: the local and the remote end, each an address (4 or 16 bytes) and a port.
        data_idle_s: the time since it last received data.
        ack_idle_s: the time since it last received an acknowledgement.
    """

    state: int
    ends: tuple[tuple[bytes, int], tuple[bytes, int]]
    inode: int
    data_idle_s: float
    ack_idle_s: float


def tcp_sockets(family: int, *states: int, timeout_s: float = 1.0) -> Iterator[TcpSocket]:
    """Iterate over the sockets of an address family in these states.

    Raises:
        OSError: the kernel does not answer.
    """
    mask = sum(1 << state for state in states)
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), mask)
    kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
    with socket.socket(socket.AF_NETLINK, kind, _SOCK_DIAG) as link:
        link.settimeout(timeout_s)
        link.send(_HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _DUMP, 1, 0) + body)
        while True:
            data = memoryview(link.recv(1 << 16))
            while len(data) >= _HEADER.size:
                length, answer, _, _, _ = _HEADER.unpack_from(data)
                if answer != _BY_FAMILY:  # the end, or an error
                    return
                yield _socket(family, data[_HEADER.size : length])
                data = data[(length + 3) & ~3 :]


def _socket(family: int, message: memoryview) -> TcpSocket:
    state, ports, here, there, inode = _MESSAGE.unpack_from(message)
    size = 4 if family == socket.AF_INET else 16
    port, peer_port = struct.unpack("!HH", ports)
    data_ms = ack_ms = 0
    rest = message[_MESSAGE.size :]
    while len(rest) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(rest)
        if kind == _INFO and length >= _ATTRIBUTE.size + _RECEIVED.size:
            data_ms, ack_ms = _RECEIVED.unpack_from(rest, _ATTRIBUTE.size)
        rest = rest[max((length + 3) & ~3, _ATTRIBUTE.size) :]
    ends = (here[:size], port), (there[:size], peer_port)
    return TcpSocket(state, ends, inode, data_ms / 1000, ack_ms / 1000)
