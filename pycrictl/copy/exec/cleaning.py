"""Checking and rewriting archives on their way to or from ``tar`` in a container.

No archive from outside is passed on unchanged: two programs may parse the same bytes differently,
and the archive that is unpacked must be the one that was checked.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Iterable, Iterator

from pycrictl.copy.archive.arrival import nothing_copied
from pycrictl.copy.rules.outcome import Summary, unkept_note
from pycrictl.copy.rules.policy import Judge, Rules, Skipped, take_apart
from pycrictl.copy.tree.walk import Watch
from pycrictl.streams.wire.tar.header import NS_PER_S, Entry, EntryType
from pycrictl.streams.wire.tar.reader import DataReceived, EntryFinished, EntryStarted, read
from pycrictl.streams.wire.tar.writer import END_OF_ARCHIVE, encode_entry, padding_after


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
        path = take_apart(name, what=name)
        below = path if self.judge.top == b"." else path[1:]
        return b"/".join((*self._top, *below)) or b"."
