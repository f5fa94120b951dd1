"""Cleaning up the stages of killed programs.

Each stage has a note on this machine: a file with the stage's container, directory and name. The
program that made the stage locks the file; the kernel releases the lock however that program ends.
The next program to get the lock may clean up: the next copy from or to the same container,
``cp --sweep``, and the proxy and the agent when they start. If no note can be written, the copy
continues without one.

A merge that had begun is finished first, to leave nothing half done. If it fails, the stage stays.
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

from pycrictl.base.errors import CopyError
from pycrictl.base.foreign import parse
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.tree.commit import Merge
from pycrictl.copy.tree.places import Root
from pycrictl.copy.tree.rootfs import Directory, held

VARIABLE: Final = "PYCRICTL_STAGES_DIR"

STAGE_NAME: Final = re.compile(rb"\.pycrictl-[0-9a-f]{16}")
"""The names of stages, which nothing else should have."""

TOP: Final = b"top"
"""The name of the copied tree or file in a stage."""

COMMITS: Final = {False: b"commit", True: b"commit-new"}
"""The names of ``TOP`` while it is merged with the directory that the stage is in, without and with
``--no-clobber``."""

_OF_ROOT: Final = "/var/lib/pycrictl/stages"
_MAX_BYTES: Final = 64 * 1024
_FLAGS: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Noted(NamedTuple):
    """The location of a stage; without a container ID, it is on this machine."""

    container_id: str
    folder: bytes
    name: bytes


def write_note(container_id: str, folder: bytes, name: bytes) -> int:
    """Write the note of a stage; the arguments are those of ``Noted``.

    Returns:
        The note's descriptor, which locks it until it is closed; -1 if there is no note.
    """
    fd = -1
    with suppress(OSError), _opened() as notes:
        # Lock before writing: an unlocked note counts as one of a dead program.
        fd = os.open(name, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=notes)
        fcntl.flock(fd, fcntl.LOCK_EX)  # a sweeper may hold it for a moment
        path = os.path.abspath(folder)  # noqa: PTH100 (of bytes)
        os.write(fd, json.dumps([container_id, os.fsdecode(path), os.fsdecode(name)]).encode())
    return fd


def leftover_notes() -> Iterator[Noted]:
    """Yield the notes of dead programs.

    Each is locked until the next is requested: no other program cleans it up meanwhile.
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
                # An empty note may be about to be locked by its program.
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
    """Open the folder of notes, which only this user may write to."""
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
    """Clean up the stages of dead programs under a root; return their number."""
    count = 0
    for noted in leftover_notes():
        if noted.container_id == root.container_id:
            with suppress(OSError, CopyError):
                _clear(noted, root)
                forget(noted.name)
                count += 1
    return count


def _clear(noted: Noted, root: Root) -> None:
    """Remove a stage whose program is dead, after finishing a merge that had begun."""
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
    """Remove a stage. No merge may still need its contents."""
    with suppress(FileNotFoundError, NotADirectoryError), place.enter(name) as stage:
        for committed in COMMITS.values():
            with suppress(OSError):  # a merge being removed must not be finished
                stage.move(committed, stage, TOP)
    place.remove(name)
