"""The receiving end of a copy: entries come one by one, and appear at the destination at once.

Wherever the entries come from (an archive, a walk over another tree), they pass through here: they
are judged, made in a stage, and moved into place when all of them are there and the caller has
verified them.

1. ``wire.tar.reader``, pure and strict, reads an entry's header and hands out its content.
2. ``copy.rules.policy``, which is pure, judges the name and the type: the entry is made or
   skipped, or the whole copy refused.
3. ``tree.stage`` opens the entry's directory in the stage by descriptors (``tree.rootfs``) and
   creates the entry; ``tree.content`` writes its content.
4. At the end ``tree.stage`` renames the stage into place, or merges it (``tree.commit``). Its
   location is noted, so that the stage of a killed program is found (``tree.janitor``).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from typing import Final, NamedTuple

from pycrictl.copy.archive.archives import Incoming, Outgoing
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import AcceptedEntry, Judge, Make, Path, Rules, Skipped
from pycrictl.copy.rules.spec import Existing, Meeting, SourceKind, meet, place
from pycrictl.copy.tree.commit import existing_kind
from pycrictl.copy.tree.content import SparseWriter, copy_content
from pycrictl.copy.tree.places import Destination, Source
from pycrictl.copy.tree.rootfs import Directory, to_error
from pycrictl.copy.tree.stage import Owner, Stage, finish
from pycrictl.copy.tree.walk import Watch, walk
from pycrictl.errors import CopyError
from pycrictl.units import quote
from pycrictl.wire.tar.header import Entry
from pycrictl.wire.tar.reader import DataReceived, EntryFinished, EntryStarted, read

_TARGET_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
"""Errors that only the side that is written to can have."""


def put(
    archive: Incoming | Outgoing,
    destination: Destination,
    rules: Rules,
    watch: Watch,
    *,
    check: Callable[[], object],
) -> Summary:
    """Put an archive into its place: all of it, or nothing.

    Args:
        check: called before anything is visible; raises an error if it must not be.
    """
    with closing(_Arrival(archive, destination, rules, watch)) as arrival:
        if archive.tree is not None:
            _copy_tree(archive.tree, arrival, watch)
        else:
            with closing(archive.pieces()) as pieces:
                _unpack(pieces, arrival, watch)
        check()
        return arrival.commit()


def _copy_tree(source: Source, arrival: _Arrival, watch: Watch) -> None:
    shown = source.text.path
    try:
        with closing(walk(source, on_skip=arrival.skip)) as found:
            for entry, fd in found:
                shown = entry.name
                target = arrival.begin(entry)
                if target is not None:
                    copy_content(fd, target, entry.size_bytes, shown=shown, on_bytes=watch.on_bytes)
                    arrival.end()
    except OSError as exc:
        if exc.errno in _TARGET_ERRORS:
            raise arrival.failure(exc) from exc
        raise to_error(exc, "copy", shown) from exc


def _unpack(pieces: Iterable[memoryview], arrival: _Arrival, watch: Watch) -> None:
    writer: SparseWriter | None = None
    for event in read(pieces):
        try:
            if isinstance(event, DataReceived):
                if writer is not None:
                    writer.write(event.data)
                    watch.on_bytes(len(event.data))
            elif isinstance(event, EntryStarted):
                fd = arrival.begin(event.entry)
                if fd is not None:
                    writer = SparseWriter(fd)
            elif isinstance(event, EntryFinished) and writer is not None:
                writer.finish()
                writer = None
                arrival.end()
        except OSError as exc:
            raise arrival.failure(exc) from exc


class _Target(NamedTuple):
    """Where the top goes: to a name in a directory. Without one, what is in it goes there."""

    directory: Directory
    name: bytes | None
    meeting: Meeting


class _Arrival:
    """One copy as it arrives. What has not been committed when it is closed is removed."""

    def __init__(
        self, archive: Incoming | Outgoing, destination: Destination, rules: Rules, watch: Watch
    ) -> None:
        self._summary = Summary()
        self._destination = destination
        self._rules = rules
        self._watch = watch
        kind = archive.kind
        if kind is None:
            is_directory = destination.existing is Existing.DIRECTORY
            if is_directory or destination.text.wants_contents:
                kind = SourceKind.ARCHIVE
        self._judge = Judge(rules, single=kind is not SourceKind.ARCHIVE, name=archive.name)
        self._notes_names = archive.kind is SourceKind.ARCHIVE
        # Only root may give files away.
        self._keeps_owner = destination.root.default_owner is None and os.geteuid() != 0
        self._held = ExitStack()
        self._stage: Stage | None = None
        self._item: AcceptedEntry | None = None
        self._fd = -1
        self._last_skipped: Skipped | None = None
        # Of a single one it is not known before its first entry what it is.
        self._target = self._find_target(kind) if kind is SourceKind.ARCHIVE else None

    def begin(self, entry: Entry) -> int | None:
        """Take an entry.

        Returns:
            For a file, a writable descriptor for its content, valid until ``end``. None: the
            content is dropped.
        """
        verdict = self._judge.judge(entry)
        item = verdict if isinstance(verdict, AcceptedEntry) else None
        try:
            if self._judge.replaced is not None and self._stage is not None:
                dropped = self._stage.drop(self._judge.replaced.path)
                if dropped is not None:
                    self._summary.count(dropped, -1)
            if item is not None:
                return self._make(item)
        except OSError as exc:
            raise self.failure(exc, item) from exc
        if isinstance(verdict, Skipped):
            self.skip(verdict)
        return None

    def _make(self, item: AcceptedEntry) -> int | None:
        if self._target is None:
            is_leaf = item.make is not Make.DIRECTORY and not item.path
            self._target = self._find_target(SourceKind.FILE if is_leaf else SourceKind.DIRECTORY)
        if self._target.meeting is Meeting.KEEP:
            return None
        self._summary.count(item)
        if self._stage is None:
            container_id = self._destination.root.container_id
            self._stage = Stage(self._target.directory, self._host_owner, container_id)
            self._held.callback(self._stage.remove)
        fd = self._stage.make(item)
        if fd is not None:
            self._item, self._fd = item, fd
        return fd

    def end(self) -> None:
        item, fd, self._item, self._fd = self._item, self._fd, None, -1
        if item is None:
            return
        try:
            finish(fd, item, self._host_owner(item.owner))
        except OSError as exc:
            raise self.failure(exc, item) from exc
        finally:
            os.close(fd)

    def skip(self, skipped: Skipped) -> None:
        self._last_skipped = skipped
        self._watch.on_skip(skipped)

    def commit(self) -> Summary:
        """Put everything into its place, and remove the stage."""
        if self._target is None:
            raise nothing_copied(self._last_skipped)
        summary, target = self._summary, self._target
        try:
            if self._stage is not None and target.name is None:
                kept = self._stage.merge(self._rules)
                summary.kept = kept.files + kept.links
                summary.files -= kept.files
                summary.links -= kept.links
                summary.size_bytes -= kept.size_bytes
            elif self._stage is not None and target.name is not None:
                self._stage.move(target.name, replaces=target.meeting is Meeting.REPLACE)
            self.close()
        except OSError as exc:
            raise self.failure(exc) from exc
        if self._notes_names:
            self._watch.note_names(has_absolute=self._judge.has_absolute)
        return summary

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
        self._held.close()

    def failure(self, exc: OSError, item: AcceptedEntry | None = None) -> CopyError:
        item = item or self._item
        path: Path = () if item is None else item.path
        top = self._destination.text.path
        return to_error(exc, "copy to", b"/".join((top.rstrip(b"/"), *path)) or top)

    def _find_target(self, kind: SourceKind) -> _Target:
        _, text, existing, directory = self._destination
        name = place(kind, self._judge.top or b".", destination=text, existing=existing)
        if name is None:
            return _Target(directory, None, Meeting.MERGE)
        meeting = meet(
            Existing.FILE if kind is SourceKind.FILE else Existing.DIRECTORY,
            existing_kind(directory.lstat(name)),
            no_clobber=self._rules.no_clobber,
            shown=quote(os.fsdecode(directory.shown_path(name))),
        )
        if meeting is Meeting.MERGE:
            # The stage goes into it: another file system may be mounted there.
            return _Target(self._held.enter_context(directory.enter(name)), None, meeting)
        if meeting is Meeting.REPLACE:
            directory.refuse_mounted(name)
        elif meeting is Meeting.KEEP:
            self._summary.kept = 1
        return _Target(directory, name, meeting)

    def _host_owner(self, owner: Owner | None) -> Owner | None:
        if self._keeps_owner:
            return None
        root = self._destination.root
        owner = owner or root.default_owner
        return owner and (root.uids.to_host(owner[0]), root.gids.to_host(owner[1]))


def nothing_copied(skipped: Skipped | None) -> CopyError:
    """Return the error for a copy of nothing: the source was ``skipped``, or never came."""
    if skipped is None:
        return CopyError("the archive is empty")
    hint = "-L copies what a link points to" if skipped.rule == "outward-link" else None
    shown = quote(os.fsdecode(skipped.path))
    return CopyError(f"{shown} was not copied: {skipped.reason}", hint=hint)
