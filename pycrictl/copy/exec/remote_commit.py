"""Moving what a stage in a container holds into its place: all of it, or nothing.

First the stage is told what is to be done, and gets a second name, or a copy, of each file that is
replaced; nothing outside it has changed by then. Then everything is moved by one program. A marker
in the stage says that this has begun, and its next name whether it came to its end or was given up:
a rename decides that, whoever asks for it, this program or the one that survives it.

Names go into the stage as a file for ``xargs``: the CRI can only name files in UTF-8, and what
comes over a connection may be cut off in the middle of a name.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from pycrictl.copy.exec.remote import LONG_S, Ended, ProgramMissing, Remote, is_utf8
from pycrictl.copy.exec.remote_tar import batches, unpack
from pycrictl.errors import CopyError
from pycrictl.units import quote
from pycrictl.wire.tar.header import NS_PER_S, Entry, EntryType
from pycrictl.wire.tar.writer import END_OF_ARCHIVE, encode_entry, padding_after

NEW: Final = b"new"
"""In a stage, what is copied."""

_OLD: Final = b"old"
"""What is replaced, by numbers."""

_TAKEN: Final = b"taken"
"""What ``NEW`` is called once nothing more is to be moved out of it."""

_PLAN: Final = b"plan"
_READY: Final = b"ready"
_LISTED: Final = b"listed"
_BEGUN: Final = b"begun"
_DONE: Final = b"done"
_UNDO: Final = b"undo"
# What the marker is called, in turn; the last two exclude each other.

_SAVES: Final = b"saves"
_MOVES: Final = b"moves"
_WORDS: Final = b"words"
# Files for xargs.

_MAX_LISTED_BYTES: Final = 256 << 20
_FROM_FILE: Final = ("xargs", "-0", "-n", "2", "-a")
_AFRESH: Final = "env"
"""Starts each program anew. BusyBox would fork itself, and what it forks rewinds the file of names
when it ends, again and again."""

_CANNOT_STATUS: Final = (1, 126, 127)
"""Of an ``xargs`` that cannot read a file or start the program; 123 if the program fails."""

_TRIES: Final = 5
_PAUSE_S: Final = 0.3


Pair = tuple[bytes, bytes]
"""From where to where."""


@dataclass(frozen=True, slots=True)
class Move:
    """Something of the stage that goes to its place.

    Attributes:
        path: below ``NEW`` and below the directory that the stage is in.
        replaces: a file is there.
        in_place: its content is to be written into that file.
    """

    path: bytes
    replaces: bool = False
    in_place: bool = False


class Commit:
    """Moves what is in a stage, in steps that can be taken back.

    Args:
        remote: the container.
        stage: where the stage is; what is in it goes to the directory that it is in.
        moves: what is to be done; not empty. One that is written in place is the only one.
        keeps: files that are written in place get mode, times and owner of the new ones.
    """

    def __init__(
        self, remote: Remote, stage: bytes, moves: Sequence[Move], *, keeps: bool = False
    ) -> None:
        self._remote = remote
        self._stage = stage
        self._places = _Places(stage)
        self._moves = moves
        self._keeps = keeps

    def prepare(self) -> Ended:
        """Put into the stage what is needed to take the moves back. On a failure, stop."""
        saves = [
            (self._places.target(move), self._places.old(number))
            for number, move in enumerate(self._moves)
            if move.replaces
        ]
        moves = [self._places.pair(move) for move in self._moves]
        files = {_PLAN: _encoded(self._moves), _SAVES: _joined(saves), _MOVES: _joined(moves)}
        ended = _put(self._remote, self._stage, files)
        if ended.status or not saves:
            return ended
        if not self._moves[0].in_place:
            with suppress(ProgramMissing):
                if not _listed(self._remote, self._stage, _SAVES, ("ln", "-f"), saves).status:
                    return ended
            # Users may not link to what belongs to others, and some file systems have no links.
            there = find(self._remote, [old for _, old in saves])
            saves = [pair for pair in saves if pair[1] not in there]
        # No content but as it is: a link stays one, and nobody waits for a pipe.
        return each(self._remote, self._stage, ("cp", "-a"), saves)

    def run(self) -> Ended:
        """Move everything. On a failure, or any exception, ``take_back`` is to be called."""
        ended = self._remote.run("mv", "--", *_texts(self._stage, _LISTED, _BEGUN))
        ended = ended if ended.status else self._move()
        if ended.status:
            return ended
        return self._remote.run("mv", "--", *_texts(self._stage, _BEGUN, _DONE))

    def _move(self) -> Ended:
        pairs = [self._places.pair(move) for move in self._moves]
        if self._moves[0].in_place:
            return each(self._remote, self._stage, ("cp", "-p" if self._keeps else "-L"), pairs)
        return _listed(self._remote, self._stage, _MOVES, ("mv", "-f"), pairs)


def take_back(remote: Remote, stage: bytes) -> bool:
    """Make the destination what it was before a commit that has begun and not come to its end.

    It may be called again, whatever became of it before.

    Returns:
        Whether the destination is now as it was; False if everything is in its place.

    Raises:
        PycrictlError: the copy is incomplete, and what it has replaced is in the stage.
    """
    _rename(remote, stage, _BEGUN, _UNDO)
    if not _is_file(remote, stage, _UNDO):
        return not _is_file(remote, stage, _DONE)
    # A program that has been hung up on may still be moving: it finds nothing any more.
    _rename(remote, stage, NEW, _TAKEN)
    undo = _Undo(remote, stage)
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_PAUSE_S)
        try:
            if undo.is_done():
                remote.run("rm", "-f", "--", _text(stage + b"/" + _UNDO))
                return True
        except CopyError as exc:
            undo.reason = exc.message
    raise CopyError(f"cannot undo it: {undo.reason}")


def move(remote: Remote, stage: bytes, name: bytes) -> Ended:
    """Move the only thing in a stage to its place, which one rename does."""
    pair = _Places(stage).pair(Move(name))
    return each(remote, stage, ("mv", "-f"), [pair])


def is_moved(remote: Remote, stage: bytes, name: bytes) -> bool:
    """Whether ``move`` has happened; if it has not, it will not any more."""
    _rename(remote, stage, NEW, _TAKEN)
    taken = stage + b"/" + _TAKEN
    return is_there(remote, taken) and not is_there(remote, taken + b"/" + name)


class _Places:
    """Where things are that are moved."""

    def __init__(self, stage: bytes) -> None:
        self._stage = stage
        self._place = stage.rpartition(b"/")[0]

    def target(self, move: Move) -> bytes:
        return self._place + b"/" + move.path

    def pair(self, move: Move) -> Pair:
        """From the stage to its place."""
        return b"/".join((self._stage, NEW, move.path)), self.target(move)

    def taken(self, move: Move) -> bytes:
        return b"/".join((self._stage, _TAKEN, move.path))

    def old(self, number: int) -> bytes:
        return b"/".join((self._stage, _OLD, b"%d" % number))


class _Undo:
    """Takes moves back. Each round finds out what is left to be done.

    Attributes:
        reason: why the last one has not done everything.
    """

    def __init__(self, remote: Remote, stage: bytes) -> None:
        self.reason = "it is not known what was moved"
        self._remote = remote
        self._stage = stage
        self._places = _Places(stage)
        self._moves = _decoded(_output(remote, "cat", *_texts(stage, _PLAN)))

    def is_done(self) -> bool:
        """Do what is left; whether there was nothing."""
        if self._moves[0].in_place:
            return self._is_written(self._places.old(0), self._places.target(self._moves[0]))
        pairs = self._left()
        ended = each(self._remote, self._stage, ("mv", "-f"), pairs)
        if ended.status:
            self.reason = quote(ended.reason, limit=200)
        return not pairs

    def _left(self) -> list[Pair]:
        """What must be moved back."""
        there = set(_output(self._remote, "find", _text(self._stage), "-print0").split(b"\0"))
        pairs: list[Pair] = []
        added: dict[bytes, bytes] = {}
        for number, move in enumerate(self._moves):
            taken, old = self._places.taken(move), self._places.old(number)
            if taken in there:
                continue  # it has not been moved
            if not move.replaces:
                added[self._places.target(move)] = taken
            elif old in there:
                pairs.append((old, self._places.target(move)))
        pairs += [(target, added[target]) for target in find(self._remote, added)]
        return pairs

    def _is_written(self, old: bytes, target: bytes) -> bool:
        # Users cannot set the times of what belongs to others.
        for option in ("-p", "-L"):
            ended = each(self._remote, self._stage, ("cp", option), [(old, target)])
            if not ended.status:
                break
            self.reason = quote(ended.reason, limit=200)
        if ended.status:
            return False
        try:
            return self._remote.look("cmp", _text(old), _text(target)).status == 0
        except ProgramMissing:
            return True


def each(remote: Remote, stage: bytes, command: tuple[str, str], pairs: Sequence[Pair]) -> Ended:
    """Run a program once for each pair of names, which are its last words.

    Returns:
        How it went: status 0 if it succeeded every time, else what was complained about first.
    """
    if not pairs:
        return Ended(0, b"", b"")
    if len(pairs) == 1 and is_utf8(*map(os.fsdecode, pairs[0])):
        return _one_by_one(remote, command, pairs)
    if _put(remote, stage, {_WORDS: _joined(pairs)}).status:
        return _one_by_one(remote, command, pairs)  # perhaps there is no space left
    return _listed(remote, stage, _WORDS, command, pairs)


def _listed(
    remote: Remote,
    stage: bytes,
    name: bytes,
    command: tuple[str, str],
    pairs: Sequence[Pair],
) -> Ended:
    """What ``each`` does, with names that are in a file of the stage."""
    try:
        ended = remote.run(
            *(*_FROM_FILE, *_texts(stage, name), _AFRESH, *command, "--"), limit_s=LONG_S
        )
    except ProgramMissing:
        return _one_by_one(remote, command, pairs)
    if ended.status in _CANNOT_STATUS:
        return _one_by_one(remote, command, pairs)
    return ended


def _one_by_one(remote: Remote, command: tuple[str, str], pairs: Sequence[Pair]) -> Ended:
    every = [remote.run(*command, "--", *map(os.fsdecode, pair), limit_s=LONG_S) for pair in pairs]
    return next((ended for ended in every if ended.status), every[0])


def _put(remote: Remote, stage: bytes, files: dict[bytes, bytes]) -> Ended:
    """Put files into a stage, all of them and whole, and tell by ``_LISTED``."""
    ended = unpack(remote, stage, _archive(files), "-o")
    if ended.status:
        return ended
    return remote.run("mv", "-f", "--", *_texts(stage, _READY, _LISTED))


def find(remote: Remote, paths: Iterable[bytes], *tests: str) -> set[bytes]:
    """Those of ``paths`` that are there, and pass the tests of ``find``."""
    found: set[bytes] = set()
    for words in batches(paths):
        ended = remote.look("find", *words, "-prune", *tests, "-print0")
        found.update(filter(None, ended.stdout.split(b"\0")))
    return found


def is_there(remote: Remote, path: bytes) -> bool:
    """Whether there is something, a link that leads nowhere too."""
    return any(remote.look("test", test, _text(path)).status == 0 for test in ("-e", "-L"))


def _is_file(remote: Remote, stage: bytes, name: bytes) -> bool:
    return remote.run("test", "-f", *_texts(stage, name)).status == 0


def _encoded(moves: Sequence[Move]) -> bytes:
    kinds = (b"%d%d" % (move.replaces, move.in_place) for move in moves)
    return b"".join(kind + move.path + b"\0" for kind, move in zip(kinds, moves, strict=True))


def _decoded(plan: bytes) -> list[Move]:
    rows = plan.split(b"\0")[:-1]
    if not rows:
        raise CopyError("the container has lost what is to be undone")
    return [Move(row[2:], row[:1] == b"1", row[1:2] == b"1") for row in rows]


def _joined(pairs: Iterable[Pair]) -> bytes:
    return b"".join(name + b"\0" for pair in pairs for name in pair)


def _archive(files: dict[bytes, bytes]) -> Iterator[bytes]:
    now_ns = int(time.time()) * NS_PER_S
    yield encode_entry(Entry(_OLD, EntryType.DIRECTORY, mode=0o700, mtime_ns=now_ns), busybox=True)
    for name, data in {**files, _READY: b""}.items():
        entry = Entry(name, EntryType.FILE, len(data), mode=0o600, mtime_ns=now_ns)
        yield encode_entry(entry, busybox=True)
        yield data
        yield padding_after(len(data))
    yield END_OF_ARCHIVE


def _output(remote: Remote, *command: str) -> bytes:
    """What a program writes, which may be much."""
    written = bytearray()
    with remote.stream(*command, stdin=False) as session:
        for piece in session.pieces():
            written += piece
            if len(written) > _MAX_LISTED_BYTES:
                raise CopyError(f"{command[0]} in the container writes too much")
        ended = session.ended()
    if ended.status:
        raise CopyError(f"{command[0]} in the container fails: {quote(ended.reason, limit=200)}")
    return bytes(written)


def _text(path: bytes) -> str:
    return os.fsdecode(path)


def _rename(remote: Remote, stage: bytes, name: bytes, new_name: bytes) -> None:
    """Rename something in a stage, if it is there. Without ``mv`` nothing else was moved either."""
    with suppress(ProgramMissing):
        remote.run("mv", "--", *_texts(stage, name, new_name))


def _texts(stage: bytes, *names: bytes) -> list[str]:
    return [_text(stage + b"/" + name) for name in names]
