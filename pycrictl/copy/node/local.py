"""The end of a copy in a file system that can be reached from here."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import closing
from typing import Final

from pycrictl.copy.archive.archives import Incoming, Outgoing
from pycrictl.copy.archive.arrival import Arrival
from pycrictl.copy.archive.unpack import Unpacker
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.rules.spec import Existing, SourceKind
from pycrictl.copy.rules.summary import Summary
from pycrictl.copy.tree.content import OnBytes, copy_content
from pycrictl.copy.tree.places import Destination, Source
from pycrictl.copy.tree.rootfs import to_error
from pycrictl.copy.tree.walk import OnSkip, walk
from pycrictl.copy.tree.watch import Watch

_TARGET_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
"""Errors that only the side that is written to can have."""


class TreeCopy:
    """A copy that is put together by ``run`` and becomes visible by ``commit``.

    Use it as a context manager: what is not committed leaves no trace. The arguments are those of
    ``Arrival``.
    """

    def __init__(self, destination: Destination, rules: Rules, *, on_skip: OnSkip) -> None:
        self._arrival = Arrival(destination, rules, on_skip=on_skip)

    def __enter__(self) -> TreeCopy:
        return self

    def __exit__(self, *_: object) -> None:
        self._arrival.close()

    def run(self, source: Source, *, on_bytes: OnBytes) -> None:
        """Copy everything to a place beside the destination.

        Raises:
            EntryRefused: something in the tree breaks a rule.
            CopyError: it cannot be read or written.
        """
        shown = source.text.path
        arrival = self._arrival
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

    def commit(self) -> Summary:
        """Put it into place; see ``Arrival.commit``."""
        return self._arrival.commit()


def put(
    archive: Incoming | Outgoing,
    destination: Destination,
    rules: Rules,
    watch: Watch,
    *,
    check: Callable[[], None],
) -> Summary:
    """Put an archive into its place in a file system that can be reached from here.

    Args:
        archive: is asked for once.
        destination: where it goes; closed by the caller.
        rules: what the user allows.
        watch: called meanwhile.
        check: called before anything is visible; raises an error if it must not be.
    """
    if archive.tree is not None:
        with TreeCopy(destination, rules, on_skip=watch.on_skip) as copy:
            copy.run(archive.tree, on_bytes=watch.on_bytes)
            check()
            return copy.commit()
    single = archive.kind is not SourceKind.ARCHIVE
    if archive.kind is None:
        is_directory = destination.existing is Existing.DIRECTORY
        single = not (is_directory or destination.text.wants_contents)
    with (
        Unpacker(
            destination,
            rules,
            on_skip=watch.on_skip,
            on_bytes=watch.on_bytes,
            single=single,
            name=archive.name,
        ) as unpacker,
        closing(archive.pieces()) as pieces,
    ):
        for piece in pieces:
            unpacker.receive_data(piece)
        check()
        summary = unpacker.finish()
        if archive.kind is SourceKind.ARCHIVE:
            watch.note_names(has_absolute=unpacker.has_absolute)
        return summary
