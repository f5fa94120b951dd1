"""For how long a containerd has received nothing, by its TCP connections.

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
from contextlib import suppress

from pycrictl.base import noderoot
from pycrictl.base.tcp_sockets import ESTABLISHED, LISTEN, TcpSocket, tcp_sockets


def quiet_s(pid: int) -> float | None:
    """Return for how long a process has received nothing on connections that it opened.

    None if there is no such connection, or none that can be seen.
    """
    own = _sockets(pid)
    found: list[TcpSocket] = []
    if own:
        with suppress(OSError, struct.error):
            for family in (socket.AF_INET, socket.AF_INET6):
                found += [
                    one for one in tcp_sockets(family, ESTABLISHED, LISTEN) if one.inode in own
                ]
    served = {one.ends[0][1] for one in found if one.state == LISTEN}
    idle_s = [
        one.data_idle_s
        for one in found
        if one.state == ESTABLISHED and one.ends[0][1] not in served
    ]
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
