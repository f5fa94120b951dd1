"""Where stages are, noted on this machine, so that those of killed programs are found again.

Each stage has a file that says which container it is in, in which directory, and its name there.
Its program has locked the file; the kernel lets go of the lock however the program ends. Whoever
gets the lock may clear up: the next copy from or to the same container, ``cp --sweep``, and the
proxy and the agent when they start. What is in the file is only where to look: whether there is a
stage of the dead is seen there (``janitor``). Where no file can be written the copy goes on without
one, and the next copy into the same directory clears up.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

VARIABLE: Final = "PYCRICTL_STAGES_DIR"

_OF_ROOT: Final = "/var/lib/pycrictl/stages"
_EMPTY_S: Final = 60.0
_MAX_BYTES: Final = 64 * 1024
_FLAGS: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Noted(NamedTuple):
    """Where a stage is, or was.

    Attributes:
        container_id: of the container; empty for this machine.
        folder: the directory that it is in.
        name: its name there.
        age_s: since when.
    """

    container_id: str
    folder: bytes
    name: bytes
    age_s: float = 0.0


class Note:
    """The file about one stage, locked.

    Args:
        noted: what it says.
    """

    def __init__(self, noted: Noted) -> None:
        self._fd = -1
        self._name = os.fsdecode(noted.name)
        with suppress(OSError), _opened() as folder:
            # The lock comes first: without it this could be taken for one of the dead.
            self._fd = os.open(self._name, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
            fcntl.flock(self._fd, fcntl.LOCK_EX)  # who has looked at it lets it go at once
            path = os.path.abspath(noted.folder)  # noqa: PTH100 (of bytes)
            words = [noted.container_id, os.fsdecode(path), self._name]
            os.write(self._fd, json.dumps(words).encode())

    def close(self, *, is_removed: bool) -> None:
        """Let go of it; remove it if there is nothing left to clear up."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            if is_removed:
                _remove(self._name)
            os.close(fd)


def of_the_dead() -> Iterator[Noted]:
    """Yield what was left by programs that are dead; each is forgotten unless an error is raised.

    It is locked until the next is asked for: nobody else clears it up meanwhile.
    """
    try:
        with _opened() as folder, os.scandir(folder) as entries:
            names = [entry.name for entry in entries]
    except OSError:
        return
    for name in names:
        with suppress(OSError, ValueError), _opened() as folder:
            fd = os.open(name, _FLAGS, dir_fd=folder)
            with open(fd, "rb") as file:  # noqa: PTH123 (a descriptor has no path)
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                age_s = time.time() - os.fstat(fd).st_mtime
                text = file.read(_MAX_BYTES)
                if not text and age_s > _EMPTY_S:
                    _remove(name)
                # One without a word may be just about to be locked.
                if text and os.fstat(fd).st_nlink:
                    match json.loads(text):
                        case [str(container_id), str(path), str(stage)]:
                            yield Noted(container_id, os.fsencode(path), os.fsencode(stage), age_s)


def forget(noted: Noted) -> None:
    """Remove what says where a stage was."""
    _remove(os.fsdecode(noted.name))


def _remove(name: str) -> None:
    with suppress(OSError), _opened() as folder:
        os.unlink(name, dir_fd=folder)


@contextmanager
def _opened() -> Iterator[int]:
    """Open the folder, which nobody else may write to.

    Raises:
        OSError: there is none.
    """
    path = os.environ.get(VARIABLE, "")
    if not path and os.geteuid() == 0:
        path = _OF_ROOT
    elif not path:
        if not (own := os.environ.get("XDG_RUNTIME_DIR", "")):
            raise FileNotFoundError
        path = f"{own}/pycrictl-stages"
    os.makedirs(path, 0o700, exist_ok=True)  # noqa: PTH103 (this module is loaded by each copy)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError
        yield fd
    finally:
        os.close(fd)
