"""The contents, size and checksum of an archive: before it is made, or as it passes through.

The checksum is CRC-32 (IEEE 802.3). With isal, which not all machines have, it takes a third of the
time. It detects damage, not malice: anyone can make bytes with a given checksum.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from typing import Final, NamedTuple

from pycrictl.base.errors import CopyError
from pycrictl.copy.archive.pack import pack
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import Judge, Rules
from pycrictl.copy.tree.places import Source
from pycrictl.copy.tree.walk import OnSkip, Watch, walk
from pycrictl.streams.wire.tar.header import Entry
from pycrictl.streams.wire.tar.reader import EntryStarted, TarReader
from pycrictl.streams.wire.tar.writer import END_OF_ARCHIVE, encode_entry, padding_after

try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

__all__ = ["Census", "Measured", "crc32", "measure", "report_total", "wrong_checksum"]

MAX_ENTRIES: Final = 50_000
"""A larger tree is not walked in advance only to show progress."""


class Census:
    """Counts the entries of an archive, and validates it.

    Attributes:
        summary: the entries so far, without devices and pipes; a file counts from its header.
    """

    def __init__(self, rules: Rules | None = None) -> None:
        self.summary = Summary()
        self._judge = None if rules is None else Judge(rules, single=False)
        self._reader = TarReader()

    def through(self, pieces: Iterable[memoryview]) -> Generator[memoryview, None, None]:
        """Yield the pieces of an archive unchanged; raise an error if it is invalid."""
        for piece in pieces:
            self._reader.receive_data(piece)
            self._count()
            yield piece
        self._reader.receive_eof()
        self._count()

    def count(self, entry: Entry) -> None:
        if self._judge is not None:
            self._judge.judge(entry)
        self.summary.count(entry)

    def _count(self) -> None:
        for event in self._reader.events_received():
            if isinstance(event, EntryStarted):
                self.count(event.entry)
        if self._reader.error is not None:
            raise self._reader.error


class Measured(NamedTuple):
    """The properties of an archive, known before it is sent."""

    size_bytes: int
    crc32: int
    summary: Summary


def measure(
    source: Source,
    *,
    on_skip: OnSkip,
    check: Callable[[int], None] | None = None,
    rules: Rules | None = None,
) -> Measured:
    """Measure the archive that ``pack`` would yield.

    Args:
        check: called with the size of the archive as it grows; raises an error if it is too large.
    """
    census = Census(rules)
    size_bytes = checksum = 0
    with closing(pack(source, on_skip=on_skip, on_entry=census.count)) as pieces:
        for piece in pieces:
            size_bytes += len(piece)
            if check is not None:
                check(size_bytes)
            checksum = crc32(piece, checksum)
    return Measured(size_bytes, checksum, census.summary)


def report_total(source: Source, watch: Watch) -> None:
    """Report the total size of a copy, if it is wanted and quickly available.

    Errors are ignored here: the copy itself will encounter them.
    """
    if watch.on_total is None and watch.on_archive is None:
        return
    content_bytes, archive_bytes = 0, len(END_OF_ARCHIVE)
    try:
        with closing(walk(source, on_skip=lambda _: None, opens=False)) as found:
            for count, (entry, _) in enumerate(found):
                if count >= MAX_ENTRIES:
                    return
                content_bytes += entry.size_bytes
                if watch.on_archive is not None:
                    archive_bytes += len(encode_entry(entry) + padding_after(entry.size_bytes))
    except (OSError, CopyError):
        return
    if watch.on_total is not None:
        watch.on_total(content_bytes)
    if watch.on_archive is not None:
        watch.on_archive(archive_bytes + content_bytes)


def wrong_checksum() -> CopyError:
    return CopyError(
        "what arrived has another checksum than announced",
        hint="it changed while it was copied, or was damaged on its way; try again",
    )
