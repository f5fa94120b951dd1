"""The containerd behind a socket: its settings, its process, and when it last received data.

The settings are TOML, of version 2 (containerd 1.x) or 3 (2.x), and may import other files.

The age of the process tells running pulls from the remains of dead ones: a killed containerd leaves
its leases and unfinished blobs behind, and its successor lists them as if they were alive. Anything
older than the process counts as dead. If the process is in another PID namespace, the age of its
socket is used instead.
"""

from __future__ import annotations

import ctypes
import math
import os
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import tomli

from pycrictl.base import noderoot, processes
from pycrictl.base.errors import PycrictlError
from pycrictl.base.foreign import mapping, text, texts
from pycrictl.base.processes import file_of, name_of, start_ticks
from pycrictl.base.tcp_sockets import ESTABLISHED, LISTEN, tcp_sockets
from pycrictl.runtime.containerd.grpc_client import ContainerdClient

DEFAULT_PATH: Final = Path("/etc/containerd/config.toml")
CRI_PLUGINS: Final = ("cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images")
_DOWNLOADS: Final = 3
_LOCAL_PULLS: Final = (
    "use_local_image_pull",
    "discard_unpacked_layers",
    "image_pull_with_sync_fs",
)
_FILES_LIMIT: Final = 64
_PIDFD_GETFD: Final = 438
_TCP_INFO: Final = struct.Struct("=B51xI")  # tcpi_state, and tcpi_last_data_recv (ms)


def config_path(pid: int | None) -> Path:
    """Return the configuration file of a containerd: its ``--config``, else the usual place.

    A command line is trusted only for the node's own processes. The result is a path on the node.
    """
    if pid and noderoot.is_nodes_own(pid):
        flags = processes.flags_in(processes.command_line(pid)[1:])
        path = flags.get("config") or flags.get("c") or ""
        if path.startswith("/"):
            return Path(path)
        with suppress(OSError):
            return (processes.file_of(pid, "cwd").readlink() / path) if path else DEFAULT_PATH
    return DEFAULT_PATH


@dataclass(frozen=True, slots=True)
class CriSettings:
    """The settings of the CRI plugin.

    Attributes:
        table: the plugin's settings in the configuration files, by name.
        registry_origin: the file that sets ``registry``; empty if none does.
    """

    table: dict[str, Any] = field(default_factory=dict)
    registry_origin: str = ""

    @property
    def max_concurrent_downloads(self) -> int:
        """How many layers of an image are downloaded at once; 0 for no limit."""
        number = self.table.get("max_concurrent_downloads")
        return number if type(number) is int else _DOWNLOADS

    @property
    def snapshotter(self) -> str:
        before_3 = mapping(self.table.get("containerd"))
        name = self.table.get("snapshotter") or before_3.get("snapshotter")
        return text(name) or "overlayfs"

    @property
    def pulls_locally(self) -> bool:
        """Whether containerd 2.1 and later pulls without its transfer service.

        It does so for settings that the service does not know (``CheckLocalImagePullConfigs``).
        """
        table, registry = self.table, mapping(self.table.get("registry"))
        return (
            any(table.get(key) is True for key in _LOCAL_PULLS)
            or table.get("disable_snapshot_annotations") is False
            or table.get("max_concurrent_downloads", _DOWNLOADS) != _DOWNLOADS
            or any(registry.get(key) for key in ("mirrors", "configs", "auths"))
        )


def read_settings(path: Path) -> CriSettings:
    """Read a configuration file and its imports; return empty settings if it is unreadable.

    An imported file overrides the importing one: key by key in a version 3 configuration, a
    plugin's whole section in older ones.
    """
    table: dict[str, Any] = {}
    origin, version = "", 0
    for file, document in _documents(path):
        version = version or document.get("version", 1)
        for plugin in CRI_PLUGINS:
            if section := mapping(document.get("plugins"), plugin):
                table = _merged(table if version == 3 else {}, section)
                if "registry" in section or "registry" not in table:
                    origin = str(file) if "registry" in table else ""
    return CriSettings(table, origin)


def _merged(table: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    both = {
        key: _merged(table[key], other[key])
        for key in table.keys() & other.keys()
        if isinstance(table[key], dict) and isinstance(other[key], dict)
    }
    return {**table, **other, **both}


def _documents(path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    todo, seen = [path], set[Path]()
    while todo and len(seen) < _FILES_LIMIT:
        file = todo.pop(0)
        if file in seen:
            continue
        seen.add(file)
        document = read_document(noderoot.locate(str(file)))
        yield file, document
        for pattern in texts(document.get("imports")):
            if pattern:
                todo.extend(_matches(file.parent, pattern))


def read_document(path: str) -> dict[str, Any]:
    """Return the content of a TOML file; empty if it cannot be read."""
    with suppress(OSError, ValueError, RecursionError, PycrictlError):
        return tomli.loads(noderoot.read_named(path).decode())
    return {}


def _matches(folder: Path, pattern: str) -> list[Path]:
    absolute = folder / pattern
    # Links before the first wildcard are resolved as on the node.
    fixed = absolute.parent if "*" not in str(absolute.parent) else Path("/")
    here = Path(noderoot.locate(str(fixed)))
    with suppress(OSError, ValueError, NotImplementedError, PycrictlError):
        files = sorted(here.glob(str(absolute.relative_to(fixed))))
        return [fixed / file.relative_to(here) for file in files]
    return []


_CLOCK_SLACK_S: Final = 0.05
"""Processes' start times are rounded to ticks of 10 ms, and calculated from two clocks."""


def settings_of(client: ContainerdClient) -> CriSettings:
    """Return the settings of a containerd; those at the usual path if its process is not seen."""
    return read_settings(config_path(runtime_pid(client.endpoint, "containerd")))


class CurrentDaemon:
    """The containerd behind a socket, as it runs now.

    It is the listener on the socket; if that is another program, such as a proxy, nothing is known.
    A listener in another PID namespace is taken to be as old as its socket.

    Attributes:
        pid: its PID; 0 if it cannot be seen.
    """

    def __init__(self, endpoint: str) -> None:
        self.pid = 0
        self._endpoint = endpoint
        self._start_ticks: int | None = None
        self._started_s = -math.inf
        self._must_look = True

    def refresh(self) -> None:
        """Detect the current process; call this before listing its contents."""
        # The PID of a process that has ended may be another's.
        if self._must_look or (self.pid and start_ticks(self.pid) != self._start_ticks):
            self._find()
            self._must_look = False

    def look_again(self) -> None:
        """Detect again at the next refresh: after a failed call, the process may be another one."""
        self._must_look = True

    def is_outlived(self, created_s: float) -> bool:
        """Return whether something created then belongs to a containerd that has ended."""
        return created_s < self._started_s - _CLOCK_SLACK_S

    def _find(self) -> None:
        pid = listener_pid(self._endpoint)
        self.pid, self._started_s = 0, -math.inf
        if not pid:
            self._started_s = _socket_made_s(self._endpoint)
        elif name_of(pid).startswith("containerd"):
            self._start_ticks = start_ticks(pid)
            if self._start_ticks is not None:
                booted_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
                self._started_s = booted_s + self._start_ticks / os.sysconf("SC_CLK_TCK")
                self.pid = pid


def _socket_made_s(endpoint: str) -> float:
    """Return when a socket was created; minus infinity if there is none."""
    try:
        return Path(endpoint.rpartition("://")[2]).stat().st_mtime
    except OSError:
        return -math.inf


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
    """Return the PID of a runtime; 0 if it cannot be determined.

    The runtime is the listener on the socket or, if that is a proxy or in another PID namespace,
    the node's only process named ``program``.
    """
    pid = listener_pid(endpoint)
    if pid and name_of(pid) == program:
        return pid
    pids = [int(entry.name) for entry in file_of("", "").iterdir() if entry.name.isdecimal()]
    running = [pid for pid in pids if name_of(pid) == program and noderoot.is_nodes_own(pid)]
    return running[0] if len(running) == 1 else 0


def quiet_s(pid: int) -> float | None:
    """Return for how long a process has received nothing on connections that it opened.

    containerd shows the offset of a layer only once a MiB of it is complete, which takes minutes on
    a slow network; the kernel knows at once. None if there is no such connection, or none that can
    be seen. The call takes some milliseconds on a node with a thousand connections, so it is for
    downloads that show no progress.
    """
    descriptors = _sockets(pid)
    sockets: list[tuple[int, int, float]] = []  # State, own port, seconds since the last data
    if descriptors:
        with suppress(OSError, struct.error):
            for family in (socket.AF_INET, socket.AF_INET6):
                sockets += [
                    (tcp.state, tcp.ends[0][1], tcp.data_idle_s)
                    for tcp in tcp_sockets(family, ESTABLISHED, LISTEN)
                    if tcp.inode in descriptors
                ]
        sockets = sockets or _copied_sockets(pid, descriptors.values())
    # Connections that others opened, such as for ``exec``, have a listener's port: left out.
    served = {port for state, port, _ in sockets if state == LISTEN}
    return min(
        (idle_s for state, port, idle_s in sockets if state == ESTABLISHED and port not in served),
        default=None,
    )


def _sockets(pid: int) -> dict[int, int]:
    """Return the descriptors of a process's sockets by inode."""
    folder = file_of(pid, "fd")
    descriptors = {}
    with suppress(OSError):
        for name in os.listdir(folder):  # noqa: PTH208  # pathlib takes five times as long
            with suppress(OSError):  # closed meanwhile
                target = os.readlink(f"{folder}/{name}")  # noqa: PTH115  # as above
                if target.startswith("socket:["):
                    descriptors[int(target[8:-1])] = int(name)
    return descriptors


def _copied_sockets(pid: int, descriptors: Iterable[int]) -> list[tuple[int, int, float]]:
    """Return the TCP sockets of a process in another network namespace, as ``quiet_s`` lists them.

    sock_diag(7) shows only the namespace of the caller. With CAP_SYS_PTRACE, pidfd_getfd(2) copies
    a descriptor, and a socket tells its state in any namespace. Each copy is closed at once.
    """
    try:
        process = os.pidfd_open(pid)
    except (OSError, AttributeError):  # some builds of Python lack it
        return []
    tcp = []
    for descriptor in descriptors:
        copy = ctypes.CDLL(None).syscall(_PIDFD_GETFD, process, descriptor, 0)
        if copy < 0:
            continue
        with socket.socket(fileno=copy) as sock, suppress(OSError):
            if sock.family in (socket.AF_INET, socket.AF_INET6):
                info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
                state, idle_ms = _TCP_INFO.unpack(info)
                tcp.append((state, sock.getsockname()[1], idle_ms / 1000))
    os.close(process)
    return tcp
