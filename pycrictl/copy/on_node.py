"""Copying on the node itself, through the root directory of the container's first process.

Nothing runs in the container, so it needs neither a shell nor ``tar``. Paths resolve as in the
container, its volumes included. The container must run on this machine and share the kernel: the
file systems of a virtual machine are not visible from here.

A runtime reports the PID of a container's first process. PIDs are reused, so a descriptor of that
process is opened, then its root directory, and the runtime is queried again: if it still reports
the same process, started at the same time, and the process is still running, then the PID has
referred to this process all along.
"""

from __future__ import annotations

import logging
import os
import re
import select
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pycrictl._proto import cri_pb2
from pycrictl.base import noderoot
from pycrictl.base.errors import CopyError, FailedPrecondition, NotFound, Unimplemented
from pycrictl.base.foreign import count, mapping, parsed, text
from pycrictl.base.units import quote, short_id
from pycrictl.copy.archive.archives import Archive, Outgoing
from pycrictl.copy.archive.arrival import put
from pycrictl.copy.archive.pack import pack, report_total
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.rules.spec import not_running
from pycrictl.copy.tree.commit import forget, leftover_notes, sweep_root
from pycrictl.copy.tree.places import THIS_MACHINE, IdMap, Root, open_destination, open_source
from pycrictl.copy.tree.rootfs import PINNED, PROC_MAGIC, file_system_type, held, resolve
from pycrictl.copy.tree.walk import Watch

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from pycrictl.runtime.cri.calls.client import CriClient

_MAX_READ_BYTES: Final = 1024 * 1024
USE_TAR: Final = (
    "if the container has tar: 'pycrictl exec CONTAINER tar -cf - PATH' makes an archive of a path,"
    " 'pycrictl exec -i CONTAINER tar -xf - -C PATH' unpacks one"
)
"""The only way left for containers whose files cannot be reached from the node."""

_CONTAINER_ID: Final = re.compile(r"[0-9a-f]{64}")


class FirstProcess(NamedTuple):
    """The first process of a running container, as reported by the runtime.

    ``pid`` is its PID on the node; ``uid`` and ``gid`` are IDs in the container.
    """

    container_id: str
    pid: int
    started_at_ns: int
    uid: int = 0
    gid: int = 0


Locate = Callable[[], FirstProcess]
"""Queries the runtime for a container's first process on each call."""


class ContainerRoot(Root):
    """The root directory of a running container, held open: ``fd`` is an O_PATH descriptor."""

    def __init__(self, locate: Locate) -> None:
        """Open the root of the container that ``locate`` reports; ``locate`` is called twice.

        Raises:
            FailedPrecondition: it is not running, or has stopped.
            CopyError: the process shares the node's file systems, or ``/proc`` is not procfs.
            PermissionError: root is needed.
        """
        process = locate()
        self.container_id = process.container_id
        self.default_owner = process.uid, process.gid
        with ExitStack() as stack:
            self._open(process.pid, lambda fd: stack.enter_context(held(fd)))
            if locate() != process:
                raise self._stopped()
            self.check_running()
            self._held = stack.pop_all()

    def _open(self, pid: int, keep: Callable[[int], int]) -> None:
        try:
            self._pidfd = keep(os.pidfd_open(pid))
            proc = keep(os.open(noderoot.locate("/proc"), PINNED | os.O_DIRECTORY))
            if file_system_type(proc) != PROC_MAGIC:
                raise CopyError("/proc of this machine is not procfs")
            own = keep(os.open(str(pid), PINNED | os.O_DIRECTORY, dir_fd=proc))
            self._check_namespace(proc, own)
            self._check_cgroup(_read(own, "cgroup"), _read(proc, "self/cgroup"))
            self.uids = IdMap.parse(_read(own, "uid_map"))
            self.gids = IdMap.parse(_read(own, "gid_map"))
            # The only magic link that is followed.
            self.fd = keep(os.open("root", PINNED | os.O_DIRECTORY, dir_fd=own))
        except (FileNotFoundError, ProcessLookupError):
            raise self._stopped() from None
        ours, theirs = Path("/").stat(), os.fstat(self.fd)
        if (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino):
            raise self._is_the_node()

    def _check_namespace(self, proc: int, own: int) -> None:
        theirs = os.readlink("ns/mnt", dir_fd=own)
        known = [os.readlink("self/ns/mnt", dir_fd=proc)]
        # Access to the node's first process may be denied even to root, as in a container.
        with suppress(PermissionError):
            known.append(os.readlink("1/ns/mnt", dir_fd=proc))
        if theirs in known:
            raise self._is_the_node()

    def _check_cgroup(self, theirs: str, ours: str) -> None:
        """Refuse a process that is in the cgroup of another container.

        Not every cgroup name contains a container ID: a name without one proves nothing. Nor does
        an ID that is also in this program's cgroup, as when the whole node is a container.
        """
        named = {*_CONTAINER_ID.findall(theirs)} - {*_CONTAINER_ID.findall(ours)}
        if named and self.container_id not in named:
            raise self._stopped()

    def find(self, path: bytes, *, follow: bool) -> int:
        """Return an O_PATH descriptor of ``path`` as the container's processes see it."""
        return resolve(self.fd, path, follow=follow)

    def check_running(self) -> None:
        """Require that it has not stopped: files copied to it might be lost otherwise."""
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        if poll.poll(0):
            raise self._stopped()

    def __enter__(self) -> ContainerRoot:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()  # an open root keeps its mounts busy

    def _stopped(self) -> FailedPrecondition:
        return not_running(self.container_id, state="has stopped")

    def _is_the_node(self) -> CopyError:
        return CopyError(
            f"container {quote(short_id(self.container_id))} shares the file systems of the node",
            hint="copy on the node itself",
        )


def _read(directory: int, name: str) -> str:
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    with open(fd, "rb") as file:  # noqa: PTH123 (a descriptor has no path)
        return file.read(_MAX_READ_BYTES).decode("utf-8", "replace")


log = logging.getLogger("pycrictl.copy")

Call = Callable[[str, "Message"], Any]
"""Makes a unary call to the runtime, as ``CriClient.call`` does."""

_CONNECT_S: Final = 5.0
_PEER: Final = struct.Struct("3i")
"""``struct ucred``: the process, user and group of a socket's other end (unix(7))."""

_SHARED_KERNEL: Final = ("io.containerd.runc.", "io.containerd.runtime.v1.linux")
_OWN_KERNEL: Final = ("kata", "runsc", "gvisor", "firecracker", "hyperv", "wasm", "qemu")


class OnNode:
    """Copies by way of the node's file systems: ``cp --method node``.

    ``read`` and ``write`` raise ``FailedPrecondition`` if the container is not running, or stops
    meanwhile, and ``CopyError`` as ``put`` and ``walk`` do.
    """

    name = "node"

    def __init__(self, locate: Locate) -> None:
        self._locate = locate

    @contextmanager
    def read(self, path: bytes, rules: Rules, watch: Watch) -> Iterator[Outgoing]:
        with self._root() as root, open_source(root, path, follow=rules.follow) as opened:
            source = opened._replace(whole_seconds=not rules.archive)
            report_total(source, watch)
            packed = partial(pack, source, on_skip=watch.on_skip, on_bytes=watch.on_bytes)
            name = None if source.paths else source.top
            yield Outgoing(packed, name, root.check_running, source, kind=source.kind)

    def write(self, archive: Archive, path: bytes, rules: Rules, watch: Watch) -> Summary:
        with self._root() as root, open_destination(root, path) as destination:
            if archive.tree is not None:
                report_total(archive.tree, watch)
            # A volume unmounted by a stopping container looks empty, and writes to it are lost.
            summary = put(archive, destination, rules, watch, check=root.check_running)
            root.check_running()
            return summary

    @contextmanager
    def _root(self) -> Iterator[ContainerRoot]:
        try:
            root = ContainerRoot(self._locate)
        except PermissionError as exc:
            raise CopyError(
                "this user cannot access the file systems of containers", hint="run as root"
            ) from exc
        with root:
            sweep_root(root)
            yield root


def locate_here(client: CriClient, container_id: str) -> FirstProcess:
    """Require that the runtime is on this node, then return the result of ``locate``."""
    check_node(client.path)
    return locate(client.call, container_id)


def locate(call: Call, container_id: str) -> FirstProcess:
    """Return a container's first process, as reported by the runtime.

    Raises:
        FailedPrecondition: the container is not running.
        Unimplemented: it has a kernel of its own, or the runtime does not report the process.
    """
    request = cri_pb2.ContainerStatusRequest(container_id=container_id, verbose=True)
    answer = call("ContainerStatus", request)
    status = answer.status
    if status.state != cri_pb2.CONTAINER_RUNNING:
        raise not_running(container_id)
    info = parsed(answer.info.get("info", ""))
    check_kernel(_handler(call, info), container_id)
    pid = info.get("pid")
    # 0 means none, and 1 is the node's init.
    if not isinstance(pid, int) or pid <= 1:
        raise Unimplemented(
            f"the runtime does not report the process of container {quote(short_id(container_id))}",
            hint=USE_TAR,
        )
    uid, gid = _user(info)
    return FirstProcess(status.id or container_id, pid, status.started_at, uid, gid)


def sweep(locate_one: Callable[[str], FirstProcess]) -> None:
    """Clean up the stages that killed copies have left."""
    sweep_root(THIS_MACHINE)
    for container_id in {noted.container_id for noted in leftover_notes()} - {""}:
        try:
            with ContainerRoot(partial(locate_one, container_id)) as root:
                sweep_root(root)
        except (NotFound, FailedPrecondition):  # the container is gone, and its stage, too
            for noted in leftover_notes():
                if noted.container_id == container_id:
                    forget(noted.name)
        except (CopyError, OSError):
            log.debug("cannot clean up in container %s", container_id, exc_info=True)


def check_node(socket_path: str) -> None:
    """Require that this program is root and in the PID namespace of the runtime."""
    if os.geteuid() != 0:
        raise Unimplemented(
            "this user cannot access the file systems of containers", hint="run as root"
        )
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_CONNECT_S)
        try:
            connection.connect(socket_path)
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
            pid = _PEER.unpack(credentials)[0]  # 0: not in our namespace, nor below it
            is_same = _pid_namespace(str(pid)) == _pid_namespace("self")
        except OSError:
            is_same = False
    if not is_same:
        raise Unimplemented(
            "the runtime is in another PID namespace",
            hint="run on the node itself, not in a container",
        )


def _pid_namespace(pid: str) -> str:
    try:
        return str(Path(noderoot.locate(f"/proc/{pid}/ns/pid")).readlink())
    except PermissionError:
        raise Unimplemented(
            "this program may not inspect the runtime's process:"
            " it needs the capability SYS_PTRACE",
            hint="an AppArmor profile may also deny it",
        ) from None


def check_kernel(handler: str, container_id: str) -> None:
    """Refuse a container that does not share this kernel."""
    is_known = handler.startswith("io.containerd.") and not handler.startswith(_SHARED_KERNEL)
    if is_known or any(word in handler.lower() for word in _OWN_KERNEL):
        raise Unimplemented(
            f"container {quote(short_id(container_id))} has a kernel of its own ({handler})",
            hint=USE_TAR,
        )


def _handler(call: Call, info: dict[str, Any]) -> str:
    """Return the container's runtime type from containerd, else its pod's runtime handler."""
    if runtime_type := text(info.get("runtimeType")):
        return runtime_type
    request = cri_pb2.ListPodSandboxRequest()
    request.filter.id = text(info.get("sandboxID"))
    pods = call("ListPodSandbox", request).items if request.filter.id else ()
    return " ".join(pod.runtime_handler for pod in pods)


def _user(info: dict[str, Any]) -> tuple[int, int]:
    """Return the user and group that the container was started as; root if unknown."""
    user = mapping(info, "runtimeSpec", "process", "user")
    return count(user.get("uid")), count(user.get("gid"))
