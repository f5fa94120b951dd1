"""The receiving end of a copy: entries arrive one by one, and become visible all at once.

All entries, whether from an archive or from a walk over another tree, pass through here: they are
checked, created in a stage, and moved into place when all have arrived and the caller has verified
them.

1. ``streams.wire.tar.reader``, pure and strict, reads an entry's header and returns its content.
2. ``copy.rules.policy``, which is pure, decides by name and type: the entry is created
   or skipped, or the whole copy is refused.
3. ``tree.stage`` opens the entry's directory in the stage by descriptors (``tree.rootfs``) and
   creates the entry; ``tree.content`` writes its content.
4. At the end ``tree.stage`` renames the stage into place, or merges it (``tree.commit``). A
   note of its location lets others find the stage of a killed program.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing
from functools import partial
from typing import Final, NamedTuple

from pycrictl.base.errors import CopyError
from pycrictl.base.units import quote
from pycrictl.copy.archive.archives import Archive
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import AcceptedEntry, EntryPolicy, Path, Rules, Skipped
from pycrictl.copy.rules.spec import Existing, Meeting, SourceKind, meet, place
from pycrictl.copy.tree.content import OnBytes, SparseWriter, copy_content
from pycrictl.copy.tree.places import Destination, Source
from pycrictl.copy.tree.rootfs import Directory, existing_kind, to_error
from pycrictl.copy.tree.stage import Fill, Owner, Stage
from pycrictl.copy.tree.walk import OnSkip, Watch, walk
from pycrictl.streams.wire.tar.header import Entry, EntryType
from pycrictl.streams.wire.tar.reader import DataReceived, EntryFinished, EntryStarted, Event, read

_TARGET_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
"""Errors that only the target of a write can cause."""


def put(
    archive: Archive,
    destination: Destination,
    rules: Rules,
    watch: Watch,
    *,
    check: Callable[[], object],
) -> Summary:
    """Write an archive to its destination: all of it, or nothing.

    Args:
        check: called before anything becomes visible; may raise an error to prevent that.
    """
    with closing(_Arrival(archive, destination, rules, watch)) as arrival:
        on_bytes = watch.on_bytes
        if archive.tree is not None:
            entries = _of_tree(archive.tree, arrival.skip, on_bytes)
        else:
            entries = _of_archive(archive.pieces(), on_bytes)
        with closing(entries):
            for entry, fill in entries:
                arrival.receive(entry, fill)
        check()
        return arrival.commit()


def _of_tree(
    source: Source, on_skip: OnSkip, on_bytes: OnBytes
) -> Generator[tuple[Entry, Fill], None, None]:
    """Yield the entries of a tree; fill each before the next is requested."""
    shown = source.text.path
    try:
        with closing(walk(source, on_skip=on_skip)) as entries:
            for entry, fd in entries:
                shown = entry.name
                yield entry, partial(_copy, fd, entry, on_bytes)
    except OSError as exc:
        raise to_error(exc, "copy", shown) from exc


def _copy(fd: int, entry: Entry, on_bytes: OnBytes, target: int) -> None:
    try:
        copy_content(fd, target, entry.size_bytes, shown=entry.name, on_bytes=on_bytes)
    except OSError as exc:
        if exc.errno in _TARGET_ERRORS:
            raise
        raise to_error(exc, "copy", entry.name) from exc


def _of_archive(
    archive: Generator[memoryview, None, None], on_bytes: OnBytes
) -> Generator[tuple[Entry, Fill], None, None]:
    with closing(archive) as pieces:
        events = read(pieces)
        for event in events:
            if isinstance(event, EntryStarted):
                yield event.entry, partial(_unpack, events, on_bytes)


def _unpack(events: Iterator[Event], on_bytes: OnBytes, target: int) -> None:
    writer = SparseWriter(target)
    for event in events:
        if isinstance(event, DataReceived):
            writer.write(event.data)
            on_bytes(len(event.data))
        elif isinstance(event, EntryFinished):
            break
    writer.finish()


class _Target(NamedTuple):
    """Where the top goes: to ``name`` in a directory; None: only its contents go there."""

    directory: Directory
    name: bytes | None
    meeting: Meeting


class _Arrival:
    """One arriving copy. Closing it removes everything that has not been committed."""

    def __init__(
        self, archive: Archive, destination: Destination, rules: Rules, watch: Watch
    ) -> None:
        self._destination = destination
        self._rules = rules
        self._watch = watch
        kind = archive.kind
        if kind is None:
            is_directory = destination.existing is Existing.DIRECTORY
            if is_directory or destination.text.wants_contents:
                kind = SourceKind.ARCHIVE
        is_single = kind is not SourceKind.ARCHIVE
        self._policy = EntryPolicy(
            rules, single=is_single, name=archive.name, pattern=archive.pattern
        )
        # Only root may give files away.
        self._keeps_owner = destination.root.default_owner is None and os.geteuid() != 0
        self._held = ExitStack()
        self._stage: Stage | None = None
        self._last_skipped: Skipped | None = None
        # The kind of a single top is not known before its first entry.
        self._target = self._find_target(kind) if kind is SourceKind.ARCHIVE else None

    def receive(self, entry: Entry, fill: Fill) -> None:
        verdict = self._policy.decide(entry)
        item = verdict if isinstance(verdict, AcceptedEntry) else None
        try:
            if item is not None:
                self._make(item, fill)
        except OSError as exc:
            raise self._failure(exc, () if item is None else item.path) from exc
        if isinstance(verdict, Skipped):
            self.skip(verdict)

    def _make(self, item: AcceptedEntry, fill: Fill) -> None:
        if self._target is None:
            is_leaf = item.kind is not EntryType.DIRECTORY and not item.path
            self._target = self._find_target(SourceKind.FILE if is_leaf else SourceKind.DIRECTORY)
        if self._stage is None:
            container_id = self._destination.root.container_id
            self._stage = Stage(self._target.directory, self._host_owner, container_id)
            self._held.callback(self._stage.remove)
        self._stage.make(item, fill)

    def skip(self, skipped: Skipped) -> None:
        self._last_skipped = skipped
        self._watch.on_skip(skipped)

    def commit(self) -> Summary:
        """Move everything into place, and remove the stage."""
        if self._target is None:
            raise nothing_copied(self._last_skipped)
        _, name, meeting = self._target
        if self._stage is None:
            return Summary()
        try:
            if name is None:
                self._stage.merge(archive=self._rules.archive)
            else:
                self._stage.move(name, replaces=meeting is Meeting.REPLACE)
            self.close()
        except OSError as exc:
            raise self._failure(exc) from exc
        if kinds := " and ".join(sorted(self._stage.unkept)):
            refused = "not supported, or not permitted"
            self._watch.note(f"the {kinds} of some entries could not be kept: {refused}")
        return self._stage.summary

    def close(self) -> None:
        self._held.close()

    def _failure(self, exc: OSError, path: Path = ()) -> CopyError:
        top = self._destination.text.path
        return to_error(exc, "copy to", b"/".join((top.rstrip(b"/"), *path)) or top)

    def _find_target(self, kind: SourceKind) -> _Target:
        _, text, existing, directory = self._destination
        name = place(kind, self._policy.top or b".", destination=text, existing=existing)
        if name is None:
            return _Target(directory, None, Meeting.MERGE)
        meeting = meet(
            Existing(kind.value),
            existing_kind(directory.lstat(name)),
            shown=quote(os.fsdecode(directory.shown_path(name))),
        )
        if meeting is Meeting.MERGE:
            # The stage is created inside it: another file system may be mounted there.
            return _Target(self._held.enter_context(directory.enter(name)), None, meeting)
        if meeting is Meeting.REPLACE:
            directory.refuse_mounted(name)
        return _Target(directory, name, meeting)

    def _host_owner(self, owner: Owner | None) -> Owner | None:
        if self._keeps_owner:
            return None
        root = self._destination.root
        owner = owner or root.default_owner
        return owner and (root.uids.to_host(owner[0]), root.gids.to_host(owner[1]))


def nothing_copied(skipped: Skipped | None) -> CopyError:
    """Return the error for an empty copy: the source was ``skipped``, or nothing arrived."""
    if skipped is None:
        return CopyError("the archive is empty")
    hint = "-L copies what a link points to" if skipped.rule == "outward-link" else None
    shown = quote(os.fsdecode(skipped.path))
    return CopyError(f"{shown} was not copied: {skipped.reason}", hint=hint)
