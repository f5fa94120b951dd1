"""Running copies, recorded on the user's disk: one whose program was killed can be resumed.

Each has a record (JSON), locked by its program, and a copy out of a container also has a file with
the bytes that have arrived. A program removes both at its end, unless it is killed or gives up on
a broken connection. What it leaves is removed by a later copy, once its session has expired.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from pycrictl.copy.archive.pack import file_pieces
from pycrictl.copy.archive.spool import forget_behind
from pycrictl.copy.tree.content import write_all
from pycrictl.copy.tree.resolve import held
from pycrictl.errors import CopyError
from pycrictl.foreign import mapping, parse
from pycrictl.kubectl.copies.api import GIVE_UP_S
from pycrictl.noderoot import content_of
from pycrictl.units import quote

_FOLDER: Final = "pycrictl/copies"
_RECORD: Final = ".json"
_ARRIVED: Final = ".part"
SESSION: Final = re.compile(r"[0-9a-f]{32}")
_FORM: Final = re.compile(rf"{SESSION.pattern}{re.escape(_RECORD)}")
_MARGIN_S: Final = 60.0
_LAST_BYTES: Final = 64 * 1024 * 1024
"""The last bytes are not flushed: the file is removed right after, which would wait for that."""


@dataclass(frozen=True, slots=True)
class CopyRecord:
    """A copy.

    Attributes:
        options: hashes of the options of the connection to the cluster.
        local: the side outside the container, absolute, one path a line; ``-`` for an archive.
        spec: the request to the agent.
        session: name of the session at the agent.
    """

    options: tuple[str, ...]
    namespace: str
    pod: str
    local: str
    spec: dict[str, Any]
    session: str = ""

    @property
    def identity(self) -> CopyRecord:
        """The record without the fields that differ when the same copy is repeated."""
        return replace(self, session="", spec={**self.spec, "size": 0, "checksum": 0})


class Saved:
    """The copies recorded in the user's state folder, and the copy of this program.

    If the folder is not writable, as in many containers, nothing is saved: a copy whose program is
    killed starts over.

    Attributes:
        record: of the copy of this program.
        expected_bytes: size of its archive; 0 if unknown.
    """

    record: CopyRecord
    expected_bytes = 0

    def __init__(self, environ: Mapping[str, str], note: Callable[[str], None]) -> None:
        self._note = note
        self._folder = self._lock = self._arrived = -1
        self._path = state = _state(environ)
        try:
            self._folder = _opened(state)
        except OSError as exc:
            note(f"cannot keep copies in {_described(state, exc)}; if killed, it cannot be resumed")
        else:
            self._sweep()

    def close(self) -> None:
        self.release()
        if self._folder >= 0:
            os.close(self._folder)

    # The copy of this program

    def keep(self, record: CopyRecord) -> None:
        self.record, self.expected_bytes = record, 0
        if self._folder < 0:
            return
        try:
            name = record.session + _RECORD
            self._lock = _open(self._folder, name, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            # Programs that search for a copy to resume hold this lock only briefly.
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            os.write(self._lock, json.dumps(asdict(record)).encode())
        except OSError as exc:
            self.remove()
            raise CopyError(f"cannot keep the copy in {_described(self._path, exc)}") from exc

    def take_up(self, asked: CopyRecord) -> bool:
        """Take over the same copy from a program that has ended; return whether there is one."""
        for _, fd in self._unused():
            record = _read(fd)
            if record is not None and record.identity == asked.identity:
                self.record, self._lock = record, os.dup(fd)
                return True
        return False

    def arrived(self) -> Iterator[memoryview]:
        """Open the file for ``append``, and yield the bytes that it has already."""
        if self._folder < 0:
            return
        try:
            name = self.record.session + _ARRIVED
            self._arrived = _open(self._folder, name, os.O_RDWR | os.O_CREAT)
            size_bytes = os.fstat(self._arrived).st_size
        except OSError as exc:
            self._give_up(exc)
            return
        yield from file_pieces(self._arrived, 0, size_bytes)

    def append(self, data: memoryview, offset: int) -> None:
        if self._arrived < 0:
            return
        end = offset + len(data)
        try:
            write_all(self._arrived, data, offset)
        except OSError as exc:
            self._give_up(exc)
            return
        if self.expected_bytes - end > _LAST_BYTES:
            forget_behind(self._arrived, offset, end)

    def _give_up(self, exc: OSError) -> None:
        """Continue without saving the bytes: they are needed only after a kill."""
        reason = os.strerror(exc.errno or 0).lower()
        self._note(f"cannot keep what arrives: {reason}; if killed, it cannot be resumed")
        with suppress(OSError):
            os.unlink(self.record.session + _ARRIVED, dir_fd=self._folder)
        if self._arrived >= 0:
            os.close(self._arrived)
            self._arrived = -1

    def touch(self) -> None:
        with suppress(OSError):
            os.utime(self._lock)

    def remove(self) -> None:
        _remove(self._folder, self.record.session)
        self.release()

    def release(self) -> None:
        for fd in (self._arrived, self._lock):
            if fd >= 0:
                os.close(fd)
        self._arrived = self._lock = -1

    # Copies left by earlier programs

    def _sweep(self) -> None:
        """Remove records of killed programs that are too old to resume."""
        for session, fd in self._unused():
            age_s = time.time() - os.fstat(fd).st_mtime
            if age_s > GIVE_UP_S + _MARGIN_S:  # before that, another version may be able to read it
                _remove(self._folder, session)

    def _unused(self) -> Iterator[tuple[str, int]]:
        """Yield the copies of programs that have ended, each locked until the next iteration."""
        if self._folder < 0:
            return
        for name in os.listdir(self._folder):  # noqa: PTH208 (a descriptor)
            if not _FORM.fullmatch(name):
                continue
            with suppress(OSError), held(_open(self._folder, name, os.O_RDWR)) as fd:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(fd).st_nlink:
                    yield name.removesuffix(_RECORD), fd


def _open(folder: int, name: str, flags: int) -> int:
    return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)


def _state(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_STATE_HOME", "")
    if base.startswith("/"):
        return Path(base, _FOLDER)
    home = environ.get("HOME") or os.path.expanduser("~")  # noqa: PTH111 (never fails)
    return Path(home, ".local/state", _FOLDER)


def _opened(path: Path) -> int:
    if not path.is_absolute():  # the user has no home directory
        raise FileNotFoundError(errno.ENOENT, "")
    path.mkdir(0o700, parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if not os.access(path, os.W_OK | os.X_OK):
        os.close(fd)
        raise OSError(errno.EACCES, "")
    return fd


def _described(path: Path, exc: OSError) -> str:
    return f"{quote(str(path))}: {os.strerror(exc.errno or 0).lower()}"


def _read(fd: int) -> CopyRecord | None:
    try:
        found = mapping(parse(content_of(fd)))
        options, spec = tuple(found["options"]), mapping(found["spec"])
        record = CopyRecord(**{**found, "options": options, "spec": spec})
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return record if SESSION.fullmatch(str(record.session)) else None


def _remove(folder: int, session: str) -> None:
    for suffix in (_ARRIVED, _RECORD):
        with suppress(OSError):
            os.unlink(session + suffix, dir_fd=folder)
