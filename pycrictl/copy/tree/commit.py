"""Moving a finished stage into place: all of it, or nothing.

What is not there yet is moved with one rename. Where directories meet, their contents are merged:
first everything is compared and nothing changed, then each new name is moved and each file that is
replaced gets a second name in the stage, so that every step can be taken back as long as the stage
exists. What is still in the merged directory is what remains to be done: any program that finds it
can carry on, even after some steps have been undone.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import Path
from pycrictl.copy.rules.spec import Existing, Meeting, meet, reaches_into
from pycrictl.copy.tree.rootfs import RENAME_NOREPLACE, Directory, descend
from pycrictl.signals import undisturbed
from pycrictl.units import quote

_UNKNOWN_FLAGS: Final = frozenset({errno.EINVAL, errno.ENOSYS})


def existing_kind(status: os.stat_result | None) -> Existing:
    """Return the kind of a destination; what others need, such as ``/dev/null``, is special."""
    if status is None:
        return Existing.NOTHING
    if stat.S_ISDIR(status.st_mode):
        return Existing.DIRECTORY
    is_file = stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)
    return Existing.FILE if is_file else Existing.SPECIAL


class Merge:
    """Merges a directory of the stage into one of the destination.

    Args:
        staged: what was put together; none of the three is closed here.
        spare: where files are put that are replaced; the stage.

    Attributes:
        kept: what of the copy is left out, as its names were there already.
        merged: directories that were there already.
        is_halfway: it failed and could not be undone: what is in the stage is still needed.
    """

    def __init__(
        self, staged: Directory, target: Directory, spare: Directory, *, no_clobber: bool
    ) -> None:
        self._staged = staged
        self._target = target
        self._spare = spare
        self._no_clobber = no_clobber
        self._undo: list[Callable[[], None]] = []
        self.kept = Summary()
        self._kept_names: Counter[int] = Counter()
        self.merged: list[Path] = []
        self.is_halfway = False

    def check(self) -> None:
        """Compare everything; nothing is changed."""
        self._check(self._staged, self._target, mounted=b"")

    def run(self) -> None:
        """Merge. On any error, Ctrl-C too, the destination is as it was unless ``is_halfway``."""
        with undisturbed() as let_through:
            try:
                self._merge(self._staged, self._target, (), let_through)
                let_through()
            except BaseException:
                self._take_all_back()
                raise

    def _meet(self, staged: Directory, target: Directory, name: bytes) -> Meeting:
        meeting = meet(
            existing_kind(staged.lstat(name)),
            existing_kind(target.lstat(name)),
            no_clobber=self._no_clobber,
            shown=quote(os.fsdecode(target.shown_path(name))),
        )
        if meeting is Meeting.REPLACE:
            target.refuse_mounted(name)
        return meeting

    def _check(self, staged: Directory, target: Directory, *, mounted: bytes) -> None:
        """Compare two directories; ``mounted`` is the mounted one that they are in, if any."""
        for entry in staged.scan():
            name = os.fsencode(entry.name)
            meeting = self._meet(staged, target, name)
            if meeting is Meeting.MERGE:
                inner_mounted = target.shown_path(name) if target.is_mount_point(name) else mounted
                with staged.enter(name) as inner, target.enter(name) as inner_target:
                    self._check(inner, inner_target, mounted=inner_mounted)
            elif meeting is not Meeting.KEEP and mounted:
                # Nothing can be moved there from the stage.
                raise reaches_into(mounted)

    def _merge(
        self, staged: Directory, target: Directory, path: Path, let_through: Callable[[], None]
    ) -> None:
        # Listed first: what is moved away would disturb the reading of the directory.
        for name in [os.fsencode(entry.name) for entry in staged.scan()]:
            let_through()
            # Asked again: the destination may have changed since the check.
            meeting = self._meet(staged, target, name)
            if meeting is Meeting.MERGE:
                self.merged.append((*path, name))
                with staged.enter(name) as inner, target.enter(name) as inner_target:
                    self._merge(inner, inner_target, (*path, name), let_through)
            elif meeting is Meeting.KEEP:
                self._keep(staged.lstat(name))
            elif meeting is Meeting.MAKE:
                move_new(staged, name, target, name)
                self._undo.append(partial(self._take_back, path, name, None))
            else:
                self._replace(staged, target, path, name)

    def _keep(self, status: os.stat_result | None) -> None:
        """Count something of the stage that stays there."""
        if status is None:
            return
        if stat.S_ISLNK(status.st_mode):
            self.kept.links += 1
            return
        self.kept.files += 1
        # Content that has another name beside this one may still be wanted there.
        self._kept_names[status.st_ino] += 1
        if self._kept_names[status.st_ino] == status.st_nlink:
            self.kept.size_bytes += status.st_size

    def _replace(self, staged: Directory, target: Directory, path: Path, name: bytes) -> None:
        # Unlike those of a merge that was killed before.
        spare = b"old-" + os.urandom(8).hex().encode()
        try:
            self._spare.link(target, name, spare)
        except OSError:
            # Users may not link to what belongs to others, and some file systems have no links:
            # for a moment there is nothing of that name.
            target.move(name, self._spare, spare)
        self._undo.append(partial(self._take_back, path, name, spare))
        staged.move(name, target, name)

    def _take_all_back(self) -> None:
        while self._undo:
            try:
                self._undo.pop()()
            except OSError:
                self.is_halfway = True

    def _take_back(self, path: Path, name: bytes, spare: bytes | None) -> None:
        """Undo the move of a name; ``spare`` is what it has replaced."""
        with descend(self._staged, path) as staged, descend(self._target, path) as target:
            if staged.lstat(name) is None:
                target.move(name, staged, name)
            if spare is not None:
                self._spare.move(spare, target, name)


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
