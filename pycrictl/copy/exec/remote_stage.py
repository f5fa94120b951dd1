"""A stage in a container that is filled, and emptied into its place, by programs there.

What is new at the destination gets there by one rename. What is merged into a directory is moved
file by file, each by a rename: every file is whole, but the copy as a whole may break off.

The programs are ``tar``, ``find``, ``mkdir``, ``mv`` and ``rm``; for names that are not UTF-8 also
``xargs``, and for files that are written in place ``cp``. Each is called with a list of words.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Final

from pycrictl.copy.archive.repack import Repacker
from pycrictl.copy.exec.remote import LONG_S, Remote, batches, is_utf8
from pycrictl.copy.exec.remote_tar import unpack
from pycrictl.copy.exec.running import Ended, ProgramMissing
from pycrictl.copy.rules.policy import Make, Path, Rules
from pycrictl.copy.rules.spec import (
    Existing,
    Into,
    Meeting,
    SourceKind,
    meet,
    place,
    reaches_into,
    take_apart,
)
from pycrictl.copy.rules.summary import Summary
from pycrictl.copy.tree.content import OnBytes
from pycrictl.copy.tree.janitor import random_name
from pycrictl.copy.tree.survivor import Survivor
from pycrictl.copy.tree.walk import OnSkip
from pycrictl.cri.calls.client import CriClient
from pycrictl.errors import ConnectError, CopyError, PycrictlError, Unavailable
from pycrictl.signals import undisturbed
from pycrictl.units import quote
from pycrictl.wire.tar.header import EntryType
from pycrictl.wire.tar.writer import END_OF_ARCHIVE

log = logging.getLogger("pycrictl.copy")

NEW: Final = b"new"
"""In a stage, what is copied."""

OLD: Final = b"old"
"""The content of a file that is written in place."""

END: Final = b"end"
"""A file that is in the stage when everything else is."""

_CLEAR_TIMEOUT_S: Final = 10.0
_CLEAR_LIMIT_S: Final = 120.0
_REMOVALS: Final = 5
_REMOVAL_PAUSE_S: Final = 0.3

_INCOMPLETE: Final = "the copy is incomplete"
_INCOMPLETE_HINT: Final = "each file there is old or new as a whole; copying again completes it"


class RemoteStage:
    """One copy into a container.

    Args:
        remote: the container.
        path: where the copy goes.
        rules: what the user allows.
        kind: what is copied.
        top: what it is called; ``.`` where what is in it is copied.

    Attributes:
        keeps: a file is there and stays: nothing is to be done.

    Raises:
        Unimplemented: a program is missing.
        CopyError: something is in the way.
    """

    def __init__(
        self, remote: Remote, path: bytes, rules: Rules, kind: SourceKind, top: bytes
    ) -> None:
        self._remote = remote
        self._path = path
        self._rules = rules
        text = take_apart(path)
        existing = self._look(text.path, follow=True)
        placement = place(kind, top, contents=top == b".", destination=text, existing=existing)
        self._place = text.path
        if placement.into is Into.PARENT:
            self._place = text.path.rpartition(b"/")[0] or b"/"
            if self._look(self._place, follow=True) is not Existing.DIRECTORY:
                raise CopyError(f"there is no directory {quote(os.fsdecode(self._place))}")
        self._name = placement.name
        self._kind = kind
        self._is_mounted = False
        self.keeps = self._name is not None and self._meet(self._name) is Meeting.KEEP
        remote.refuse_kernel_file_system(self._place)
        self._stage = _join(self._place, random_name())
        self._is_done = False
        self._holds_old = False

    def _meet(self, name: bytes) -> Meeting:
        target = _join(self._place, name)
        meeting = meet(
            Existing.FILE if self._kind is SourceKind.FILE else Existing.DIRECTORY,
            self._look(target),
            no_clobber=self._rules.no_clobber,
            shown=quote(os.fsdecode(target)),
        )
        if meeting is Meeting.MERGE:
            # The stage goes into it: another file system may be mounted there.
            self._place, self._name = target, None
        elif meeting is Meeting.REPLACE and target in self._remote.mounts():
            if not self._rules.in_place:
                raise _mounted_there(target)
            self._is_mounted = True
        return meeting

    def repacker(
        self, *, on_skip: OnSkip, on_bytes: OnBytes, name: bytes | None = None
    ) -> Repacker:
        """Return what makes the archive that is unpacked in the stage."""
        return Repacker(
            self._rules,
            on_skip=on_skip,
            on_bytes=on_bytes,
            single=self._kind is not SourceKind.ARCHIVE,
            name=name,
            prefix=(NEW,),
            top=b"." if self._name is None else self._name,
            is_for_unpacking=True,
        )

    def fill(self, repacker: Repacker, pieces: Iterable[bytes | memoryview]) -> Summary:
        """Unpack an archive in the stage and put what came into its place.

        Args:
            repacker: of this stage.
            pieces: the archive.

        Raises:
            PycrictlError: the destination is as it was, unless the message says otherwise.
        """
        survivor = Survivor(__name__, [*self._remote.address, os.fsdecode(self._stage)])
        try:
            try:
                self._make()
                self._unpack(repacker, pieces)
                self._commit(repacker)
            except ProgramMissing as exc:
                # Too late for another method: the input may have been read.
                raise CopyError(exc.message, hint=exc.hint) from exc
        except BaseException:
            if not self._is_done:
                # If this is interrupted, the survivor does it; also if the runtime is gone now.
                self._clear(survivor)
                raise
        # It is all there: an interruption comes too late, and need not wait.
        try:
            self._clear(survivor)
        except BaseException:
            survivor.release()
        return repacker.summary

    def _clear(self, survivor: Survivor) -> None:
        if self._holds_old or remove(self._remote, os.fsdecode(self._stage)):
            survivor.dismiss()
        else:
            survivor.release()

    def _make(self) -> None:
        self._require(self._remote.run("mkdir", "-m", "700", "--", os.fsdecode(self._stage)))

    def _unpack(self, repacker: Repacker, pieces: Iterable[bytes | memoryview]) -> None:
        self._tar(_archive(repacker, pieces))
        # A runtime may lose the exit status of a program that left input unread.
        if self._look(_join(self._stage, END)) is not Existing.FILE:
            raise CopyError("tar in the container did not unpack everything")
        if self._rules.archive and Make.SYMLINK in repacker.made.values():
            # BusyBox makes some links last, and the times of their directories are lost.
            self._tar([*repacker.directories(), END_OF_ARCHIVE])

    def _tar(self, archive: Iterable[bytes | memoryview]) -> None:
        # Without -a everything belongs to the user that tar runs as.
        options = ["-p"] if self._rules.archive else ["-p", "-o"]
        self._require(unpack(self._remote, self._stage, archive, *options, path=self._path))

    def _commit(self, repacker: Repacker) -> None:
        if self._name is None:
            self._merge(repacker)
        elif self._is_mounted:
            self._overwrite(self._name)
        else:
            self._rename(self._name)

    def _rename(self, name: bytes) -> None:
        try:
            with undisturbed():
                self._move([(name,)])
                self._is_done = True
        except (CopyError, ProgramMissing):
            raise
        except PycrictlError as exc:
            shown = quote(os.fsdecode(self._stage))
            raise CopyError(
                f"{exc.message}; it is not known whether it was copied",
                hint=f"{shown} may have been left in the container",
            ) from exc

    def _overwrite(self, name: bytes) -> None:
        """Write into a file that is mounted there, or give it its old content again."""
        old = _join(self._stage, OLD)
        new, target = _join(self._stage, NEW, name), _join(self._place, name)
        self._require(self._cp("-p", target, old))
        try:
            self._require(self._cp("-p" if self._rules.archive else "-L", new, target))
        except BaseException as exc:
            with undisturbed():
                self._holds_old = not self._put_back(old, target)
            if not self._holds_old:
                raise
            reason = exc.message if isinstance(exc, PycrictlError) else "interrupted"
            hint = f"the old content is in {quote(os.fsdecode(old))}"
            raise CopyError(f"{reason}; {_INCOMPLETE}", hint=hint) from exc

    def _put_back(self, old: bytes, target: bytes) -> bool:
        """Give a file its old content; return whether it has it now."""
        try:
            # Users cannot set the times of what belongs to others.
            return any(not self._cp(option, old, target).status for option in ("-p", "-L"))
        except PycrictlError:
            return False

    def _cp(self, option: str, source: bytes, target: bytes) -> Ended:
        words = map(os.fsdecode, (source, target))
        return self._remote.run("cp", option, "--", *words, limit_s=LONG_S)

    def _merge(self, repacker: Repacker) -> None:
        moves = self._to_move(repacker)
        try:
            self._move(moves)
        except PycrictlError as exc:
            raise CopyError(f"{exc.message}; {_INCOMPLETE}", hint=_INCOMPLETE_HINT) from exc
        except BaseException:
            log.warning("%s: %s", _INCOMPLETE, _INCOMPLETE_HINT)
            raise

    def _move(self, paths: Sequence[Path]) -> None:
        """Move things of the stage into their directories, by a rename each; stop at a failure.

        ``mv`` gets the name of the directory: what is there under the name of the thing is
        replaced then, also a link to a directory.
        """
        commands: list[tuple[bytes, ...]] = []
        for path in paths:
            source = _join(self._stage, NEW, *path)
            words = (b"mv", b"-f", source, _join(self._place, *path[:-1], b""))
            # ``find`` puts names in the place of braces.
            if b"{}" in source or (len(paths) == 1 and is_utf8(*map(os.fsdecode, words))):
                self._require(self._remote.run(*map(os.fsdecode, words)))
            else:
                commands.append((b"-exec", *words, b";"))
        for batch in batches(commands):
            # One that is cut off is not run at all, and what follows a failure is not run either.
            ended = self._remote.run_bytes(b"find", self._stage, b"-prune", *batch, b"-print")
            if not ended.stdout:
                raise ended.failure("copy to", self._path)

    def _to_move(self, repacker: Repacker) -> list[Path]:
        """List what is to be moved into a directory that is there; all is compared before."""
        inside: dict[Path, dict[bytes, None]] = {}
        for path in repacker.made:
            # Also directories that an archive has not, but needs for what is in them.
            for length in range(len(path), 0, -1):
                names = inside.setdefault(path[: length - 1], {})
                if path[length - 1] in names:
                    break
                names[path[length - 1]] = None
        moves: list[Path] = []
        level: list[Path] = [()]
        while level:
            paths = [(*folder, name) for folder in level for name in inside.get(folder, {})]
            level = []
            for path, meeting in self._meetings(paths, repacker, inside).items():
                if meeting is Meeting.MERGE:
                    level.append(path)
                elif meeting is Meeting.KEEP:
                    repacker.keep(path)
                else:
                    self._refuse_mounted(path)
                    moves.append(path)
        return moves

    def _refuse_mounted(self, path: Path) -> None:
        """Refuse what goes to another file system: nothing can be renamed to there."""
        for length in range(len(path) - 1, 0, -1):
            folder = _join(self._place, *path[:length])
            if folder in self._remote.mounts():
                raise reaches_into(folder)

    def _meetings(
        self,
        paths: Sequence[Path],
        repacker: Repacker,
        inside: Container[Path],
    ) -> dict[Path, Meeting]:
        """Decide what becomes of each path, whose directory is there."""
        targets = {_join(self._place, *path): path for path in paths}
        found: dict[Path, Meeting] = {}
        for target, old in self._remote.existing(targets).items():
            path = targets[target]
            is_directory = path in inside or repacker.made.get(path) is Make.DIRECTORY
            new = Existing.DIRECTORY if is_directory else Existing.FILE
            shown = quote(os.fsdecode(target))
            found[path] = meet(new, old, no_clobber=self._rules.no_clobber, shown=shown)
            if found[path] is Meeting.REPLACE and target in self._remote.mounts():
                raise _mounted_there(target)
        return found

    def _look(self, path: bytes, *, follow: bool = False) -> Existing:
        return self._remote.existing([path], follow=follow)[path]

    def _require(self, ended: Ended) -> None:
        if ended.status:
            raise ended.failure("copy to", self._path)


def remove(remote: Remote, stage: str) -> bool:
    """Remove a stage; return whether there is nothing left to do about it.

    A program that has just been hung up on may still be writing into it.
    """
    reason = ""
    for _ in range(_REMOVALS):
        try:
            remote.check_running()
            ended = remote.run("rm", "-rf", "--", stage, limit_s=LONG_S)
            path = os.fsencode(stage)
            if not ended.status and remote.existing([path])[path] is Existing.NOTHING:
                return True
            reason = ended.reason
        except (ConnectError, Unavailable):
            log.warning("%s stays in the container until the runtime is back", quote(stage))
            return False
        except PycrictlError as exc:
            reason = exc.message
        time.sleep(_REMOVAL_PAUSE_S)
    log.warning("%s was left in the container: %s", quote(stage), reason)
    return True


def clear(socket_path: str, container_id: str, stage: str) -> None:
    """Remove a stage whose maker could not, if it is there, as soon as the runtime answers."""
    give_up_at = time.monotonic() + _CLEAR_LIMIT_S
    while time.monotonic() < give_up_at:
        with CriClient(socket_path, timeout_s=_CLEAR_TIMEOUT_S) as client:
            if remove(Remote(client, container_id), stage):
                return
        time.sleep(1.0)


def _archive(
    repacker: Repacker, pieces: Iterable[bytes | memoryview]
) -> Iterator[bytes | memoryview]:
    yield repacker.extra((NEW,), EntryType.DIRECTORY)
    for piece in pieces:
        yield from repacker.receive_data(piece)
    yield from repacker.finish()
    yield repacker.extra((END,), EntryType.FILE)
    yield END_OF_ARCHIVE


def _join(folder: bytes, *names: bytes) -> bytes:
    return b"/".join((folder.rstrip(b"/"), *names))


def _mounted_there(path: bytes) -> CopyError:
    return CopyError(
        f"{quote(os.fsdecode(path))} is mounted there and cannot be replaced",
        hint="--in-place writes into a single file, which others may see half written",
    )
