"""The process behind the socket and its age, to tell running pulls from remains of dead ones.

A killed containerd leaves its leases and unfinished blobs behind, and its successor lists them as
if they were alive. Anything older than the process is dead. If the process is in another PID
namespace, the age of its socket is used instead.
"""

from __future__ import annotations

import math
import os
import socket
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from pycrictl.base import noderoot
from pycrictl.base.processes import file_of, name_of
from pycrictl.base.tcp_sockets import ESTABLISHED, LISTEN, TcpSocket, tcp_sockets
from pycrictl.runtime.containerd.config_toml import CriSettings, config_path, read_settings
from pycrictl.runtime.containerd.grpc_client import ContainerdClient

_START_TIME_FIELD: Final = 22 - 3  # of /proc/PID/stat (proc(5)), counted after the program's name
_CLOCK_SLACK_S: Final = 0.05
"""Processes' start times are rounded to ticks of 10 ms, and calculated from two clocks."""


class Daemon(NamedTuple):
    """A running containerd; ``pid`` is 0 if only its socket can be seen."""

    pid: int
    start_ticks: int
    started_s: float

    def still_runs(self) -> bool:
        """Return whether the same process still runs; its PID may have been reused."""
        return start_ticks(self.pid) == self.start_ticks


def find_daemon(client: ContainerdClient) -> Daemon | None:
    """Return the containerd behind a client; None if it cannot be determined.

    containerd reports its PID since 1.7. An older one is found as the listener on the socket,
    unless that turns out to be another program, such as a proxy in between.
    """
    server = client.server()
    if server.pid and _own_pid_namespace() == server.pidns:
        pid = server.pid
    else:
        pid = listener_pid(client.endpoint)
        if pid == 0 and not math.isinf(made_s := _socket_made_s(client.endpoint)):
            return Daemon(0, 0, made_s)
        if not name_of(pid).startswith("containerd"):
            return None
    ticks = start_ticks(pid)
    if ticks is None:
        return None
    booted_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    started_s = booted_s + ticks / os.sysconf("SC_CLK_TCK")
    if listener_pid(client.endpoint) == pid:
        # Process times count from boot, and the clock may have been set since: forward by minutes
        # if the machine was paused. The socket's time was taken from the clock back then, as were
        # the times in containerd's stores.
        started_s = min(started_s, _socket_made_s(client.endpoint))
    return Daemon(pid, ticks, started_s)


def settings_of(client: ContainerdClient) -> CriSettings:
    """Return the settings of a containerd; those at the usual path if its process is not seen."""
    return read_settings(config_path(runtime_pid(client.endpoint, "containerd")))


class CurrentDaemon:
    """The currently running containerd."""

    def __init__(self, client: ContainerdClient) -> None:
        self._client = client
        self._daemon: Daemon | None = None
        self._must_look = True

    @property
    def pid(self) -> int:
        """Its PID; 0 if it cannot be seen."""
        return 0 if self._daemon is None else self._daemon.pid

    def refresh(self) -> None:
        """Detect the current process; call this before listing its contents."""
        if self._must_look or (self._daemon is not None and not self._daemon.still_runs()):
            self._daemon = find_daemon(self._client)
            self._must_look = False

    def look_again(self) -> None:
        """Detect again at the next refresh: after a failed call, the process may be another one."""
        self._must_look = True

    def is_outlived(self, created_s: float) -> bool:
        """Return whether something created then belongs to a containerd that has ended."""
        return self._daemon is not None and created_s < self._daemon.started_s - _CLOCK_SLACK_S


def _socket_made_s(endpoint: str) -> float:
    """Return when a socket was created; infinity if there is none."""
    try:
        return Path(endpoint.rpartition("://")[2]).stat().st_mtime
    except OSError:
        return math.inf


def listener_pid(endpoint: str) -> int:
    """Return the PID of the listener on a unix socket (SO_PEERCRED); 0 if it cannot be seen."""
    scheme, _, path = endpoint.rpartition("://")
    if scheme not in ("", "unix") or not path.startswith("/"):
        return 0
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except OSError:
            return 0
        size = struct.calcsize("3i")
        pid: int = struct.unpack(
            "3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        )[0]
        return pid


def runtime_pid(endpoint: str, program: str) -> int:
    """Return the PID of a runtime: 0 if it cannot be told.

    It is the listener on the socket, or the node's only process of that name behind a proxy, or
    where this process has PIDs of its own.
    """
    pid = listener_pid(endpoint)
    if pid and name_of(pid) == program:
        return pid
    pids = [int(entry.name) for entry in file_of("", "").iterdir() if entry.name.isdecimal()]
    running = [pid for pid in pids if name_of(pid) == program and noderoot.is_nodes_own(pid)]
    return running[0] if len(running) == 1 else 0


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if it does not exist."""
    try:
        stat = file_of(pid, "stat").read_bytes()
    except OSError:
        return None
    # The name is in parentheses and may itself contain parentheses and spaces.
    return int(stat[stat.rfind(b")") + 2 :].split()[_START_TIME_FIELD])


def _own_pid_namespace() -> int:
    with suppress(OSError):
        return file_of("self", "ns/pid").stat().st_ino
    return 0


class Arrivals(NamedTuple):
    """What a process has received on connections that it opened.

    Attributes:
        since_s: the time since data last arrived.
        received: the bytes by connection.
    """

    since_s: float
    received: dict[int, int]

    def gained(self, before: Arrivals) -> int:
        """Return how many bytes have arrived since an earlier look."""
        return sum(size - before.received.get(inode, 0) for inode, size in self.received.items())


def arrivals(pid: int) -> Arrivals | None:
    """Return what a process has received, as the kernel knows it.

    containerd shows the offset of a layer only once a MiB of it is complete, which takes minutes on
    a slow network. None if there is no such connection, or none that can be seen. It costs some
    milliseconds on a node with a thousand connections, so it is for downloads that show nothing.
    """
    own = _sockets(pid)
    sockets: list[TcpSocket] = []
    if own:
        with suppress(OSError, struct.error):
            for family in (socket.AF_INET, socket.AF_INET6):
                sockets += [
                    sock for sock in tcp_sockets(family, ESTABLISHED, LISTEN) if sock.inode in own
                ]
    # Connections that others opened, such as those of ``exec``, are left out by their port.
    served = {sock.ends[0][1] for sock in sockets if sock.state == LISTEN}
    opened = [
        sock for sock in sockets if sock.state == ESTABLISHED and sock.ends[0][1] not in served
    ]
    if not opened:
        return None
    received = {sock.inode: sock.received_bytes for sock in opened}
    return Arrivals(min(sock.data_idle_s for sock in opened), received)


def _sockets(pid: int) -> set[int]:
    """Return the inodes of a process's sockets."""
    folder = file_of(pid, "fd")
    inodes = set()
    with suppress(OSError):
        for name in os.listdir(folder):  # noqa: PTH208  # pathlib takes five times as long
            with suppress(OSError):  # closed meanwhile
                target = os.readlink(f"{folder}/{name}")  # noqa: PTH115  # as above
                if target.startswith("socket:["):
                    inodes.add(int(target[8:-1]))
    return inodes
