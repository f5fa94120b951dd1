"""A stage in a container that is filled, and emptied into its place, by programs there.

The programs are ``tar``, ``test``, ``mkdir``, ``mv`` and ``rm``; where directories are merged also
``find``, and for files that are written in place ``cp``. Each is called with a list of words.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Final

from pycrictl.copy.arrival import Summary
from pycrictl.copy.content import OnBytes
from pycrictl.copy.janitor import random_name
from pycrictl.copy.policy import Make, Path, Rules
from pycrictl.copy.remote import LONG_S, ProgramMissing, Remote, Session, in_large_pieces
from pycrictl.copy.repack import Repacker
from pycrictl.copy.spec import Existing, Into, Meeting, SourceKind, meet, place, take_apart
from pycrictl.copy.walk import OnSkip
from pycrictl.cri.client import CriClient
from pycrictl.errors import ConnectError, CopyError, PycrictlError, Unavailable
from pycrictl.units import quote
from pycrictl.wire.tar_header import Kind
from pycrictl.wire.tar_writer import END_OF_ARCHIVE

log = logging.getLogger("pycrictl.copy")

NEW: Final = b"new"
"""What is copied, in the stage."""

END: Final = b"end"
"""A file that is in the stage when everything else is."""

_MAX_WORDS: Final = 200
_MAX_WORDS_BYTES: Final = 64 * 1024
_CLEAR_TIMEOUT_S: Final = 10.0
_CLEAR_LIMIT_S: Final = 120.0
_DEAD_AFTER_S: Final = 6.0
"""How long a session may stand still before ``tar`` is looked for."""

_IDLE_S: Final = 300.0
"""How long ``tar`` may stand still."""

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
            self._make()
            self._unpack(repacker, pieces)
            self._commit(repacker)
        except ProgramMissing as exc:
            # Too late for another method: the input may have been read.
            raise CopyError(exc.message, hint=exc.hint) from exc
        finally:
            # If this is interrupted, the survivor does it; also if the runtime is not there now.
            if remove(self._remote, os.fsdecode(self._stage)):
                survivor.dismiss()
            else:
                survivor.release()
        return repacker.summary

    def _make(self) -> None:
        ended = self._remote.run("mkdir", "-m", "700", "--", os.fsdecode(self._stage))
        if ended.status:
            raise ended.failure("copy to", self._path)

    def _unpack(self, repacker: Repacker, pieces: Iterable[bytes | memoryview]) -> None:
        self._tar(_archive(repacker, pieces))
        # A runtime may lose the exit status of a program that left input unread.
        if not self._is("-f", _join(self._stage, END)):
            raise CopyError("tar in the container has not unpacked everything")
        if self._rules.archive and Make.SYMLINK in repacker.made.values():
            # BusyBox makes some links last, and the times of their directories are lost.
            self._tar([*repacker.directories(), END_OF_ARCHIVE])

    def _tar(self, archive: Iterable[bytes | memoryview]) -> None:
        words = ["tar", "-x", "-p", "-f", "-", "-C", os.fsdecode(self._stage)]
        if not self._rules.archive:
            words.append("-o")  # everything belongs to the user that tar runs as
        with self._remote.stream(*words, stdin=True) as session:
            session.on_stall = partial(self._require_tar, session)
            for piece in in_large_pieces(archive):
                if not session.send(piece):
                    break  # what is left of the source need not be read
            ended = session.ended()
        if ended.status:
            raise ended.failure("copy to", self._path)

    def _require_tar(self, session: Session, stalled_s: float) -> None:
        """Require that the container and ``tar`` are still there.

        A runtime may never tell the end of a program that has left much of its input unread, as
        ``tar`` does on a disk that is full.
        """
        self._remote.check_running()
        if stalled_s < _DEAD_AFTER_S or (stalled_s < _IDLE_S and self._is_tar_there()):
            return
        if session.so_far.stderr:
            raise session.so_far.failure("copy to", self._path)
        raise CopyError("tar in the container has ended before it had read everything")

    def _is_tar_there(self) -> bool:
        """Whether a process is at work in the stage; True if that cannot be seen."""
        pids = [word for word in self._remote.run("ls", "/proc").stdout.split() if word.isdigit()]
        links = b"".join(
            self._remote.run("ls", "-ld", "--", *words).stdout
            for words in _batches(b"/proc/%s/cwd" % pid for pid in pids)
        )
        return b" -> " not in links or b" -> " + self._stage in links

    def _commit(self, repacker: Repacker) -> None:
        if self._name is None:
            self._merge(repacker)
            return
        new, target = _join(self._stage, NEW, self._name), _join(self._place, self._name)
        if self._meeting is Meeting.REPLACE and target in self._mounted():
            keep = ["-p"] if self._rules.archive else []
            self._do("cp", *keep, "--", os.fsdecode(new), os.fsdecode(target))
        else:
            self._move([new], self._place)

    def _merge(self, repacker: Repacker) -> None:
        """Move what is new into a directory that is there; all is compared before."""
        inside: dict[Path, list[bytes]] = {}
        for path in repacker.made:
            inside.setdefault(path[:-1], []).append(path[-1])
        # Directories that an archive has not, but needs for what is in them.
        for path in list(inside):
            while path:
                *folders, name = path
                path = tuple(folders)
                names = inside.setdefault(path, [])
                if name in names:
                    break
                names.append(name)
        moves: list[tuple[Path, list[bytes]]] = []
        todo: list[Path] = [()]
        while todo:
            folder = todo.pop()
            moving = []
            meetings = self._meetings(folder, inside.get(folder, []), repacker, inside)
            for name, meeting in meetings.items():
                if meeting is Meeting.MERGE:
                    todo.append((*folder, name))
                elif meeting is Meeting.KEEP:
                    repacker.keep((*folder, name))
                else:
                    moving.append(name)
            if moving:
                moves.append((folder, moving))
        for folder, names in moves:
            self._move(
                [_join(self._stage, NEW, *folder, name) for name in names],
                _join(self._place, *folder),
            )

    def _meetings(
        self,
        folder: Path,
        names: Sequence[bytes],
        repacker: Repacker,
        inside: dict[Path, list[bytes]],
    ) -> dict[bytes, Meeting]:
        """What is to become of each name in a directory that is there."""
        paths = {_join(self._place, *folder, name): name for name in names}
        there = self._find(paths)
        directories = self._find(there, "-type", "d")
        devices = self._find(there - directories, "(", "-type", "b", "-o", "-type", "c", ")")
        found: dict[bytes, Meeting] = {}
        for path, name in paths.items():
            old = Existing.NOTHING
            if path in there:
                old = Existing.SPECIAL if path in devices else Existing.FILE
            if path in directories:
                old = Existing.DIRECTORY
            is_directory = (*folder, name) in inside or (
                repacker.made.get((*folder, name)) is Make.DIRECTORY
            )
            new = Existing.DIRECTORY if is_directory else Existing.FILE
            shown = quote(os.fsdecode(path))
            found[name] = meet(new, old, no_clobber=self._rules.no_clobber, shown=shown)
            if found[name] is Meeting.REPLACE and path in self._mounted():
                raise _mounted_there(path)
        return found

    def _find(self, paths: Iterable[bytes], *tests: str) -> set[bytes]:
        """Those of ``paths`` that are there."""
        found: set[bytes] = set()
        for words in _batches(paths):
            ended = self._remote.run("find", *words, "-prune", *tests, "-print0")
            found.update(filter(None, ended.stdout.split(b"\0")))
        return found

    def _move(self, paths: Iterable[bytes], folder: bytes) -> None:
        for words in _batches(paths):
            self._do("mv", "-f", "--", *words, os.fsdecode(folder.rstrip(b"/") + b"/"))

    def _do(self, *command: str) -> None:
        ended = self._remote.run(*command, limit_s=LONG_S)
        if ended.status:
            raise ended.failure("copy to", self._path)

    def _is(self, test: str, path: bytes) -> bool:
        return self._remote.run("test", test, os.fsdecode(path)).status == 0

    def _existing(self, path: bytes, *, follow: bool) -> Existing:
        if not follow and self._is("-L", path):
            return Existing.FILE
        if self._is("-d", path):
            return Existing.DIRECTORY
        if self._is("-f", path):
            return Existing.FILE
        if self._is("-e", path):
            # As in open_destination and existing_kind.
            is_device = not follow and (self._is("-c", path) or self._is("-b", path))
            return Existing.SPECIAL if follow or is_device else Existing.FILE
        return Existing.FILE if follow and self._is("-L", path) else Existing.NOTHING

    def _mounted(self) -> frozenset[bytes]:
        """Where something is mounted in the container, as far as that can be seen."""
        if self._mounts is None:
            text = self._remote.run("cat", "/proc/self/mountinfo").stdout
            rows = [line.split(b" ") for line in text.splitlines()]
            self._mounts = frozenset(_unescaped(row[4]) for row in rows if len(row) > 4)
        return self._mounts


def remove(remote: Remote, stage: str) -> bool:
    """Remove a stage; return whether there is nothing left to do about it.

    What has just been hung up on may still be writing into it.
    """
    reason = ""
    for _ in range(_REMOVALS):
        try:
            remote.check_running()
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
    yield repacker.extra((NEW,), Kind.DIRECTORY)
    for piece in pieces:
        yield from repacker.receive_data(piece)
    yield from repacker.finish()
    yield repacker.extra((END,), Kind.FILE)
    yield END_OF_ARCHIVE


def _batches(paths: Iterable[bytes]) -> Iterator[list[str]]:
    """Paths in portions that a command line can hold."""
    words: list[str] = []
    size_bytes = 0
    for path in paths:
        if words and (len(words) >= _MAX_WORDS or size_bytes + len(path) > _MAX_WORDS_BYTES):
            yield words
            words, size_bytes = [], 0
        words.append(os.fsdecode(path))
        size_bytes += len(path)
    if words:
        yield words


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
