"""Moving a finished stage into place: all of it, or nothing.

A new entry is moved with one rename. If both sides are directories, their contents are merged:
first everything is compared without changes, then each name is moved, with signals held back. If a
move fails, the earlier ones are undone: replaced files keep a second name in the stage until the
end. Entries still in the staged directory are those that remain to be moved: any program that finds
the directory can continue.

Each stage has a note on this machine: a file with the stage's container, directory and name. The
program that made the stage locks the file; the kernel releases the lock however that program ends.
The next program to get the lock may clean up: the next copy from or to the same container, and the
proxy and the agent when they start. A merge that had begun is finished first; if that fails, the
stage stays. If no note can be written, the copy continues without one.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import stat
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pycrictl.base.errors import CopyError
from pycrictl.base.foreign import parse
from pycrictl.base.units import quote
from pycrictl.copy.rules.policy import Path
from pycrictl.copy.rules.spec import Meeting, meet
from pycrictl.copy.tree.places import Root
from pycrictl.copy.tree.rootfs import RENAME_NOREPLACE, Directory, descend, existing_kind, held

_UNKNOWN_FLAGS: Final = frozenset({errno.EINVAL, errno.ENOSYS})


class _Step(NamedTuple):
    """What to do with one name; ``mounted`` is the mount point that it is below, if any."""

    staged: Directory
    target: Directory
    path: Path
    meeting: Meeting
    mounted: bytes


@dataclass(eq=False)
class Merge:
    """Merges a directory of the stage into one of the destination; neither is closed here.

    Attributes:
        spare: the stage, where replaced files are kept until the end.
        merged: directories that existed already.
        is_halfway: it failed and could not be undone: the stage is still needed.
    """

    staged: Directory
    target: Directory
    spare: Directory
    merged: list[Path] = field(default_factory=list, init=False)
    is_halfway: bool = field(default=False, init=False)
    _moved: list[tuple[Path, bytes]] = field(default_factory=list, init=False)

    def check(self) -> None:
        """Compare everything, without changes."""
        with closing(self._steps(self.staged, self.target)) as steps:
            for step in steps:
                if step.mounted and step.meeting is not Meeting.MERGE:
                    # A rename cannot cross file systems.
                    shown = quote(os.fsdecode(step.mounted))
                    raise CopyError(
                        f"another file system is mounted at {shown}, inside the destination",
                        hint=f"copy the files for {shown} separately",
                    )

    def run(self) -> None:
        """Move everything. Each name is checked again: others may have changed it meanwhile."""
        try:
            with closing(self._steps(self.staged, self.target)) as steps:
                for staged, target, path, meeting, _ in steps:
                    if meeting is Meeting.MERGE:
                        self.merged.append(path)
                    elif meeting is Meeting.MAKE:
                        move_new(staged, path[-1], target, path[-1])
                        self._moved.append((path, b""))
                    else:
                        self._replace(staged, target, path)
        except (OSError, CopyError):
            self._undo()
            raise

    def _replace(self, staged: Directory, target: Directory, path: Path) -> None:
        name, spare = path[-1], b"old-" + os.urandom(8).hex().encode()
        try:
            self.spare.link(target, name, spare)
        except OSError:
            # Users may not link to files of others, and some file systems have no hard links:
            # the name is then missing for a moment.
            target.move(name, self.spare, spare)
        self._moved.append((path, spare))
        staged.move(name, target, name)

    def _undo(self) -> None:
        for path, spare in reversed(self._moved):
            *above, name = path
            try:
                with descend(self.staged, above) as staged, descend(self.target, above) as target:
                    if staged.lstat(name) is None:
                        target.move(name, staged, name)
                    if spare:
                        self.spare.move(spare, target, name)
            except OSError:
                self.is_halfway = True

    def _steps(
        self, staged: Directory, target: Directory, above: Path = (), mounted: bytes = b""
    ) -> Generator[_Step, None, None]:
        # Listed first: moving entries away would disturb reading the directory.
        for name in [os.fsencode(entry.name) for entry in staged.scan()]:
            meeting = meet(
                existing_kind(staged.lstat(name)),
                existing_kind(target.lstat(name)),
                shown=quote(os.fsdecode(target.shown_path(name))),
            )
            if meeting is Meeting.REPLACE:
                target.refuse_mounted(name)
            yield _Step(staged, target, (*above, name), meeting, mounted)
            if meeting is Meeting.MERGE:
                inside = target.shown_path(name) if target.is_mount_point(name) else mounted
                with staged.enter(name) as inner, target.enter(name) as inner_target:
                    yield from self._steps(inner, inner_target, (*above, name), inside)


def move_new(staged: Directory, name: bytes, target: Directory, new_name: bytes) -> None:
    """Move an entry to an unused name."""
    try:
        staged.move(name, target, new_name, flags=RENAME_NOREPLACE)
    except OSError as exc:
        if exc.errno not in _UNKNOWN_FLAGS:
            raise
        if target.lstat(new_name) is not None:
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
        staged.move(name, target, new_name)


VARIABLE: Final = "PYCRICTL_STAGES_DIR"

STAGE_NAME: Final = re.compile(rb"\.pycrictl-[0-9a-f]{16}")
"""The names of stages, which nothing else should have."""

TOP: Final = b"top"
"""The name of the copied tree or file in a stage."""

COMMIT: Final = b"commit"
"""The name of ``TOP`` while it is merged with the directory that the stage is in."""

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


def sweep_root(root: Root) -> None:
    """Clean up the stages of dead programs under a root."""
    for noted in leftover_notes():
        if noted.container_id == root.container_id:
            with suppress(OSError, CopyError):
                _clear(noted, root)
                forget(noted.name)


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
                if stage.lstat(COMMIT) is not None:
                    with stage.enter(COMMIT) as staged:
                        Merge(staged, place, stage).run()
            remove_stage(place, noted.name)


def remove_stage(place: Directory, name: bytes) -> None:
    """Remove a stage. No merge may still need its contents."""
    with suppress(FileNotFoundError, NotADirectoryError), place.enter(name) as stage:
        stage.move(COMMIT, stage, TOP)  # a merge being removed must not be finished
    place.remove(name)
