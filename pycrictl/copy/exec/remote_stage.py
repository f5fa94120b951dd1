"""A stage in a container that is filled, and emptied into its place, by programs there.

The programs are ``tar``, ``test``, ``mkdir``, ``mv`` and ``rm``; where directories are merged also
``find``, ``ln``, ``cp``, ``xargs`` and ``env``, and for files that are written in place ``cp``.
Each is called with a list of words.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, cast

from pycrictl.copy.archive.repack import Repacker
from pycrictl.copy.exec.remote import LONG_S, Ended, ProgramMissing, Remote
from pycrictl.copy.exec.remote_commit import NEW, Commit, Move, find, is_moved, move, take_back
from pycrictl.copy.exec.remote_tar import unpack
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
from pycrictl.streaming.session import Choice
from pycrictl.streaming.target import TlsFiles
from pycrictl.units import quote
from pycrictl.wire.tar.header import EntryType
from pycrictl.wire.tar.writer import END_OF_ARCHIVE

log = logging.getLogger("pycrictl.copy")

END: Final = b"end"
"""A file that is in the stage when everything else is."""

_CLEAR_TIMEOUT_S: Final = 10.0
_CLEAR_LIMIT_S: Final = 120.0
_REMOVALS: Final = 5
_REMOVAL_PAUSE_S: Final = 0.3


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
        self._mounts: frozenset[bytes] | None = None
        text = take_apart(path)
        existing = self._existing(text.path, follow=True)
        placement = place(kind, top, contents=top == b".", destination=text, existing=existing)
        self._place = text.path
        if placement.into is Into.PARENT:
            self._place = text.path.rpartition(b"/")[0] or b"/"
            if not self._is("-d", self._place):
                raise CopyError(f"there is no directory {quote(os.fsdecode(self._place))}")
        self._name = placement.name
        self._kind = kind
        self._meeting = Meeting.MERGE
        if self._name is not None:
            self._meeting = self._meet(kind)
        self.keeps = self._meeting is Meeting.KEEP
        remote.refuse_kernel_file_system(self._place)
        self._stage = _join(self._place, random_name())
        self._undo: Callable[[], bool] | None = None
        self._is_one_rename = False

    def _meet(self, kind: SourceKind) -> Meeting:
        assert self._name is not None
        target = _join(self._place, self._name)
        meeting = meet(
            Existing.FILE if kind is SourceKind.FILE else Existing.DIRECTORY,
            self._existing(target, follow=False),
            no_clobber=self._rules.no_clobber,
            shown=quote(os.fsdecode(target)),
        )
        if meeting is Meeting.MERGE:
            # The stage goes into it: another file system may be mounted there.
            self._place, self._name = target, None
        elif meeting is Meeting.REPLACE and target in self._mounted() and not self._rules.in_place:
            raise _mounted_there(target)
        return meeting

    def repacker(
        self, *, on_skip: OnSkip, on_bytes: OnBytes, name: bytes | None = None
    ) -> Repacker:
        """What makes the archive that is unpacked in the stage."""
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
        survivor = self._remote.survivor(os.fsdecode(self._stage))
        try:
            try:
                self._make()
                self._unpack(repacker, pieces)
                self._commit(repacker)
            except ProgramMissing as exc:
                # Too late for another method: the input may have been read.
                raise CopyError(exc.message, hint=exc.hint) from exc
        except BaseException as exc:
            # If this is interrupted, the survivor does it; also if the runtime is not there now.
            if self._take_back(survivor, exc):
                self._clear(survivor)
                raise
        # It is all there: who interrupts this is too late, and need not wait.
        try:
            self._clear(survivor)
        except BaseException:
            survivor.release()
        return repacker.summary

    def _take_back(self, survivor: Survivor, exc: BaseException) -> bool:
        """Undo what has been moved; False if everything is in its place."""
        try:
            return self._undo is None or self._undo()
        except PycrictlError as failed:
            survivor.release()
            shown = quote(os.fsdecode(self._stage))
            doubt, hint = "the copy is incomplete", f"what it has replaced is in {shown}"
            if self._is_one_rename:
                doubt = "it is not known whether it was copied"
                hint = f"{shown} may have been left in the container"
            reason = f"{doubt}: {failed.message}"
            if isinstance(exc, PycrictlError):
                raise CopyError(f"{exc.message}; {reason}", hint=hint) from exc
            log.warning("%s; %s", reason, hint)
            raise exc from failed

    def _clear(self, survivor: Survivor) -> None:
        if remove(self._remote, os.fsdecode(self._stage)):
            survivor.dismiss()
        else:
            survivor.release()

    def _make(self) -> None:
        self._require(self._remote.run("mkdir", "-m", "700", "--", os.fsdecode(self._stage)))

    def _unpack(self, repacker: Repacker, pieces: Iterable[bytes | memoryview]) -> None:
        self._tar(_archive(repacker, pieces))
        # A runtime may lose the exit status of a program that left input unread.
        if not self._is("-f", _join(self._stage, END)):
            raise CopyError("tar in the container has not unpacked everything")
        if self._rules.archive and Make.SYMLINK in repacker.made.values():
            # BusyBox makes some links last, and the times of their directories are lost.
            self._tar([*repacker.directories(), END_OF_ARCHIVE])

    def _tar(self, archive: Iterable[bytes | memoryview]) -> None:
        # Without -a everything belongs to the user that tar runs as.
        options = ["-p"] if self._rules.archive else ["-p", "-o"]
        self._require(unpack(self._remote, self._stage, archive, *options, path=self._path))

    def _commit(self, repacker: Repacker) -> None:
        if self._name is None:
            self._move(self._merged(repacker))
            return
        target = _join(self._place, self._name)
        if self._meeting is Meeting.REPLACE and target in self._mounted():
            self._move([Move(self._name, replaces=True, in_place=True)])
        else:
            name = self._name
            self._is_one_rename = True
            self._undo = lambda: not is_moved(self._remote, self._stage, name)
            self._require(move(self._remote, self._stage, name))

    def _move(self, moves: Sequence[Move]) -> None:
        if not moves:
            return
        commit = Commit(self._remote, self._stage, moves, keeps=self._rules.archive)
        self._require(commit.prepare())
        self._undo = partial(take_back, self._remote, self._stage)
        self._require(commit.run())

    def _merged(self, repacker: Repacker) -> list[Move]:
        """What is to be moved into a directory that is there; all is compared before."""
        inside: dict[Path, dict[bytes, None]] = {}
        for path in repacker.made:
            # Also directories that an archive has not, but needs for what is in them.
            for length in range(len(path), 0, -1):
                names = inside.setdefault(path[: length - 1], {})
                if path[length - 1] in names:
                    break
                names[path[length - 1]] = None
        moves: list[Move] = []
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
                    moves.append(Move(b"/".join(path), meeting is Meeting.REPLACE))
        return moves

    def _refuse_mounted(self, path: Path) -> None:
        """Refuse what goes to another file system: nothing can be renamed to there."""
        for length in range(len(path) - 1, 0, -1):
            folder = _join(self._place, *path[:length])
            if folder in self._mounted():
                raise reaches_into(folder)

    def _meetings(
        self,
        paths: Sequence[Path],
        repacker: Repacker,
        inside: Container[Path],
    ) -> dict[Path, Meeting]:
        """What is to become of each path whose directory is there."""
        targets = {_join(self._place, *path): path for path in paths}
        there = find(self._remote, targets)
        directories = find(self._remote, there, "-type", "d")
        others = ("!", "-type", "f", "!", "-type", "l")
        specials = find(self._remote, there - directories, *others)
        found: dict[Path, Meeting] = {}
        for target, path in targets.items():
            old = Existing.NOTHING
            if target in there:
                old = Existing.SPECIAL if target in specials else Existing.FILE
            if target in directories:
                old = Existing.DIRECTORY
            is_directory = path in inside or repacker.made.get(path) is Make.DIRECTORY
            new = Existing.DIRECTORY if is_directory else Existing.FILE
            shown = quote(os.fsdecode(target))
            found[path] = meet(new, old, no_clobber=self._rules.no_clobber, shown=shown)
            if found[path] is Meeting.REPLACE and target in self._mounted():
                raise _mounted_there(target)
        return found

    def _require(self, ended: Ended) -> None:
        if ended.status:
            raise ended.failure("copy to", self._path)

    def _is(self, test: str, path: bytes) -> bool:
        return self._remote.look("test", test, os.fsdecode(path)).status == 0

    def _existing(self, path: bytes, *, follow: bool) -> Existing:
        if not follow and self._is("-L", path):
            return Existing.FILE
        if self._is("-d", path):
            return Existing.DIRECTORY
        if self._is("-f", path):
            return Existing.FILE
        if self._is("-e", path):
            return Existing.SPECIAL
        return Existing.FILE if follow and self._is("-L", path) else Existing.NOTHING

    def _mounted(self) -> frozenset[bytes]:
        """Where something is mounted in the container, as far as that can be seen."""
        if self._mounts is None:
            text = self._remote.run("cat", "/proc/self/mountinfo").stdout
            rows = [line.split(b" ") for line in text.splitlines()]
            self._mounts = frozenset(_unescaped(row[4]) for row in rows if len(row) > 4)
        return self._mounts


def remove(remote: Remote, stage: str, *, undo: bool = False) -> bool:
    """Remove a stage; return whether there is nothing left to do about it.

    What has just been hung up on may still be writing into it.

    Args:
        remote: the container.
        stage: where the stage is.
        undo: take back a commit that has begun. If that fails the stage stays, for what is in it
            is wanted.
    """
    reason = ""
    for _ in range(_REMOVALS):
        try:
            remote.check_running()
            if undo:
                take_back(remote, os.fsencode(stage))
            ended = remote.run("rm", "-rf", "--", stage, limit_s=LONG_S)
            if not ended.status and remote.run("test", "-e", stage).status:
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


def clear(
    socket_path: str, container_id: str, stage: str, choice: str = "auto", tls: str = "null"
) -> None:
    """Remove a stage whose maker could not, if it is there, as soon as the runtime answers."""
    files = json.loads(tls)
    give_up_at = time.monotonic() + _CLEAR_LIMIT_S
    while time.monotonic() < give_up_at:
        with CriClient(socket_path, timeout_s=_CLEAR_TIMEOUT_S) as client:
            remote = Remote(
                client,
                container_id,
                choice=cast("Choice", choice),
                tls=files and TlsFiles(**files),
            )
            if remove(remote, stage, undo=True):
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


def _unescaped(field: bytes) -> bytes:
    """A path of mountinfo, where blanks and the like are octal (proc(5))."""
    return field.decode("unicode_escape").encode("latin-1") if b"\\" in field else field


def _mounted_there(path: bytes) -> CopyError:
    return CopyError(
        f"{quote(os.fsdecode(path))} is mounted there and cannot be replaced",
        hint="--in-place writes into a single file, which others may see half done",
    )
