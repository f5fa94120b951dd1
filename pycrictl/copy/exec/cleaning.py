"""An archive on its way to or from ``tar`` in a container: judged by entries, and written anew.

No archive from outside is passed on as it is: two programs may read the same bytes differently, and
what has been checked must be what is unpacked.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Iterable, Iterator

from pycrictl.copy.archive.arrival import nothing_copied
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import Judge, Rules, Skipped, ambiguous, take_apart
from pycrictl.copy.tree.walk import Watch
from pycrictl.wire.tar.header import NS_PER_S, Entry, EntryType
from pycrictl.wire.tar.reader import DataReceived, EntryFinished, EntryStarted, read
from pycrictl.wire.tar.writer import END_OF_ARCHIVE, encode_entry, padding_after


class Cleaner:
    """The bytes of an archive in, the bytes of a clean one out. No name may come twice.

    Args:
        rules: what the user allows; what is not kept is not in the new archive.
        name: what the single file or directory in it must be called; None: it may hold any number.
        top: the new name of that.
        unpacks: ``tar`` in a container unpacks it: directories are open while they are filled, and
            come again at the end with the mode and time that they shall keep; long names are
            written as BusyBox understands them. Else links that point outside are kept.
    """

    def __init__(
        self, rules: Rules, watch: Watch, *, name: bytes | None, top: bytes, unpacks: bool
    ) -> None:
        self.summary = Summary()
        self.judge = Judge(rules, single=name is not None, name=name)
        self._needs_any = name is not None
        self._watch = watch
        self._top = () if top == b"." else (top,)
        self._unpacks = unpacks
        self._now_ns = time.time_ns() // NS_PER_S * NS_PER_S
        self._directories: dict[bytes, Entry] = {}
        self._last_skipped: Skipped | None = None

    def clean(self, pieces: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        """Yield the new archive; each piece is used before the next is asked for."""
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
        yield from self.directories()

    def directories(self) -> Iterator[bytes]:
        """Yield the directories, deepest first, as they shall be in the end; the archive ends."""
        for entry in reversed(self._directories.values()):
            yield encode_entry(entry, busybox=True)
        yield END_OF_ARCHIVE

    def _judged(self, entry: Entry) -> Entry | None:
        """Return the entry as it goes on; None if it is left out."""
        verdict = self.judge.judge(entry)
        if self.judge.replaced is not None:
            raise ambiguous(entry.name)
        name = self._renamed(entry.name)
        if isinstance(verdict, Skipped):
            if self._unpacks or verdict.rule != "outward-link":
                self._last_skipped = verdict
                self._watch.on_skip(verdict)
                return None
            self.summary.links += 1
            return entry._replace(name=name)
        self.summary.count(verdict)
        kind = verdict.kind
        link = self._renamed(entry.link) if kind is EntryType.HARDLINK else verdict.target
        mtime_ns = self._now_ns if verdict.mtime_ns is None else verdict.mtime_ns
        entry = Entry(
            name, kind, verdict.size_bytes, verdict.mode, mtime_ns, *verdict.owner or (0, 0), link
        )
        if kind is not EntryType.DIRECTORY or not self._unpacks:
            return entry
        if name == b".":
            return None  # it is there already, and stays as it is
        self._directories[name] = entry
        return entry._replace(mode=entry.mode | stat.S_IRWXU)

    def _renamed(self, name: bytes) -> bytes:
        path = take_apart(name, what=name)
        below = path if self.judge.top == b"." else path[1:]
        return b"/".join((*self._top, *below)) or b"."
