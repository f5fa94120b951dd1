"""Copying through ``tar`` in the container, where no better method can be used.

An archive from the container is untrusted. One sent to it is unpacked in place, not atomically: on
failure, files that have arrived stay, and the error says where.

No archive from outside is passed on unchanged: two programs may parse the same bytes differently,
and the archive that is unpacked must be the one that was checked.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Final

from pycrictl.base.errors import CopyError, PycrictlError, StreamError, Unimplemented
from pycrictl.base.units import plural, quote
from pycrictl.copy.archive.archives import Incoming, Outgoing
from pycrictl.copy.archive.arrival import nothing_copied
from pycrictl.copy.archive.pack import report_total
from pycrictl.copy.exec.remote import CommandResult, Remote
from pycrictl.copy.rules import policy
from pycrictl.copy.rules.outcome import Summary, unkept_note
from pycrictl.copy.rules.policy import Judge, Rules, Skipped
from pycrictl.copy.rules.spec import (
    Existing,
    Meeting,
    SourceKind,
    has_wildcards,
    meet,
    place,
    take_apart,
)
from pycrictl.copy.tree.content import CHUNK_BYTES
from pycrictl.copy.tree.walk import OnSkip, Watch
from pycrictl.streams.wire.tar.header import (
    END_OF_ARCHIVE,
    NS_PER_S,
    Entry,
    EntryType,
    encode_entry,
    padding_after,
)
from pycrictl.streams.wire.tar.reader import DataReceived, EntryFinished, EntryStarted, read

log = logging.getLogger("pycrictl.copy")

_INCOMPLETE: Final = "the copy is incomplete"
_UNFINISHED: Final = "tar in the container ended before it had read everything"
_CHANGED: Final = b"file changed as we read it"


class OverExec:
    name = "exec"

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    @contextmanager
    def read(
        self, path: bytes, rules: Rules, watch: Watch, *, follow: bool = False
    ) -> Iterator[Outgoing]:
        remote, text = self._remote, take_apart(path)
        if has_wildcards(path) and remote.look(text.path) is Existing.NOTHING:
            raise Unimplemented(
                "tar in the container expands no wildcards", hint="--method node can do it"
            )
        is_gnu = b"GNU tar" in remote.run("tar", "--version").stdout
        is_entered = text.wants_directory or (
            follow and remote.look(text.path, follow=True) is Existing.DIRECTORY
        )
        words = ["tar", "-c", "-f", "-"]
        if is_gnu:
            words.append("--format=posix")  # the other formats store whole seconds only
        if is_entered and text.path == b"/":
            words += ("--exclude=./proc", "--exclude=./sys")
        elif follow and not is_entered:
            words.append("-h")  # the source is a file: there are no other links
        parent, _, base = text.path.rpartition(b"/")
        folder, member = (text.path, b".") if is_entered else (parent or b"/", b"./" + base)
        words += ("-C", os.fsdecode(folder), "--", os.fsdecode(member))
        top = b"." if text.wants_contents else text.name
        name = b"." if is_entered else top
        cleaner = Cleaner(rules._replace(archive=True), watch, name=name, top=top, unpacks=False)

        def packed() -> Generator[bytes, None, None]:
            remote.refuse_kernel_file_system(text.path)
            with remote.stream(*words, stdin=False) as tar:
                yield from in_large_pieces(tar.pieces())
                _check_packed(tar.ended(), path, is_gnu=is_gnu, on_skip=watch.on_skip)

        def pieces() -> Generator[memoryview, None, None]:
            with closing(packed()) as archive:
                for piece in cleaner.clean(archive):
                    yield memoryview(piece)
            if rules.archive and cleaner.of_1970 and not is_gnu:
                entries = plural(cleaner.of_1970, "entry has", "entries have")
                watch.note(f"{entries} the time 1970-01-01, to which BusyBox moves earlier times")

        yield Outgoing(pieces, top)

    def write(self, archive: Incoming, path: bytes, rules: Rules, watch: Watch) -> Summary:
        if rules.no_clobber:
            raise Unimplemented(
                "tar in the container cannot leave existing files alone (--no-clobber)",
                hint="--method node can do it",
            )
        self._remote.run("tar", "--version")
        if archive.tree is not None:
            report_total(archive.tree, watch)
        folder, name = self._place(path, archive.kind or SourceKind.ARCHIVE, archive.name or b".")
        cleaner = Cleaner(rules, watch, name=archive.name, top=name or b".", unpacks=True)
        shown = quote(os.fsdecode(folder if name is None else _join(folder, name)))
        left = f"anything that had arrived was left in {shown}"
        has_begun = False

        def sent() -> Iterator[bytes]:
            nonlocal has_begun
            with closing(archive.pieces()) as pieces:
                for piece in in_large_pieces(cleaner.clean(pieces)):
                    has_begun = True
                    yield piece

        # Without -a everything belongs to the user that tar runs as.
        options = ["-p"] if rules.archive else ["-p", "-o"]
        words = ["tar", "-x", *options, "-f", "-", "-C", os.fsdecode(folder)]
        try:
            _unpack(self._remote, words, sent(), path)
            if rules.archive and cleaner.summary.links:
                # BusyBox creates some links last, which changes the times of their directories.
                _unpack(self._remote, words, in_large_pieces(cleaner.directories()), path)
        except PycrictlError as exc:
            if not has_begun:
                raise
            hint = f"{exc.hint}; {left}" if exc.hint else left
            raise CopyError(f"{exc.message}; {_INCOMPLETE}", hint=hint) from exc
        except BaseException:
            if has_begun:
                log.warning("%s: %s", _INCOMPLETE, left)
            raise
        return cleaner.summary

    def _place(self, path: bytes, kind: SourceKind, top: bytes) -> tuple[bytes, bytes | None]:
        """Return the directory that the copy goes into, and its name there.

        If the name is None, the contents of the source go there.
        """
        text = take_apart(path)
        folder = text.path
        existing = self._remote.look(folder, follow=True)
        name = place(kind, top, destination=text, existing=existing)
        if existing is not Existing.DIRECTORY:
            folder = folder.rpartition(b"/")[0] or b"/"
            if self._remote.look(folder, follow=True) is not Existing.DIRECTORY:
                raise CopyError(f"there is no directory {quote(os.fsdecode(folder))}")
        if name is not None:
            target = _join(folder, name)
            meeting = meet(
                Existing(kind.value),
                self._remote.look(target),
                no_clobber=False,
                shown=quote(os.fsdecode(target)),
            )
            if meeting is Meeting.MERGE:  # the contents of the source go into it
                folder, name = target, None
        self._remote.refuse_kernel_file_system(folder)
        return folder, name


def _unpack(remote: Remote, words: list[str], archive: Iterable[bytes], path: bytes) -> None:
    """Unpack an archive with ``tar``; errors name ``path``."""
    with remote.stream(*words, stdin=True) as tar:
        is_read = all(tar.send(piece) for piece in archive)
        try:
            ended = tar.ended()
        except StreamError:
            # A runtime may never report the exit of a program that has left much of its input
            # unread, as tar does on a full disk.
            if not tar.stderr:
                raise
            ended = CommandResult(-1, b"", bytes(tar.stderr))
    if ended.status:
        raise ended.failure("copy to", path)
    if not is_read:  # the runtime may have lost the status
        raise CopyError(_UNFINISHED)


def _join(folder: bytes, name: bytes) -> bytes:
    return folder.rstrip(b"/") + b"/" + name


def in_large_pieces(pieces: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    """Yield the same bytes in multiples of ``CHUNK_BYTES``, large enough to detect holes in."""
    held = bytearray()
    for piece in pieces:
        held += piece
        if whole := len(held) // CHUNK_BYTES * CHUNK_BYTES:
            yield bytes(held[:whole])
            del held[:whole]
    if held:
        yield bytes(held)


def _check_packed(ended: CommandResult, path: bytes, *, is_gnu: bool, on_skip: OnSkip) -> None:
    """Raise an error if ``tar`` has failed; report the entries that its stderr names as skipped.

    Status 1 of GNU tar only means that files were changed or removed meanwhile.
    """
    if ended.status and not (is_gnu and ended.status == 1):
        raise ended.failure("copy", path)
    for line in ended.stderr.splitlines():
        name, _, reason = line.strip().removeprefix(b"tar: ").rpartition(b": ")
        if name and reason != _CHANGED:  # the other methods do not notice that either
            said = quote(reason.decode(errors="replace"))
            on_skip(Skipped(name, "tar", f"tar says {said}"))


class Cleaner:
    """Turns the bytes of an archive into those of a clean one.

    Args:
        rules: what the user allows; metadata that is not kept is reset in the new archive.
        name: the required name of its only file or directory; None: any number of entries.
        top: the new name of that file or directory.
        unpacks: whether ``tar`` in a container unpacks it: directories are then writable at first,
            and repeated at the end with their final mode and time; long names are written in a
            form that BusyBox reads. Otherwise links that point outside are kept.

    Attributes:
        of_1970: how many entries have the time 0, which some writers give to all earlier times.
    """

    def __init__(
        self,
        rules: Rules,
        watch: Watch,
        *,
        name: bytes | None,
        top: bytes,
        unpacks: bool,
    ) -> None:
        self.summary = Summary()
        self.of_1970 = 0
        self.judge = Judge(rules, single=name is not None, name=name)
        self._needs_any = name is not None
        self._watch = watch
        self._top = () if top == b"." else (top,)
        self._unpacks = unpacks
        self._now_ns = time.time_ns() // NS_PER_S * NS_PER_S
        self._directories: dict[bytes, Entry] = {}
        self._last_skipped: Skipped | None = None

    def clean(self, pieces: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        """Yield the new archive; each piece is valid until the next is requested."""
        current: Entry | None = None
        for event in read(pieces):
            if isinstance(event, EntryStarted):
                current = self._judged(event.entry)
                if current is not None:
                    yield encode_entry(current, busybox=self._unpacks)
            elif isinstance(event, DataReceived):
                if current is not None:
                    self._watch.on_bytes(len(event.data))
                    yield event.data
            elif isinstance(event, EntryFinished) and current is not None:
                yield padding_after(current.size_bytes)
        if self._needs_any and self.summary == Summary():
            raise nothing_copied(self._last_skipped)
        if note := unkept_note(self.judge.unkept):
            self._watch.note(note)
        yield from self.directories()

    def directories(self) -> Iterator[bytes]:
        """Yield the directories in their final state, deepest first, and the end of the archive."""
        for entry in reversed(self._directories.values()):
            yield encode_entry(entry, busybox=True)
        yield END_OF_ARCHIVE

    def _judged(self, entry: Entry) -> Entry | None:
        """Return the entry to write; None if it is left out."""
        verdict = self.judge.judge(entry)
        name = self._renamed(entry.name)
        if isinstance(verdict, Skipped):
            if self._unpacks or verdict.rule != "outward-link":
                self._last_skipped = verdict
                self._watch.on_skip(verdict)
                return None
            self.summary.links += 1
            return entry._replace(name=name)
        self.summary.count(verdict)
        self.of_1970 += entry.mtime_ns == 0
        kind = verdict.kind
        link = self._renamed(entry.link) if kind is EntryType.HARDLINK else verdict.target
        mtime_ns = self._now_ns if verdict.mtime_ns is None else verdict.mtime_ns
        entry = Entry(
            name, kind, verdict.size_bytes, verdict.mode, mtime_ns, *verdict.owner or (0, 0), link
        )
        if kind is not EntryType.DIRECTORY or not self._unpacks:
            return entry
        if name == b".":
            return None  # it exists already, and stays unchanged
        self._directories[name] = entry
        return entry._replace(mode=entry.mode | stat.S_IRWXU)

    def _renamed(self, name: bytes) -> bytes:
        path = policy.take_apart(name, what=name)
        below = path if self.judge.top == b"." else path[1:]
        return b"/".join((*self._top, *below)) or b"."
