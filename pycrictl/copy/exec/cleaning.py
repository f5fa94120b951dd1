"""An archive on its way to or from ``tar`` in a container: judged by entries, and written anew.

No archive from outside is passed on as it is: two programs may read the same bytes differently, and
what has been checked must be what is unpacked.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Iterable, Iterator
from typing import Final

from pycrictl.copy.archive.arrival import nothing_copied
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import (
    AcceptedEntry,
    Judge,
    Make,
    Path,
    Rules,
    Skipped,
    ambiguous,
    take_apart,
)
from pycrictl.copy.tree.walk import Watch
from pycrictl.wire.tar.header import NS_PER_S, Entry, EntryType
from pycrictl.wire.tar.reader import DataReceived, EntryFinished, EntryStarted, read
from pycrictl.wire.tar.writer import END_OF_ARCHIVE, encode_entry, padding_after

_KINDS: Final = {
    Make.FILE: EntryType.FILE,
    Make.DIRECTORY: EntryType.DIRECTORY,
    Make.SYMLINK: EntryType.SYMLINK,
    Make.HARDLINK: EntryType.HARDLINK,
}


class Cleaner:
    """The bytes of an archive in, the bytes of a clean one out.

    Args:
        rules: what the user allows; what is not kept is not in the new archive.
        name: what the single file or directory in it must be called; None: it may hold any number.
        top: the new name of that.
        unpacks: ``tar`` in a container unpacks it: directories are open while they are filled, and
            come again at the end with the mode and time that they shall keep; long names are
            written as BusyBox understands them. Else links that point outside are kept.

    Attributes:
        made: what the new archive makes first in its directory, or its top.
    """

    def __init__(
        self, rules: Rules, watch: Watch, *, name: bytes | None, top: bytes, unpacks: bool
    ) -> None:
        self.summary = Summary()
        self.made: dict[bytes, None] = {}
        self._is_single = name is not None
        self.judge = Judge(rules, single=self._is_single, name=name)
        self._watch = watch
        self._top = () if top == b"." else (top,)
        self._unpacks = unpacks
        self._now_ns = time.time_ns() // NS_PER_S * NS_PER_S
        self._directories: dict[Path, Entry] = {}
        self._files: dict[Path, AcceptedEntry] = {}
        self._last_skipped: Skipped | None = None

    def clean(self, pieces: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        """Yield the new archive; each piece is used before the next is asked for."""
        current: Entry | None = None
        for event in read(pieces):
            if isinstance(event, EntryStarted):
                current = self._judged(event.entry)
                if current is not None:
                    yield self._encoded(current)
            elif isinstance(event, DataReceived):
                if current is not None:
                    self._watch.on_bytes(len(event.data))
                    yield event.data
            elif isinstance(event, EntryFinished) and current is not None:
                yield padding_after(current.size_bytes)
        if self._is_single and not (self.made or self.summary.directories):
            raise nothing_copied(self._last_skipped)
        yield from self.directories()

    def directories(self) -> Iterator[bytes]:
        """Yield the directories, deepest first, as they shall be in the end; the archive ends."""
        for entry in reversed(self._directories.values()):
            yield self._encoded(entry)
        yield END_OF_ARCHIVE

    def _judged(self, entry: Entry) -> Entry | None:
        """Return the entry as it goes on; None if it is left out."""
        verdict = self.judge.judge(entry)
        if (replaced := self.judge.replaced) is not None:
            # One file for another is what every tar understands.
            if not (self._unpacks and replaced[1:] == (Make.FILE, Make.FILE)):
                raise ambiguous(entry.name)
            self.summary.count(self._files.pop(replaced.path), -1)
        if isinstance(verdict, Skipped):
            if self._unpacks or verdict.rule != "outward-link":
                self._last_skipped = verdict
                self._watch.on_skip(verdict)
                return None
            path = take_apart(entry.name, what=entry.name)
            verdict = AcceptedEntry(
                path if self.judge.top == b"." else path[1:],
                Make.SYMLINK,
                0,
                entry.mode,
                entry.mtime_ns,
                (entry.uid, entry.gid),
                entry.link,
            )
        return self._rewritten(verdict)

    def _rewritten(self, item: AcceptedEntry) -> Entry | None:
        self.summary.count(item)
        path = (*self._top, *item.path)
        if not path and self._unpacks:
            return None  # a directory that is there already, and stays as it is
        self.made.setdefault(path[0] if path else b".")
        if item.make is Make.FILE:
            self._files[item.path] = item
        uid, gid = item.owner or (0, 0)
        link = item.target
        if item.make is Make.HARDLINK:
            # Content that has two names stays, whichever is replaced.
            self._files[item.path] = self._files[item.original] = item
            link = b"/".join((*self._top, *item.original))
        entry = Entry(
            b"/".join(path) or b".",
            _KINDS[item.make],
            item.size_bytes,
            item.mode,
            self._now_ns if item.mtime_ns is None else item.mtime_ns,
            uid,
            gid,
            link,
        )
        if item.make is Make.DIRECTORY and self._unpacks:
            self._directories[path] = entry
            return entry._replace(mode=entry.mode | stat.S_IRWXU)
        return entry

    def _encoded(self, entry: Entry) -> bytes:
        return encode_entry(entry, busybox=self._unpacks)
