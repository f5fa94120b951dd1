"""Putting an archive into its place in a file system that can be reached from here."""

from __future__ import annotations

import errno
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from typing import Final

from pycrictl.copy.archive.archives import Incoming, Outgoing
from pycrictl.copy.archive.arrival import Arrival
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.rules.spec import Existing, SourceKind
from pycrictl.copy.tree.content import OnBytes, SparseWriter, copy_content
from pycrictl.copy.tree.places import Destination, Source
from pycrictl.copy.tree.rootfs import to_error
from pycrictl.copy.tree.walk import Watch, walk
from pycrictl.wire.tar.reader import DataReceived, EntryFinished, EntryStarted, read

_TARGET_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
"""Errors that only the side that is written to can have."""


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
            watch.note_names(has_absolute=arrival.has_absolute)
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
