"""Counts of what is in an archive that only passes through, and the rules for it."""

from __future__ import annotations

from pycrictl.copy.rules.policy import Judge, Rules
from pycrictl.copy.rules.summary import Summary
from pycrictl.wire.tar.header import Entry, EntryType
from pycrictl.wire.tar.reader import EntryStarted, TarReader


class Census:
    """Counts the entries of an archive, and checks that it is one.

    Args:
        rules: what the user allows; None: whatever there is.

    Attributes:
        summary: what there is so far, devices and pipes left out; a file counts when it begins.
        has_absolute: a name begins with a slash.
    """

    def __init__(self, rules: Rules | None = None) -> None:
        self.summary = Summary()
        self.has_absolute = False
        self._judge = None if rules is None else Judge(rules, single=False)
        self._reader = TarReader()

    def receive_data(self, data: bytes | memoryview) -> None:
        """Take in the next bytes.

        Raises:
            StreamError: this is not an acceptable archive.
            EntryRefused: an entry breaks a rule.
        """
        self._reader.receive_data(data)
        self._deal()

    def count(self, entry: Entry) -> None:
        """Take in an entry itself, while an archive is being written.

        Raises:
            EntryRefused: it breaks a rule.
        """
        if self._judge is not None:
            self._judge.judge(entry)
        kind = entry.kind
        self.has_absolute |= entry.name.startswith(b"/")
        if kind is EntryType.DIRECTORY:
            self.summary.directories += 1
        elif kind is EntryType.SYMLINK:
            self.summary.links += 1
        elif kind in (EntryType.FILE, EntryType.HARDLINK):
            self.summary.files += 1
            self.summary.size_bytes += entry.size_bytes

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
