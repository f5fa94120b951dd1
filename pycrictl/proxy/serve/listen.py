"""The socket that clients of the proxy dial: a link to one that is this program's alone.

So a new program can be ready at a socket of its own before anybody dials it, and one rename gives
it all new connections. The link leads into a directory that its program has locked for as long as
it lives::

    /run/pycrictl/cri.sock -> cri.sock.k3x_9a2b/sock
    /run/pycrictl/cri.sock.k3x_9a2b/38283   the streams behind URLs with that port
    /run/pycrictl/cri.sock.lock     locked by a program that starts, until it serves

The socket hands out all the runtime's power, so it is never there with wrong permissions, not even
for a moment, and never taken from a program that still serves it.
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
from contextlib import suppress
from pathlib import Path
from typing import Final

from pycrictl.errors import UsageError
from pycrictl.units import quote

_SUN_PATH_BYTES: Final = 107  # sun_path of struct sockaddr_un, without its NUL
_SOCKET: Final = "sock"
_LINK: Final = "link"
MAX_PATH_BYTES: Final = _SUN_PATH_BYTES - len(".xxxxxxxx/65535")


class OwnSocket:
    """A socket at ``path``, which clients find at ``link`` once it is published.

    A missing directory is made, for root only. ``before`` has the directories of the program that
    this one takes over from.
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
            self._start_lock = _locked_file(link.with_name(link.name + ".lock"))
            try:
                self._check_unused(before)
                self.folder = Path(tempfile.mkdtemp(prefix=f"{link.name}.", dir=link.parent))
                lock = _lock(self.folder)
                assert lock is not None  # a sweep takes the other lock first
                self._lock = lock
            except BaseException:
                self._started()
                raise
        except OSError as exc:
            raise UsageError(f"cannot listen on {quote(str(link))}: {exc.strerror}") from None
        self.path = self.folder / _SOCKET

    def publish(self) -> None:
        """Let clients find the socket, by one rename; remove what killed programs left."""
        new = self.folder / _LINK
        new.unlink(missing_ok=True)
        # Not an absolute path: a container may have the directory under another name.
        new.symlink_to(Path(self.folder.name, _SOCKET))
        new.rename(self.link)
        self._sweep()
        self._started()

    def close(self) -> None:
        """Remove the socket, and the link unless it leads to another program by now."""
        if _leads_to(self.link) == self.folder.name:
            self.link.unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        self._started()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _started(self) -> None:
        if self._start_lock >= 0:
            os.close(self._start_lock)
            self._start_lock = -1

    def _check_unused(self, before: Container[str]) -> None:
        found = _leads_to(self.link)
        if found is not None and self._is_ours(found):
            if found not in before and not self._is_left(self.link.with_name(found)):
                raise UsageError(f"another proxy serves {quote(str(self.link))}")
            return
        try:
            mode = self.link.lstat().st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise UsageError(f"{quote(str(self.link))} exists and is not a socket")
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)  # a full backlog is served, too
            code = probe.connect_ex(str(self.link))
        if code not in (errno.ECONNREFUSED, errno.ENOENT):
            raise UsageError(
                f"somebody else serves {quote(str(self.link))}",
                hint="if it is the socket unit of an older version, stop and disable that",
            )

    def _is_ours(self, name: str) -> bool:
        return bool(re.fullmatch(re.escape(self.link.name) + r"\.[a-z0-9_]{8}", name))

    def _is_left(self, folder: Path) -> bool:
        """Whether the program that made a directory has ended: then it is not locked."""
        try:
            lock = _lock(folder)
        except FileNotFoundError:
            return True
        if lock is not None:
            os.close(lock)
        return lock is not None

    def _sweep(self) -> None:
        for folder in list(self.link.parent.iterdir()):
            with suppress(OSError):
                if self._is_ours(folder.name) and folder != self.folder and self._is_left(folder):
                    shutil.rmtree(folder, ignore_errors=True)


def _check_directory(directory: Path) -> None:
    """Refuse a directory whose other writers could put another socket in the place of this one."""
    mode = directory.stat().st_mode
    if mode & (stat.S_IWGRP | stat.S_IWOTH) and not mode & stat.S_ISVTX:
        raise UsageError(
            f"the directory {quote(str(directory))} is open to other users",
            hint=f"give the socket a directory of its own, or run chmod go-w {directory}",
        )


def _leads_to(link: Path) -> str | None:
    try:
        folder, _, name = str(link.readlink()).partition("/")
    except OSError:
        return None
    return folder if name == _SOCKET else None


def _locked_file(path: Path) -> int:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise UsageError(f"another proxy serves {quote(str(path.with_suffix('')))}") from None
    return lock


def _lock(folder: Path) -> int | None:
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock
