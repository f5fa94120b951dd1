"""The user at the other end of a local connection: of TCP, too, which has no ``SO_PEERCRED``.

The kernel is asked for that one socket (sock_diag(7)), which takes it some microseconds. To read
``/proc/net/tcp`` takes it milliseconds, and the longer the more connections the node has.
"""

from __future__ import annotations

import socket
import struct
from typing import Final

UNKNOWN: Final = -1

_SOCK_DIAG: Final = 4  # NETLINK_SOCK_DIAG
_BY_FAMILY: Final = 20  # SOCK_DIAG_BY_FAMILY
_REQUEST: Final = 1  # NLM_F_REQUEST
_ANY_COOKIE: Final = b"\xff" * 8

# struct nlmsghdr, struct inet_diag_req_v2
_ASK: Final = struct.Struct("=IHHIIBBBxIHH16s16sI8s")
# struct nlmsghdr, struct inet_diag_msg: the kind of answer, its number, the user and the inode
_CREDENTIALS: Final = struct.Struct("=iII")  # struct ucred
_ANSWER: Final = struct.Struct("=4xH2xI4x4x48x12xII")


class Owners:
    """Asks the kernel. Where it does not answer, as in a strict sandbox, all are ``UNKNOWN``."""

    def __init__(self) -> None:
        self._kernel: socket.socket | None = None
        self._number = 0
        try:
            self._kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG)
            self._kernel.settimeout(0.1)  # it answers at once
        except OSError:
            self.close()

    def close(self) -> None:
        if self._kernel is not None:
            self._kernel.close()
            self._kernel = None

    def owner(self, sock: socket.socket) -> int:
        """Return the user of the other end; ``UNKNOWN`` if it is remote, or closed already."""
        if sock.family == socket.AF_UNIX:
            found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            return int(_CREDENTIALS.unpack(found)[1])
        if self._kernel is None:
            return UNKNOWN
        self._number = (self._number + 1) & 0xFFFFFFFF
        try:
            near, far = sock.getsockname(), sock.getpeername()
            self._kernel.send(
                _ASK.pack(
                    *(_ASK.size, _BY_FAMILY, _REQUEST, self._number, 0),
                    *(sock.family, socket.IPPROTO_TCP, 0, 0xFFFFFFFF),
                    *(socket.htons(far[1]), socket.htons(near[1])),
                    *(socket.inet_pton(sock.family, end[0]) for end in (far, near)),
                    *(0, _ANY_COOKIE),
                )
            )
            answer = self._kernel.recv(1024)
        except OSError:
            return UNKNOWN
        if len(answer) < _ANSWER.size:
            return UNKNOWN
        kind, number, uid, inode = _ANSWER.unpack_from(answer)
        # A socket that its process has closed has no owner, which looks like root.
        is_found = kind == _BY_FAMILY and number == self._number and inode
        return int(uid) if is_found else UNKNOWN
