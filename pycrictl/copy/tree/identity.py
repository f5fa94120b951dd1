"""The root directory of a running container, and the proof that it is that container's.

A runtime reports the PID of a container's first process. PIDs are reused, so a descriptor of that
process is opened, then its root directory, and the runtime is queried again: if it still reports
the same process, started at the same time, and the process is still running, then the PID has
referred to this process all along.

Nothing from the container is executed, and none of its libraries are loaded.
"""

from __future__ import annotations

import os
import re
import select
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, NamedTuple

from pycrictl.base import noderoot
from pycrictl.base.errors import CopyError, FailedPrecondition
from pycrictl.base.units import quote, short_id
from pycrictl.copy.rules.spec import not_running
from pycrictl.copy.tree.places import IdMap, Root
from pycrictl.copy.tree.resolve import PINNED, PROC_MAGIC, file_system_type, held, resolve

_MAX_READ_BYTES: Final = 1024 * 1024
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
        """Open the root of the container that ``locate`` reports; it is called twice.

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
        # Even root may not access the node's first process, as when this is a container too.
        with suppress(PermissionError):
            known.append(os.readlink("1/ns/mnt", dir_fd=proc))
        if theirs in known:
            raise self._is_the_node()

    def _check_cgroup(self, theirs: str, ours: str) -> None:
        """Refuse a process that is in the cgroup of another container.

        Not every cgroup name contains a container ID, so one without proves nothing. Nor does an ID
        that this program's cgroup has, too, as when the whole node is a container.
        """
        found = {*_CONTAINER_ID.findall(theirs)} - {*_CONTAINER_ID.findall(ours)}
        if found and self.container_id not in found:
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
        return not_running(self.container_id, what="has stopped")

    def _is_the_node(self) -> CopyError:
        return CopyError(
            f"container {quote(short_id(self.container_id))} shares the file systems of the node",
            hint="copy on the node itself, or with --method exec",
        )


def _read(directory: int, name: str) -> str:
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    with open(fd, "rb") as file:  # noqa: PTH123 (a descriptor has no path)
        return file.read(_MAX_READ_BYTES).decode("utf-8", "replace")
