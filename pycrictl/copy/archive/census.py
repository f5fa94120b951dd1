"""Counts of what is in an archive that only passes through."""

from __future__ import annotations

from pycrictl.copy.rules.summary import Summary
from pycrictl.errors import CopyError
from pycrictl.units import plural
from pycrictl.wire.tar.header import Entry, EntryType
from pycrictl.wire.tar.reader import EntryStarted, TarReader


class Census:
    """Counts the entries of an archive, and checks that it is one.

    Args:
        max_size_bytes: the most content in all files together; None for any amount.

    Attributes:
        summary: what there is so far, devices and pipes left out; a file counts when it begins.
        has_absolute: a name begins with a slash.
    """

    def __init__(self, *, max_size_bytes: int | None = None) -> None:
        self.summary = Summary()
        self.has_absolute = False
        self._max_size_bytes = max_size_bytes
        self._reader = TarReader()

    def receive_data(self, data: bytes | memoryview) -> None:
        """Take in the next bytes.

        Raises:
            StreamError: this is not an acceptable archive.
            CopyError: its files are larger than is allowed.
        """
        self._reader.receive_data(data)
        self._deal()

    def count(self, entry: Entry) -> None:
        """Take in an entry itself, while an archive is being written.

        Raises:
            CopyError: with it, the files are larger than is allowed.
        """
        kind = entry.kind
        self.has_absolute |= entry.name.startswith(b"/")
        if kind is EntryType.DIRECTORY:
            self.summary.directories += 1
        elif kind is EntryType.SYMLINK:
            self.summary.links += 1
        elif kind in (EntryType.FILE, EntryType.HARDLINK):
            self.summary.files += 1
            self.summary.size_bytes += entry.size_bytes
            limit = self._max_size_bytes
            if limit is not None and self.summary.size_bytes > limit:
                raise CopyError(f"more than {plural(limit, 'byte')} would be copied")

    def finish(self) -> None:
        """Take in the end of the archive.

        Raises:
            StreamError: it is not complete.
        """
        self._reader.receive_eof()
        self._deal()

    def _deal(self) -> None:
        for event in self._reader.events_received():
            if isinstance(event, EntryStarted):
                self.count(event.entry)
        if self._reader.error is not None:
            raise self._reader.error
