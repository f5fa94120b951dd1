"""Moving a finished stage into place: all of it, or nothing.

A new entry is moved with one rename. If both sides are directories, their contents are merged:
first everything is compared without changes, then each name is moved, with signals held back. If a
move fails, the earlier ones are undone: replaced files keep a second name in the stage until the
end. Entries still in the staged directory are those that remain to be moved: any program that finds
it can continue.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pycrictl.base.errors import CopyError
from pycrictl.base.units import quote
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import Path
from pycrictl.copy.rules.spec import Existing, Meeting, meet
from pycrictl.copy.tree.rootfs import RENAME_NOREPLACE, Directory, descend

_UNKNOWN_FLAGS: Final = frozenset({errno.EINVAL, errno.ENOSYS})


def kind_of_mode(mode: int) -> Existing:
    """Return the kind for a mode; others may need special files, such as ``/dev/null``."""
    if stat.S_ISDIR(mode):
        return Existing.DIRECTORY
    return Existing.FILE if stat.S_ISREG(mode) or stat.S_ISLNK(mode) else Existing.SPECIAL


def existing_kind(status: os.stat_result | None) -> Existing:
    """Return the kind of a destination."""
    return Existing.NOTHING if status is None else kind_of_mode(status.st_mode)


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
        summary: of the entries in the stage; those left out because their names exist already are
            subtracted.
        merged: directories that existed already.
        is_halfway: it failed and could not be undone: the stage is still needed.
    """

    staged: Directory
    target: Directory
    spare: Directory
    summary: Summary
    no_clobber: bool
    merged: list[Path] = field(default_factory=list, init=False)
    is_halfway: bool = field(default=False, init=False)
    _moved: list[tuple[Path, bytes]] = field(default_factory=list, init=False)
    _kept_names: Counter[int] = field(default_factory=Counter, init=False)

    def check(self) -> None:
        """Compare everything, without changes."""
        with closing(self._steps(self.staged, self.target)) as steps:
            for step in steps:
                if step.mounted and step.meeting in (Meeting.MAKE, Meeting.REPLACE):
                    # A rename cannot cross file systems.
                    shown = quote(os.fsdecode(step.mounted))
                    raise CopyError(
                        f"another file system is mounted at {shown}, which the copy reaches into",
                        hint=f"copy what belongs there to {shown} separately",
                    )

    def run(self) -> None:
        """Move everything. Each name is checked again: others may have changed it meanwhile."""
        try:
            with closing(self._steps(self.staged, self.target)) as steps:
                for staged, target, path, meeting, _ in steps:
                    if meeting is Meeting.MERGE:
                        self.merged.append(path)
                    elif meeting is Meeting.KEEP:
                        self._keep(staged.lstat(path[-1]))
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
                no_clobber=self.no_clobber,
                shown=quote(os.fsdecode(target.shown_path(name))),
            )
            if meeting is Meeting.REPLACE:
                target.refuse_mounted(name)
            yield _Step(staged, target, (*above, name), meeting, mounted)
            if meeting is Meeting.MERGE:
                inside = target.shown_path(name) if target.is_mount_point(name) else mounted
                with staged.enter(name) as inner, target.enter(name) as inner_target:
                    yield from self._steps(inner, inner_target, (*above, name), inside)

    def _keep(self, status: os.stat_result | None) -> None:
        """Count an entry that stays in the stage."""
        if status is None:
            return
        summary = self.summary
        summary.kept += 1
        if stat.S_ISLNK(status.st_mode):
            summary.links -= 1
            return
        summary.files -= 1
        # Content with another hard link may still be moved under that name.
        self._kept_names[status.st_ino] += 1
        if self._kept_names[status.st_ino] == status.st_nlink:
            summary.size_bytes -= status.st_size


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
