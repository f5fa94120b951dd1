"""Moving a finished stage into place.

What is not there yet is moved with one rename. Where directories meet, their contents are merged:
first everything is compared and nothing changed, then each name is moved, and no signal comes in
between. What is still in the stage is what remains to be done: any program that finds it can carry
on.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from collections.abc import Generator
from contextlib import closing
from typing import Final, NamedTuple

from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import Path
from pycrictl.copy.rules.spec import Existing, Meeting, meet, reaches_into
from pycrictl.copy.tree.rootfs import RENAME_NOREPLACE, Directory
from pycrictl.units import quote

_UNKNOWN_FLAGS: Final = frozenset({errno.EINVAL, errno.ENOSYS})


def kind_of_mode(mode: int) -> Existing:
    """Return the kind of what has a mode; what others need, such as ``/dev/null``, is special."""
    if stat.S_ISDIR(mode):
        return Existing.DIRECTORY
    return Existing.FILE if stat.S_ISREG(mode) or stat.S_ISLNK(mode) else Existing.SPECIAL


def existing_kind(status: os.stat_result | None) -> Existing:
    """Return the kind of a destination."""
    return Existing.NOTHING if status is None else kind_of_mode(status.st_mode)


class _Step(NamedTuple):
    """What is to become of one name; ``mounted`` is the mounted directory that it is in, if any."""

    staged: Directory
    target: Directory
    path: Path
    meeting: Meeting
    mounted: bytes


class Merge:
    """Merges a directory of the stage into one of the destination; neither is closed here.

    Args:
        summary: of what is in the stage; what is left out, as its name was there already, is taken
            from it.

    Attributes:
        merged: directories that were there already.
        has_begun: something was moved.
    """

    def __init__(
        self, staged: Directory, target: Directory, summary: Summary, *, no_clobber: bool
    ) -> None:
        self._staged = staged
        self._target = target
        self._summary = summary
        self._no_clobber = no_clobber
        self._kept_names: Counter[int] = Counter()
        self.merged: list[Path] = []
        self.has_begun = False

    def check(self) -> None:
        """Compare everything; nothing is changed."""
        with closing(self._steps(self._staged, self._target)) as steps:
            for step in steps:
                if step.mounted and step.meeting in (Meeting.MAKE, Meeting.REPLACE):
                    # Nothing can be moved there from the stage.
                    raise reaches_into(step.mounted)

    def run(self) -> None:
        """Move everything. Each name is looked at again: others may have changed it meanwhile."""
        with closing(self._steps(self._staged, self._target)) as steps:
            for staged, target, path, meeting, _ in steps:
                name = path[-1]
                if meeting is Meeting.MERGE:
                    self.merged.append(path)
                elif meeting is Meeting.KEEP:
                    self._keep(staged.lstat(name))
                elif meeting is Meeting.MAKE:
                    move_new(staged, name, target, name)
                    self.has_begun = True
                else:
                    staged.move(name, target, name)
                    self.has_begun = True

    def _steps(
        self, staged: Directory, target: Directory, above: Path = (), mounted: bytes = b""
    ) -> Generator[_Step, None, None]:
        # Listed first: what is moved away would disturb the reading of the directory.
        for name in [os.fsencode(entry.name) for entry in staged.scan()]:
            meeting = meet(
                existing_kind(staged.lstat(name)),
                existing_kind(target.lstat(name)),
                no_clobber=self._no_clobber,
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
        """Count something of the stage that stays there."""
        if status is None:
            return
        summary = self._summary
        summary.kept += 1
        if stat.S_ISLNK(status.st_mode):
            summary.links -= 1
            return
        summary.files -= 1
        # Content that has another name beside this one may still be wanted there.
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
