"""The socket that clients of the proxy dial.

The socket hands out all the runtime's power, so it is never there with wrong permissions, not even
for a moment, and never taken from a program that still serves it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
from pathlib import Path
from typing import Final, NamedTuple

from pycrictl.errors import UsageError
from pycrictl.units import quote

MAX_PATH_BYTES: Final = 107  # sun_path of struct sockaddr_un, without its NUL
_BACKLOG: Final = 1024


class Inherited(NamedTuple):
    """A socket that another process made.

    Attributes:
        socket: it listens.
        lock: the descriptor of its lock; None where systemd made it.
    """

    socket: socket.socket
    lock: int | None


class UnixListener:
    """A listening unix socket of mode 0600 that appears in its directory all at once.

    A missing directory is made, for root only. The lock file beside the socket stays: removing it
    would let two proxies lock two files of one name.

    Args:
        path: where clients find it; absolute.
        inherited: the socket, if it listens there already.

    Raises:
        UsageError: somebody serves it already, or it cannot be made there.
    """

    def __init__(self, path: Path, inherited: Inherited | None = None) -> None:
        self.path = path
        if inherited is not None:
            self.socket, self._lock = inherited
            self._identity: tuple[int, int] | None = None
            return
        # A socket file that nobody listens on yet would be refused or replaced by others, so the
        # name is given to it last, in one step that also replaces a stale one.
        self._first_name = path.with_name(f".{os.getpid():x}")
        longest = max(len(os.fsencode(name)) for name in (path, self._first_name))
        if not path.is_absolute() or longest > MAX_PATH_BYTES:
            raise UsageError(
                f"cannot listen on {quote(str(path))}: a socket needs an absolute path of at most "
                f"{MAX_PATH_BYTES} bytes"
            )
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_directory(path.parent)
            lock = self._lock = _locked(path.with_name(path.name + ".lock"))
            try:
                _check_unused(path)
                self.socket = self._bind()
            except BaseException:
                os.close(lock)
                raise
        except OSError as exc:
            raise UsageError(f"cannot listen on {quote(str(path))}: {exc.strerror}") from None

    def close(self) -> None:
        """Stop listening and remove the socket file, unless it is somebody else's by now."""
        if self._identity is not None and _identity(self.path) == self._identity:
            self.path.unlink(missing_ok=True)
        self.release()

    def claim(self) -> None:
        """Remove the file of an inherited socket in the end, unless it is systemd's.

        Before that it is the other process's, which goes on if this one fails.
        """
        if self._lock is not None:
            self._identity = _identity(self.path)

    def release(self) -> None:
        """Leave the socket to another process that listens on it."""
        self.socket.close()
        self._identity = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def descriptors(self) -> list[int]:
        """Return what the other process must have: the socket, and the lock if there is one."""
        return [self.socket.fileno(), *([] if self._lock is None else [self._lock])]

    def _bind(self) -> socket.socket:
        self._first_name.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        try:
            os.fchmod(listener.fileno(), 0o600)  # Linux gives the file the socket's mode
            listener.bind(str(self._first_name))
            listener.listen(_BACKLOG)
            self._identity = _identity(self._first_name)
            self._first_name.rename(self.path)
        except BaseException:
            listener.close()
            self._first_name.unlink(missing_ok=True)
            raise
        return listener


def _check_directory(directory: Path) -> None:
    """Refuse a directory whose other writers could put another socket in the place of this one."""
    mode = directory.stat().st_mode
    if mode & (stat.S_IWGRP | stat.S_IWOTH) and not mode & stat.S_ISVTX:
        raise UsageError(
            f"the directory {quote(str(directory))} is open to other users",
            hint=f"give the socket a directory of its own, or run chmod go-w {directory}",
        )


def _locked(path: Path) -> int:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise UsageError(f"another proxy serves {quote(str(path.with_suffix('')))}") from None
    return lock


def _check_unused(path: Path) -> None:
    """Refuse a path that is anything but free or a stale socket."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise UsageError(f"{quote(str(path))} exists and is not a socket")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)  # a full backlog is somebody's, too
        code = probe.connect_ex(str(path))
    if code not in (errno.ECONNREFUSED, errno.ENOENT):
        raise UsageError(f"somebody else serves {quote(str(path))}")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino
