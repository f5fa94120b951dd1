"""The receiving end of a copy: entries come one by one, and appear at the destination at once.

Wherever the entries come from (an archive, a walk over another tree), they pass through here: they
are judged, made in a stage, and moved into place when all of them are there and the caller has
verified them.

1. ``wire.tar.reader``, pure and strict, reads an entry's header and hands out its content.
2. ``copy.rules.policy``, which is pure, judges the name and the type: the entry is made or
   skipped, or the whole copy refused.
3. This module opens the entry's directory in the stage by descriptors (``tree.rootfs``) and
   creates the entry; ``tree.content`` writes its content.
4. At the end ``tree.commit`` renames the stage into place. Its location is noted, so that the stage
   of a killed program is found (``tree.janitor``).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from typing import Final

from pycrictl.copy.archive.archives import Incoming, Outgoing
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import AcceptedEntry, Judge, Make, Path, Rules, Skipped
from pycrictl.copy.rules.spec import Existing, Meeting, SourceKind, meet, place
from pycrictl.copy.tree.commit import Merge, existing_kind, move_new
from pycrictl.copy.tree.content import OnBytes, SparseWriter, copy_content
from pycrictl.copy.tree.janitor import COMMIT, COMMIT_NEW, TOP
from pycrictl.copy.tree.places import Destination, Source
from pycrictl.copy.tree.rootfs import Directory, to_error
from pycrictl.copy.tree.stage import Owner, Stage, finish
from pycrictl.copy.tree.walk import OnSkip, Watch, walk
from pycrictl.errors import CopyError
from pycrictl.units import quote
from pycrictl.wire.tar.header import Entry
from pycrictl.wire.tar.reader import DataReceived, EntryFinished, EntryStarted, read

_TARGET_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
"""Errors that only the side that is written to can have."""


class Arrival:
    """One copy as it arrives.

    Use it as a context manager: what has not been committed at its end is removed without a trace.

    Args:
        single: the copy is one file or directory, under the name of the source; else an archive
            whose contents go into the destination.
        name: what the source must be called; None accepts any name.
    """

    def __init__(
        self,
        destination: Destination,
        rules: Rules,
        *,
        on_skip: OnSkip,
        single: bool = True,
        name: bytes | None = None,
    ) -> None:
        self.summary = Summary()
        self._destination = destination
        self._directory = destination.directory
        self._rules = rules
        self._on_skip = on_skip
        self.judge = Judge(rules, single=single, name=name)
        # Only root may give files away.
        self._keeps_owner = destination.root.default_owner is None and os.geteuid() != 0
        self._spread: Directory | None = None
        self._entered: Directory | None = None
        self._name = b""
        self._meeting: Meeting | None = None
        self._stage: Stage | None = None
        self._item: AcceptedEntry | None = None
        self._fd = -1
        self._last_skipped: Skipped | None = None
        if not single:
            self._place(SourceKind.ARCHIVE)

    def __enter__(self) -> Arrival:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self, entry: Entry) -> int | None:
        """Take an entry.

        Returns:
            For a file, a writable descriptor for its content, valid until ``end``. None: the
            content is dropped.
        """
        verdict = self.judge.judge(entry)
        try:
            if self.judge.replaced is not None and self._stage is not None:
                dropped = self._stage.drop(self.judge.replaced.path)
                if dropped is not None:
                    self.summary.count(dropped, -1)
            if not isinstance(verdict, Skipped):
                return self._begin(verdict)
        except OSError as exc:
            path = verdict.path if isinstance(verdict, AcceptedEntry) else None
            raise self.failure(exc, path) from exc
        self.skip(verdict)
        return None

    def _begin(self, item: AcceptedEntry) -> int | None:
        if self._meeting is None:
            is_leaf = item.make is not Make.DIRECTORY and not item.path
            self._place(SourceKind.FILE if is_leaf else SourceKind.DIRECTORY)
        if self._meeting is Meeting.KEEP:
            return None
        self.summary.count(item)
        if self._stage is None:
            if self._meeting is Meeting.REPLACE:
                self._directory.refuse_mounted(self._name)
            folder = self._spread or self._directory
            container_id = self._destination.root.container_id
            self._stage = Stage(folder, self._host_owner, container_id)
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
            raise self.failure(exc, item.path) from exc
        finally:
            os.close(fd)

    def skip(self, skipped: Skipped) -> None:
        self._last_skipped = skipped
        self._on_skip(skipped)

    def commit(self) -> Summary:
        """Put everything into its place, and remove the stage."""
        if self._meeting is None:
            raise nothing_copied(self._last_skipped)
        try:
            if self._stage is not None:
                late = self._stage.finish()
                if self._spread is None:
                    self._move(self._stage, late)
                else:
                    self._merge(self._stage, self._spread, late)
            self.close()
        except OSError as exc:
            raise self.failure(exc) from exc
        return self.summary

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
        stage, self._stage = self._stage, None
        try:
            if stage is not None:
                stage.remove()
        finally:
            if self._entered is not None:
                self._entered.close()
            self._entered = None

    def failure(self, exc: OSError, path: Path | None = None) -> CopyError:
        if path is None:
            path = () if self._item is None else self._item.path
        top = self._destination.text.path
        return to_error(exc, "copy to", b"/".join((top.rstrip(b"/"), *path)) or top)

    def _place(self, kind: SourceKind) -> None:
        """Decide where the top goes, now that it is known what it is."""
        top = self.judge.top or b"."
        destination = self._destination
        name = place(
            kind,
            top,
            contents=top == b".",
            destination=destination.text,
            existing=destination.existing,
        )
        if name is None:
            self._meeting = Meeting.MERGE
            self._spread = self._directory
            return
        self._name = name
        new = Existing.FILE if kind is SourceKind.FILE else Existing.DIRECTORY
        self._meeting = meet(
            new,
            existing_kind(self._directory.lstat(self._name)),
            no_clobber=self._rules.no_clobber,
            shown=quote(os.fsdecode(self._directory.shown_path(self._name))),
        )
        if self._meeting is Meeting.MERGE:
            # The stage goes into it: another file system may be mounted there.
            self._spread = self._entered = self._directory.enter(self._name)
        elif self._meeting is Meeting.KEEP:
            self.summary.kept = 1

    def _move(self, stage: Stage, late: list[Path]) -> None:
        """Move what is in the stage to a name that nothing has, or that of a link."""
        if self._meeting is Meeting.REPLACE:
            # It may have been mounted since the copy began.
            self._directory.refuse_mounted(self._name)
            stage.directory.move(TOP, self._directory, self._name)
        else:
            move_new(stage.directory, TOP, self._directory, self._name)
        if late:
            with self._directory.enter(self._name) as top:
                stage.finish_again(top, late)

    def _merge(self, stage: Stage, target: Directory, late: list[Path]) -> None:
        try:
            staged = stage.directory.enter(TOP)
        except FileNotFoundError:  # an archive with nothing in it
            return
        with staged:
            merge = Merge(staged, target, stage.directory, no_clobber=self._rules.no_clobber)
            merge.check()
            # From now on whoever clears up would finish the work.
            marker = COMMIT_NEW if self._rules.no_clobber else COMMIT
            stage.directory.move(TOP, stage.directory, marker)
            try:
                merge.run()
            except BaseException as exc:
                if merge.is_halfway:
                    raise self._left_behind(stage) from exc
                raise
        self.summary.kept = merge.kept.files + merge.kept.links
        self.summary.files -= merge.kept.files
        self.summary.links -= merge.kept.links
        self.summary.size_bytes -= merge.kept.size_bytes
        # The stage is in the directory: its removal would change the time that is to be kept.
        self._stage = None
        stage.remove()
        stage.finish_again(target, [path for path in late if path not in {(), *merge.merged}])
        if self._rules.archive:  # what was there already has it too, now that all is in it
            stage.finish_again(target, [*reversed(merge.merged), ()])

    def _left_behind(self, stage: Stage) -> CopyError:
        """Keep what an unfinished merge has replaced; return the error that says so."""
        self._stage = None
        shown = quote(os.fsdecode(stage.leave()))
        return CopyError(
            "the copy failed halfway, and its changes could not be undone",
            hint=f"what was replaced is in {shown} until the copy can be finished",
        )

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


def put(
    archive: Incoming | Outgoing,
    destination: Destination,
    rules: Rules,
    watch: Watch,
    *,
    check: Callable[[], None],
) -> Summary:
    """Put an archive into its place: all of it, or nothing.

    Args:
        check: called before anything is visible; raises an error if it must not be.
    """
    single = archive.kind is not SourceKind.ARCHIVE
    if archive.kind is None:
        is_directory = destination.existing is Existing.DIRECTORY
        single = not (is_directory or destination.text.wants_contents)
    name = None if archive.tree is not None else archive.name
    with Arrival(destination, rules, on_skip=watch.on_skip, single=single, name=name) as arrival:
        if archive.tree is not None:
            _copy_tree(archive.tree, arrival, on_bytes=watch.on_bytes)
            check()
        else:
            with closing(_checked(archive.pieces(), check)) as pieces:
                _unpack(pieces, arrival, on_bytes=watch.on_bytes)
        summary = arrival.commit()
        if archive.kind is SourceKind.ARCHIVE:
            watch.note_names(has_absolute=arrival.judge.has_absolute)
        return summary


def _checked(
    pieces: Generator[memoryview, None, None], check: Callable[[], None]
) -> Generator[memoryview, None, None]:
    with closing(pieces):
        yield from pieces
    check()


def _copy_tree(source: Source, arrival: Arrival, *, on_bytes: OnBytes) -> None:
    shown = source.text.path
    try:
        with closing(walk(source, on_skip=arrival.skip)) as found:
            for entry, fd in found:
                shown = entry.name
                target = arrival.begin(entry)
                if target is not None:
                    copy_content(fd, target, entry.size_bytes, shown=shown, on_bytes=on_bytes)
                    arrival.end()
    except OSError as exc:
        if exc.errno in _TARGET_ERRORS:
            raise arrival.failure(exc) from exc
        raise to_error(exc, "copy", shown) from exc


def _unpack(pieces: Iterable[memoryview], arrival: Arrival, *, on_bytes: OnBytes) -> None:
    writer: SparseWriter | None = None
    for event in read(pieces):
        try:
            if isinstance(event, DataReceived):
                if writer is not None:
                    writer.write(event.data)
                    on_bytes(len(event.data))
            elif isinstance(event, EntryStarted):
                fd = arrival.begin(event.entry)
                if fd is not None:
                    writer = SparseWriter(fd, event.entry.size_bytes)
            elif isinstance(event, EntryFinished) and writer is not None:
                writer.finish()
                writer = None
                arrival.end()
        except OSError as exc:
            raise arrival.failure(exc) from exc
