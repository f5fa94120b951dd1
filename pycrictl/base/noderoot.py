"""Translates paths of the node to paths of this process: the same, or ones below a directory.

``--host-root`` names the directory; in a pod of ``kubectl debug node/NAME`` it is ``/host``. Below
it are the runtime's sockets, logs, ``/proc`` and configuration. Only this module translates paths
of the node. Links resolve as they do on the node: absolute ones start at the directory, and ``..``
does not lead out of it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from typing import Final

from pycrictl.base import limits
from pycrictl.base.errors import PycrictlError, UsageError
from pycrictl.base.units import quote

DEBUG_ROOT: Final = "/host"
"""Where ``kubectl debug node`` mounts the root of the node."""

MAX_LINKS: Final = 40
"""Most links followed for one path, as in Linux."""

_root = ""


def use(root: str) -> None:
    """Use the node's files below a directory from now on; ``/`` means at their own paths."""
    global _root
    whole = os.path.abspath(root)  # noqa: PTH100 (pathlib costs 5 ms at every start)
    if not root or not os.path.isdir(whole):
        raise UsageError(
            f"--host-root {quote(root)} is not a directory",
            hint="give the directory where the node's root is mounted, such as /host",
        )
    _root = "" if whole == "/" else whole


def directory() -> str:
    return _root or "/"


def is_node(root: str) -> bool:
    parts = ("etc", "run", "proc/1")
    return all(os.path.isdir(f"{root}/{part}") for part in parts)


def locate(path: str, *, follow: bool = True) -> str:
    """Translate an absolute path of the node to one of this process.

    ``follow`` resolves a link in the last component too; links before it are always resolved.
    """
    if not _root:
        return path
    place = below(_root, path, follow=follow)
    is_proc = f"{place}/".startswith(f"{_root}/proc/")
    if is_proc and not os.path.exists(f"{_root}/proc/self"):
        return place.removeprefix(_root)  # only the root's own file system was mounted
    return place


def below(root: str, path: str, *, follow: bool = True) -> str:
    """Translate an absolute path of a node whose root is at ``root``, like ``locate``."""
    root = root.rstrip("/")
    done: list[str] = []
    todo = deque(path.split("/"))
    links = 0
    while todo:
        part = todo.popleft()
        if part in ("", "."):
            continue
        if part == "..":
            del done[-1:]
            continue
        done.append(part)
        if done == ["proc"]:  # links in /proc are special
            done.append(os.path.normpath("/".join(("/", *todo))).strip("/"))
            break
        if not todo and not follow:
            continue
        try:
            target = os.readlink("/".join((root, *done)))  # noqa: PTH115 (quick)
        except OSError:
            continue  # not a link, or nothing at all
        links += 1
        if links > MAX_LINKS:
            raise PycrictlError(f"{quote(path)} below {quote(root)}: too many symbolic links")
        del done[0 if target.startswith("/") else -1 :]
        todo.extendleft(reversed(target.split("/")))
    return "/".join((root, *filter(None, done)))


def given(path: str) -> str:
    """Translate a path given by the user: below the root if it exists there, else unchanged."""
    if not _root or not path.startswith("/"):
        return path
    place = locate(path)
    return place if os.path.lexists(place) else path


def read_named(path: str) -> bytes:
    """Return the content of a file that a process or another file of the node names.

    Raise OSError if it is not a regular file or too large; never wait for data from a pipe.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        return content_of(descriptor)
    finally:
        os.close(descriptor)


def content_of(descriptor: int, most_bytes: int = limits.FILE_BYTES) -> bytes:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    with open(descriptor, "rb", closefd=False) as stream:
        content = stream.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes // 1024} KiB")
    return content


def is_nodes_own(pid: int, root: str = "") -> bool:
    """Return whether the paths that a process names can be trusted.

    Any container may run a process called ``kubelet`` that names files to be read, and a server to
    send them to. The node's own kubelet has the user and the mount namespace of the first process,
    or of this program.
    """
    root = root or directory()
    standing = _standing(f"{root}/proc/{pid}")
    return standing is not None and standing in (
        _standing(f"{root}/proc/{known}") for known in ("1", "self")
    )


def _standing(process: str) -> tuple[list[str], str] | None:
    """Return the user IDs of a process and its mount namespace; None if they cannot be read."""
    try:
        with open(f"{process}/status", encoding="utf-8", errors="replace") as lines:  # noqa: PTH123
            users = [line for line in lines if line.startswith("Uid:")]
        return users, os.readlink(f"{process}/ns/mnt")  # noqa: PTH115 (quick)
    except OSError:
        return None
