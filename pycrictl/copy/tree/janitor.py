"""What becomes of a stage when the program that made it is killed.

Each stage has a note on this machine: a file that says which container it is in, in which
directory, and its name there. Its program has locked the file; the kernel releases the lock however
the program ends. Whoever gets the lock may clear up: the next copy from or to the same container,
``cp --sweep``, and the proxy and the agent when they start. Where no note can be written the copy
goes on without one.

A merge that had begun is finished first, so that nothing half done is left. One that cannot be
finished stays as it is.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.tree.commit import Merge
from pycrictl.copy.tree.places import Root
from pycrictl.copy.tree.resolve import held
from pycrictl.copy.tree.rootfs import Directory
from pycrictl.errors import CopyError
from pycrictl.foreign import parse

VARIABLE: Final = "PYCRICTL_STAGES_DIR"

STAGE_NAME: Final = re.compile(rb"\.pycrictl-[0-9a-f]{16}")
"""The names of stages, which nothing else should have."""

TOP: Final = b"top"
"""In a stage, what is copied."""

COMMITS: Final = {False: b"commit", True: b"commit-new"}
"""What ``TOP`` is called while it is merged with the directory that the stage is in, without and
with ``--no-clobber``."""

_OF_ROOT: Final = "/var/lib/pycrictl/stages"
_MAX_BYTES: Final = 64 * 1024
_FLAGS: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Noted(NamedTuple):
    """Where a stage is, or was; without a container ID, on this machine."""

    container_id: str
    folder: bytes
    name: bytes


def write_note(container_id: str, folder: bytes, name: bytes) -> int:
    """Note where a stage is; the arguments are those of ``Noted``.

    Returns:
        The note's descriptor, which locks it until it is closed; -1: there is none.
    """
    fd = -1
    with suppress(OSError), _opened() as notes:
        # The lock comes first: without it this could be taken for one of the dead.
        fd = os.open(name, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=notes)
        fcntl.flock(fd, fcntl.LOCK_EX)  # who has looked at it lets it go at once
        path = os.path.abspath(folder)  # noqa: PTH100 (of bytes)
        os.write(fd, json.dumps([container_id, os.fsdecode(path), os.fsdecode(name)]).encode())
    return fd


def of_the_dead() -> Iterator[Noted]:
    """Yield what was left by programs that are dead.

    Each is locked until the next is asked for: nobody else clears it up meanwhile.
    """
    try:
        with _opened() as notes, os.scandir(notes) as entries:
            names = [entry.name for entry in entries]
    except OSError:
        return
    for name in names:
        with suppress(OSError, ValueError), _opened() as notes:
            fd = os.open(name, _FLAGS, dir_fd=notes)
            with open(fd, "rb") as file:  # noqa: PTH123 (a descriptor has no path)
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                status, text = os.fstat(fd), file.read(_MAX_BYTES)
                # An empty one may be just about to be locked.
                if text and status.st_nlink:
                    match parse(text):
                        case [str(container_id), str(path), str(stage)]:
                            yield Noted(container_id, os.fsencode(path), os.fsencode(stage))


def forget(name: bytes) -> None:
    """Remove the note of a stage."""
    with suppress(OSError), _opened() as notes:
        os.unlink(name, dir_fd=notes)


@contextmanager
def _opened() -> Iterator[int]:
    """Open the folder of notes, which nobody else may write to."""
    path = os.environ.get(VARIABLE, "")
    if not path and os.geteuid() == 0:
        path = _OF_ROOT
    elif not path:
        state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")  # noqa: PTH111
        path = f"{state}/pycrictl/stages"
    os.makedirs(path, 0o700, exist_ok=True)  # noqa: PTH103 (this module is loaded by each copy)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with held(os.open(path, flags)) as fd:
        status = os.fstat(fd)
        if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError
        yield fd


def random_name() -> bytes:
    """Return a name for a stage."""
    return f".pycrictl-{os.urandom(8).hex()}".encode()


def sweep_root(root: Root) -> int:
    """Clear up what dead programs have left in a container, or on this machine; return how much."""
    count = 0
    for noted in of_the_dead():
        if noted.container_id == root.container_id:
            with suppress(OSError, CopyError):
                _clear(noted, root)
                forget(noted.name)
                count += 1
    return count


def _clear(noted: Noted, root: Root) -> None:
    """Remove a stage whose program is dead; finish a merge that has begun."""
    if not STAGE_NAME.fullmatch(noted.name):
        return
    with (
        suppress(FileNotFoundError, NotADirectoryError),
        Directory(root.find(noted.folder, follow=True), noted.folder) as place,
    ):
        status = place.lstat(noted.name)
        if status is None or status.st_uid != os.geteuid():
            return
        if not stat.S_ISDIR(status.st_mode):
            place.remove(noted.name)
        elif status.st_mode & 0o777 == 0o700:
            with place.enter(noted.name) as stage:
                for no_clobber, name in COMMITS.items():
                    if stage.lstat(name) is not None:
                        with stage.enter(name) as staged:
                            Merge(staged, place, stage, Summary(), no_clobber).run()
            remove_stage(place, noted.name)


def remove_stage(place: Directory, name: bytes) -> None:
    """Remove a stage. There must be nothing in it that a merge needs."""
    with suppress(FileNotFoundError, NotADirectoryError), place.enter(name) as stage:
        for committed in COMMITS.values():
            with suppress(OSError):  # what is being removed must not be finished
                stage.move(committed, stage, TOP)
    place.remove(name)
