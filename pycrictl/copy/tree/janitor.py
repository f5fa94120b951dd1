"""What becomes of a stage when the program that made it is killed.

It stays until somebody looks for it: the next copy from or to the same container, ``cp --sweep``,
and the services at their start, by what is noted (``notes``); and the next copy into the same
directory. Whether its program is dead is seen by its locks, which the kernel has released then.

A merge that had begun is finished first, so that nothing half done is left. One that cannot be
finished stays as it is: what it has replaced is in its stage.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import time
from contextlib import suppress
from itertools import islice
from typing import Final

from pycrictl.copy.tree.commit import Merge
from pycrictl.copy.tree.notes import Noted, forget, of_the_dead
from pycrictl.copy.tree.places import Root
from pycrictl.copy.tree.resolve import own_descriptors
from pycrictl.copy.tree.rootfs import Directory
from pycrictl.errors import CopyError

PREFIX: Final = ".pycrictl-"
STAGE_NAME: Final = re.compile(rb"\.pycrictl-[0-9a-f]{16}")
"""The names of stages, which nothing else should have."""

TOP: Final = b"top"
"""In a stage, what is copied."""

COMMIT: Final = b"commit"
"""What ``TOP`` is called while it is merged with the directory that the stage is in."""

COMMIT_NEW: Final = b"commit-new"
"""Its name if what is there already stays as it is."""

OWNER: Final = b"owner"
"""The file in a stage that its owner has locked. It contains the stage's name."""

_LOCK_LIMIT_S: Final = 60.0
_LOCK_PAUSE_S: Final = 0.05

_MAX_SWEPT: Final = 10_000
"""How many names of a directory are looked at in search of stages."""


def random_name() -> bytes:
    """Return a name for a stage."""
    return f"{PREFIX}{os.urandom(8).hex()}".encode()


def clear(noted: Noted, root: Root) -> None:
    """Remove a stage or a file whose program is dead; finish a merge that has begun.

    Args:
        noted: where it was.
        root: of the container, or of this machine.

    Raises:
        OSError, CopyError: it is still there.
    """
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
            place.unlink(noted.name)
        elif status.st_mode == stat.S_IFDIR | 0o700:
            locked = _wait_for_lock(place, noted.name)
            try:
                _settle(place, noted.name)
            finally:
                if locked >= 0:
                    os.close(locked)


def sweep_root(root: Root) -> int:
    """Clear up what dead programs have left in a container, or on this machine; return how much."""
    count = 0
    for noted in of_the_dead():
        if noted.container_id == root.container_id:
            with suppress(OSError, CopyError):
                clear(noted, root)
                forget(noted)
                count += 1
    return count


def _wait_for_lock(place: Directory, name: bytes) -> int:
    """Keep others from settling a stage at the same time.

    Returns:
        A descriptor that holds its lock; -1 if it has none, or the file system has no locks.

    Raises:
        BlockingIOError: another program is dealing with it.
    """
    try:
        with place.enter(name) as stage:
            fd = _open_regular(stage, OWNER)
    except (FileNotFoundError, NotADirectoryError):
        return -1
    give_up_at = time.monotonic() + _LOCK_LIMIT_S
    while fd >= 0:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            if exc.errno == errno.EWOULDBLOCK and time.monotonic() < give_up_at:
                time.sleep(_LOCK_PAUSE_S)
                continue
            os.close(fd)
            if exc.errno == errno.EWOULDBLOCK:
                raise
            return -1
        return fd
    return -1


def _settle(place: Directory, name: bytes) -> None:
    """Finish the merge of a stage if it has begun, and remove the stage.

    Raises:
        OSError, CopyError: it cannot be finished; the stage is still there.
    """
    with suppress(FileNotFoundError, NotADirectoryError), place.enter(name) as stage:
        for marker in (COMMIT, COMMIT_NEW):
            if stage.lstat(marker) is not None:
                with stage.enter(marker) as staged:
                    Merge(staged, place, stage, no_clobber=marker == COMMIT_NEW).run()
    remove_stage(place, name)


def claim(stage: Directory, name: bytes) -> int:
    """Make the lock of a new stage.

    Returns:
        A descriptor to keep open for as long as the stage is in use.
    """
    fd = stage.create(OWNER)
    # Locked before it says whose it is: a stage without a name in it is left alone.
    lock(fd)
    os.write(fd, name)
    return fd


def lock(fd: int) -> bool:
    """Lock a file against ``sweep``; return False if it is locked or cannot be."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def remove_stage(place: Directory, name: bytes) -> None:
    """Remove a stage, its lock last, so that what is left of it can be recognized.

    There must be nothing in it that a merge needs.
    """
    with suppress(FileNotFoundError, NotADirectoryError), place.enter(name) as stage:
        for marker in (COMMIT, COMMIT_NEW):
            with suppress(OSError):  # what is being removed must not be finished
                stage.move(marker, stage, TOP)
        for inner in [os.fsencode(entry.name) for entry in stage.scan()]:
            if inner != OWNER:
                stage.remove(inner)
    place.remove(name)


def sweep(place: Directory) -> None:
    """Remove the stages in a directory whose owners have died; finish the merges among them.

    A stage belongs to this user, is closed to all others, and has a file in it with its own name
    that is not locked. A file that was about to be moved into place needs no more than the lock:
    those who could give another file such a name could remove it as well.
    """
    with suppress(OSError, CopyError):
        names = [os.fsencode(entry.name) for entry in islice(place.scan(), _MAX_SWEPT)]
        for name in names:
            if STAGE_NAME.fullmatch(name):
                with suppress(OSError, CopyError):
                    _sweep(place, name)


def _sweep(place: Directory, name: bytes) -> None:
    status = place.lstat(name)
    if status is None:
        return
    if stat.S_ISREG(status.st_mode):
        # An empty one may not have been locked yet.
        if status.st_size and (fd := _lock_named(place, name)) >= 0:
            with open(fd, "rb"):  # noqa: PTH123 (a descriptor has no path)
                place.unlink(name)
    elif status.st_uid == os.geteuid() and status.st_mode == stat.S_IFDIR | 0o700:
        with place.enter(name) as stage:
            fd = _lock_named(stage, OWNER)
        if fd >= 0:
            with open(fd, "rb") as owner:  # noqa: PTH123 (the same)
                if owner.read(100) == name:
                    _settle(place, name)


def _lock_named(folder: Directory, name: bytes) -> int:
    """Lock a regular file; return a descriptor that holds the lock, or -1 if it is locked."""
    fd = _open_regular(folder, name)
    if fd < 0 or lock(fd):
        return fd
    os.close(fd)
    return -1


def _open_regular(folder: Directory, name: bytes) -> int:
    """Open a regular file for reading and writing; return -1 if it is anything else."""
    pinned = folder.pin(name)
    try:
        if not stat.S_ISREG(os.fstat(pinned).st_mode):
            return -1
        flags = os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        return os.open(b"%d" % pinned, flags, dir_fd=own_descriptors())
    finally:
        os.close(pinned)
