"""Copies that run, on the user's disk, so that one whose program was killed can be taken up again.

For each there is a file with what it is (JSON), which its program has locked, and for a copy out of
a container what has arrived of it. A program that ends in any other way than by being killed
removes both. What a killed one has left is removed once its session is gone, by the next copy.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from pycrictl.errors import CopyError
from pycrictl.kubectl.copies.patience import GIVE_UP_S
from pycrictl.units import quote

_FOLDER: Final = "pycrictl/copies"
_RECORD: Final = ".json"
_ARRIVED: Final = ".part"
_MARGIN_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class CopyRecord:
    """What a copy is: two with the same but for the last four are the same copy.

    Attributes:
        options: of the connection to the cluster, and of the copy.
        namespace, pod, container: where; the container is empty for the default.
        path: in the container.
        local: the other side, absolute.
        direction: ``To`` or ``From``.
        session: its name at the agent.
        size_bytes: of the archive.
        crc32: its checksum.
    """

    options: tuple[str, ...]
    namespace: str
    pod: str
    container: str
    path: str
    local: str
    direction: str
    session: str = ""
    size_bytes: int = 0
    crc32: int = 0

    def is_same(self, other: CopyRecord) -> bool:
        """Return whether both ask for the same."""
        return self._asked == other._asked

    @property
    def _asked(self) -> tuple[object, ...]:
        return (
            *(self.options, self.namespace, self.pod, self.container),
            *(self.path, self.local, self.direction),
        )


class Kept:
    """A copy that this program has kept and locked.

    Attributes:
        record: what it is.
        fd: what has arrived of it; -1 for a copy into a container.
    """

    def __init__(self, folder: int, record: CopyRecord, lock: int) -> None:
        self.record = record
        self.fd = -1
        self._folder = folder
        self._lock = lock

    def update(self, record: CopyRecord) -> None:
        """Keep what is known by now.

        Raises:
            CopyError: it cannot be written.
        """
        try:
            os.pwrite(self._lock, json.dumps(asdict(record)).encode(), 0)
        except OSError as exc:
            reason = os.strerror(exc.errno or 0).lower()
            raise CopyError(f"cannot keep the copy: {reason}") from exc
        self.record = record

    def open_arrived(self) -> int:
        """Open the file of what has arrived, which may hold something; return how much."""
        self.fd = os.open(
            self.record.session + _ARRIVED,
            os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC,
            0o600,
            dir_fd=self._folder,
        )
        return os.fstat(self.fd).st_size

    def append(self, data: memoryview, offset: int) -> None:
        """Keep more of what arrives.

        Raises:
            CopyError: there is no space for it.
        """
        try:
            while data:
                count = os.pwrite(self.fd, data, offset)
                offset += count
                data = data[count:]
        except OSError as exc:
            reason = os.strerror(exc.errno or 0).lower()
            raise CopyError(f"cannot keep what arrives: {reason}") from exc

    def touch(self) -> None:
        """Note that the session was alive."""
        with suppress(OSError):
            os.utime(self._lock)

    def remove(self) -> None:
        """Remove all of it: the copy is over."""
        _remove(self._folder, self.record.session)
        self.release()

    def release(self) -> None:
        """Leave it to be taken up again."""
        for fd in (self.fd, self._lock):
            if fd >= 0:
                os.close(fd)
        self.fd = self._lock = -1


class Saved:
    """The copies of this user.

    Args:
        environ: variables of this process; ``XDG_STATE_HOME`` or ``HOME`` says where they are.

    Raises:
        CopyError: they cannot be kept there.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        base = environ.get("XDG_STATE_HOME", "")
        if not base.startswith("/"):
            base = str(Path(environ.get("HOME") or "~").expanduser() / ".local/state")
        path = Path(base) / _FOLDER
        try:
            path.mkdir(0o700, parents=True, exist_ok=True)
            self._folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as exc:
            reason = os.strerror(exc.errno or 0).lower()
            raise CopyError(f"cannot keep copies in {quote(str(path))}: {reason}") from exc
        self._sweep()

    def close(self) -> None:
        """Close the folder. Copies that are kept do not need it any more."""
        os.close(self._folder)

    def keep(self, record: CopyRecord) -> Kept:
        """Keep a copy that begins.

        Raises:
            CopyError: it cannot be written.
        """
        name = record.session + _RECORD
        try:
            fd = self._open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(fd, json.dumps(asdict(record)).encode())
        except OSError as exc:
            reason = os.strerror(exc.errno or 0).lower()
            raise CopyError(f"cannot keep the copy: {reason}") from exc
        return Kept(self._folder, record, fd)

    def find(self, asked: CopyRecord) -> Kept | None:
        """Return the copy that asks for the same and that no program works on; None without."""
        for name in self._names():
            fd = self._locked(name)
            if fd < 0:
                continue
            record = _read(fd)
            if record is not None and record.is_same(asked):
                return Kept(self._folder, record, fd)
            os.close(fd)
        return None

    def _sweep(self) -> None:
        """Remove what was left by programs that were killed, once it is of no use."""
        for name in self._names():
            fd = self._locked(name)
            if fd < 0:
                continue
            age_s = time.time() - os.fstat(fd).st_mtime
            if age_s > GIVE_UP_S + _MARGIN_S or _read(fd) is None:
                _remove(self._folder, name.removesuffix(_RECORD))
            os.close(fd)

    def _names(self) -> Iterator[str]:
        with os.scandir(self._folder) as entries:
            names = [entry.name for entry in entries]
        yield from (name for name in names if name.endswith(_RECORD))

    def _locked(self, name: str) -> int:
        """Open a copy's file and lock it; -1 if another program has it, or it is gone."""
        fd = -1
        try:
            fd = self._open(name, os.O_RDWR)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_nlink:
                return fd
        except OSError:
            pass
        if fd >= 0:
            os.close(fd)
        return -1

    def _open(self, name: str, flags: int) -> int:
        more = os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags | more, 0o600, dir_fd=self._folder)


def _read(fd: int) -> CopyRecord | None:
    try:
        with open(fd, "rb", closefd=False) as file:
            found = json.load(file)
        return CopyRecord(**{**found, "options": tuple(found["options"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _remove(folder: int, session: str) -> None:
    for suffix in (_ARRIVED, _RECORD):
        with suppress(OSError):
            os.unlink(session + suffix, dir_fd=folder)
