"""Sessions on a disk: for each a file with what it is (JSON), and one with its archive. It blocks.

A name is in use as long as its JSON is there; an archive without it is what a killed agent left.
What is described is written before the description is, and before anybody is told of it. It need
not survive the node: a node that goes down loses the containers, and so their copies.

Whatever is done here is done in a folder that somebody has typed. So it is taken only if there is
nothing else in it, and nothing is changed or removed that an agent has not made.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from pycrictl.agent.copies.session import NAME, Session, restored
from pycrictl.copy.archive.checksum import Checksum
from pycrictl.copy.archive.forgetting import forget_behind
from pycrictl.errors import ConfigError, CopyError, NoSpace
from pycrictl.foreign import parse
from pycrictl.noderoot import content_of
from pycrictl.servicelog import Log
from pycrictl.units import quote

log = Log(__name__)

_RECORD: Final = ".json"
_ARCHIVE: Final = ".tar"
_FRESH: Final = ".new"
_DAMAGED: Final = ".damaged"
_LOCK: Final = "lock"
_FORM: Final = re.compile(
    rf"{NAME.pattern}(?:{'|'.join(map(re.escape, (_RECORD, _ARCHIVE, _FRESH, _DAMAGED)))})"
)
"""What an agent's own files are called."""

_OF_EVERY_DISK: Final = "lost+found"

MAX_RECORD_BYTES: Final = 4 << 20
"""Of what describes a session: its outcome may name many entries that were left out."""

AHEAD_BYTES: Final = 32 * 1024 * 1024
"""What stays in memory for those who read an archive right behind its writer."""


def new_name() -> str:
    """Return a name for a session that nobody can guess."""
    return os.urandom(16).hex()


class Store:
    """A folder with sessions, of one agent.

    Args:
        folder: is made if it is not there. One that was empty becomes this user's alone.

    Raises:
        ConfigError: it cannot be used, has anything else in it, or another agent uses it.
    """

    def __init__(self, folder: str) -> None:
        self._path = folder
        try:
            Path(folder).mkdir(0o700, parents=True, exist_ok=True)
            self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                self._take()
                self._lock = self._open(_LOCK, os.O_RDWR | os.O_CREAT)
            except BaseException:
                os.close(self._folder)
                raise
        except OSError as exc:
            raise ConfigError(f"cannot keep copies in {_described(folder, exc)}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise ConfigError(f"another agent keeps its copies in {quote(folder)}") from None

    def close(self) -> None:
        """Let another agent have the folder."""
        os.close(self._lock)
        os.close(self._folder)

    def load(self) -> list[Session]:
        """Return the sessions that there are; remove files of sessions that are gone."""
        sessions = {}
        damaged: dict[str, Exception] = {}
        names = self._names()
        for name in names:
            stem, _, suffix = name.partition(".")
            if suffix == _RECORD[1:] and NAME.fullmatch(stem):
                try:
                    sessions[stem] = self._read(stem)
                except (OSError, ValueError) as exc:
                    damaged[stem] = exc
        for name in names:
            stem = name.partition(".")[0]
            if _FORM.fullmatch(name) and stem not in sessions:
                with suppress(OSError):
                    if name == f"{stem}{_RECORD}" and stem in damaged:
                        self._set_aside(stem, damaged[stem])
                    else:
                        os.unlink(name, dir_fd=self._folder)
        return list(sessions.values())

    def save(self, session: Session) -> None:
        """Write what a session is, so that a restart finds it.

        Raises:
            CopyError: it cannot be written.
        """
        text = json.dumps(session.saved()).encode()
        fresh, name = session.name + _FRESH, session.name + _RECORD
        try:
            fd = self._open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            try:
                os.write(fd, text)
            finally:
                os.close(fd)
            os.rename(fresh, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except OSError as exc:
            raise CopyError(f"cannot keep a copy in {_described(self._path, exc)}") from exc

    def remove(self, session: Session) -> None:
        """Remove all of a session."""
        for suffix in (_RECORD, _FRESH, _ARCHIVE):
            with suppress(OSError):
                os.unlink(session.name + suffix, dir_fd=self._folder)

    def remove_archive(self, session: Session) -> None:
        """Remove a session's archive, which is not needed any more."""
        with suppress(OSError):
            os.unlink(session.name + _ARCHIVE, dir_fd=self._folder)

    def open_archive(self, session: Session, *, is_new: bool = False) -> Archive:
        """Open a session's archive.

        Raises:
            CopyError: it cannot be opened.
        """
        flags = os.O_RDWR | (os.O_CREAT | os.O_EXCL if is_new else 0)
        try:
            return Archive(self._open(session.name + _ARCHIVE, flags), self._path)
        except OSError as exc:
            raise CopyError(f"cannot keep a copy in {_described(self._path, exc)}") from exc

    @property
    def free_bytes(self) -> int:
        """How much space there is, without what the system reserves for root."""
        status = os.fstatvfs(self._folder)
        return status.f_bavail * status.f_frsize

    def _take(self) -> None:
        """Make the folder this user's alone if it is an agent's, or may become one's.

        Raises:
            ConfigError: it is in use for something else.
            OSError: it cannot be looked at.
        """
        found = os.fstat(self._folder)
        if found.st_uid != os.geteuid() or found.st_mode & stat.S_ISVTX:
            raise ConfigError(
                f"cannot keep copies in {quote(self._path)}: it is not a folder of this user alone",
                hint="name one that is not there yet, or give it to this user, with mode 0700",
            )
        if self._has_lock():
            return
        foreign = [
            name
            for name in self._names()
            if name not in (_LOCK, _OF_EVERY_DISK) and not _FORM.fullmatch(name)
        ]
        if foreign:
            raise ConfigError(
                f"cannot keep copies in {quote(self._path)}: there are other files in it, such as"
                f" {quote(min(foreign))}",
                hint="name a folder that is empty, or not there yet",
            )
        os.fchmod(self._folder, 0o700)

    def _has_lock(self) -> bool:
        """Return whether an agent has used the folder, and it is as that made it."""
        try:
            lock = os.stat(_LOCK, dir_fd=self._folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        modes = stat.S_IMODE(lock.st_mode), stat.S_IMODE(os.fstat(self._folder).st_mode)
        return stat.S_ISREG(lock.st_mode) and not lock.st_size and modes == (0o600, 0o700)

    def _names(self) -> list[str]:
        with os.scandir(self._folder) as entries:
            return [entry.name for entry in entries]

    def _read(self, name: str) -> Session:
        fd = self._open(name + _RECORD, os.O_RDONLY | os.O_NONBLOCK)
        try:
            session = restored(parse(content_of(fd, MAX_RECORD_BYTES)))
        finally:
            os.close(fd)
        if session.name != name:
            raise ValueError("a session under another name")
        return session

    def _set_aside(self, name: str, why: Exception) -> None:
        """Leave a record that cannot be read under another name, until the next start."""
        if stat.S_ISDIR(
            os.stat(name + _RECORD, dir_fd=self._folder, follow_symlinks=False).st_mode
        ):
            return
        folder = self._folder
        os.rename(name + _RECORD, name + _DAMAGED, src_dir_fd=folder, dst_dir_fd=folder)
        log.warning("damaged_copy", file=name + _DAMAGED, reason=str(why))

    def _open(self, name: str, flags: int) -> int:
        more = os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags | more, 0o600, dir_fd=self._folder)


class Archive:
    """The archive of a session, in its file. One thread at a time writes.

    Args:
        fd: the file; closed by ``close``.
        folder: where it is, for messages.

    Attributes:
        fd: the file.
        size_bytes: how much there is of it.
    """

    def __init__(self, fd: int, folder: str) -> None:
        self.fd = fd
        self.size_bytes = os.fstat(fd).st_size
        self._folder = folder

    def close(self) -> None:
        """Close the file."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def append(self, data: memoryview) -> None:
        """Write the next bytes.

        Raises:
            NoSpace: there is no space for them.
            CopyError: they cannot be written.
        """
        begin = self.size_bytes
        try:
            while data:
                count = os.pwrite(self.fd, data, self.size_bytes)
                self.size_bytes += count
                data = data[count:]
        except OSError as exc:
            raise self._failure(exc) from exc
        end = max(self.size_bytes - AHEAD_BYTES, 0)
        forget_behind(self.fd, max(begin - AHEAD_BYTES, 0), end)

    def read(self, offset: int, buffer: memoryview) -> int:
        """Fill a buffer from some offset on; return how much there was. Another may append."""
        count = os.preadv(self.fd, [buffer[: self.size_bytes - offset]], offset)
        forget_behind(self.fd, offset, offset + count)
        return count

    def checksum(self) -> int:
        """Return the checksum of what there is."""
        with Checksum() as checksum:
            checksum.add_file(self.fd, 0, self.size_bytes)
            return checksum.value

    def _failure(self, exc: OSError) -> CopyError:
        if exc.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return NoSpace(
                f"there is not enough space for the copy in {quote(self._folder)} of the node",
                hint="try again later",
            )
        return CopyError(f"cannot keep a copy in {_described(self._folder, exc)}")


def _described(folder: str, exc: OSError) -> str:
    return f"{quote(folder)}: {os.strerror(exc.errno or 0).lower()}"
