"""The socket that clients of the proxy connect to: a link to a socket of this process alone.

This lets a new process start listening before clients connect to it; one rename then directs all
new connections to it. The link leads into a directory of its process. A directory in which no
process listens any more is that of a killed process. The files::

    /run/pycrictl/cri.sock -> cri.sock.k3x_9a2b/sock
    /run/pycrictl/cri.sock.k3x_9a2b/38283   the stream server, for URLs with that port
    /run/pycrictl/cri.sock.lock     locked by a starting process until it serves

The socket gives full control of the runtime, so it never exists with wrong permissions, not even
for a moment, and is never taken from a process that still serves it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import socket
import stat
import tempfile
from collections.abc import Container
from pathlib import Path
from typing import BinaryIO, Final

from pycrictl.base.errors import UsageError
from pycrictl.base.units import quote

_SUN_PATH_BYTES: Final = 107  # sun_path of struct sockaddr_un, without its NUL
_SOCKET: Final = "sock"
_LINK: Final = "link"
MAX_PATH_BYTES: Final = _SUN_PATH_BYTES - len(".xxxxxxxx/65535")


class OwnSocket:
    """A socket at ``path``, which clients reach at ``link`` once it is published.

    A missing directory is created, for root only. ``before`` has the directories of the process
    that this one takes over from.
    """

    def __init__(self, link: Path, before: Container[str] = ()) -> None:
        self.link = link
        if not link.is_absolute() or len(os.fsencode(link)) > MAX_PATH_BYTES:
            raise UsageError(
                f"cannot listen on {quote(str(link))}: a socket needs an absolute path of at most "
                f"{MAX_PATH_BYTES} bytes"
            )
        try:
            link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_directory(link.parent)
            self._start_lock = _locked(link.with_name(link.name + ".lock"))
            try:
                self._check_unused(before)
                self._sweep()
                self.folder = Path(tempfile.mkdtemp(prefix=f"{link.name}.", dir=link.parent))
            except BaseException:
                self._start_lock.close()
                raise
        except OSError as exc:
            raise UsageError(f"cannot listen on {quote(str(link))}: {exc.strerror}") from None
        self.path = self.folder / _SOCKET

    def publish(self) -> None:
        """Point the link at the socket, by one rename."""
        new = self.folder / _LINK
        new.unlink(missing_ok=True)
        # A relative path: a container may have the directory mounted elsewhere.
        new.symlink_to(Path(self.folder.name, _SOCKET))
        new.rename(self.link)
        self._start_lock.close()

    def close(self) -> None:
        """Remove the socket, and the link unless it leads to another process by now."""
        if _leads_to(self.link) == self.folder.name:
            self.link.unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        self._start_lock.close()

    def _check_unused(self, before: Container[str]) -> None:
        before_us = _leads_to(self.link)
        if before_us is None or not self._is_ours(before_us):
            if os.path.lexists(self.link):
                raise UsageError(f"{quote(str(self.link))} exists and is not a socket of a proxy")
        elif before_us not in before and _is_served(self.link):
            raise UsageError(f"another proxy listens on {quote(str(self.link))}")

    def _is_ours(self, name: str) -> bool:
        return bool(re.fullmatch(re.escape(self.link.name) + r"\.[a-z0-9_]{8}", name))

    def _sweep(self) -> None:
        """Remove directories of killed processes; the lock ensures that no other is starting."""
        for folder in list(self.link.parent.iterdir()):
            if self._is_ours(folder.name) and not _is_served(folder / _SOCKET):
                shutil.rmtree(folder, ignore_errors=True)


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)  # a full backlog counts as served
        return probe.connect_ex(str(path)) not in (errno.ECONNREFUSED, errno.ENOENT)


def _check_directory(directory: Path) -> None:
    """Refuse a directory in which other users could replace the socket."""
    mode = directory.stat().st_mode
    if mode & (stat.S_IWGRP | stat.S_IWOTH) and not mode & stat.S_ISVTX:
        raise UsageError(
            f"the directory {quote(str(directory))} is writable by other users",
            hint=f"give the socket a directory of its own, or run chmod go-w {directory}",
        )


def _leads_to(link: Path) -> str | None:
    try:
        folder, _, name = str(link.readlink()).partition("/")
    except OSError:
        return None
    return folder if name == _SOCKET else None


def _locked(path: Path) -> BinaryIO:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    lock = os.fdopen(os.open(path, flags, 0o600), "rb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise UsageError(f"another proxy listens on {quote(str(path.with_suffix('')))}") from None
    return lock
