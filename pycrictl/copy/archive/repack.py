"""An archive on its way through this program: judged entry by entry, and written anew.

No archive from outside is passed on as it is: two programs may read the same bytes differently, and
what has been checked must be what is unpacked.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pycrictl.copy.archive.arrival import nothing_copied
from pycrictl.copy.rules.policy import (
    Item,
    Judge,
    Make,
    Path,
    Rules,
    Skipped,
    ambiguous,
    take_apart,
)
from pycrictl.copy.rules.summary import Summary
from pycrictl.copy.tree.content import OnBytes
from pycrictl.copy.tree.walk import OnSkip
from pycrictl.wire.tar.header import NS_PER_S, Entry, EntryType
from pycrictl.wire.tar.reader import DataReceived, EntryFinished, EntryStarted, TarReader
from pycrictl.wire.tar.writer import encode_entry, padding_after

_KINDS: Final = {
    Make.FILE: EntryType.FILE,
    Make.DIRECTORY: EntryType.DIRECTORY,
    Make.SYMLINK: EntryType.SYMLINK,
    Make.HARDLINK: EntryType.HARDLINK,
}


@dataclass(slots=True)
class _Content:
    """The content of a file, and how many of its names are copied."""

    size_bytes: int
    names: int = 0


class Repacker:
    """The bytes of an archive in, the bytes of a clean one out.

    Args:
        rules: what the user allows; what is not kept is not in the new archive.
        on_skip: called with what is left out.
        on_bytes: called with how much more content is about to pass.
        single: the archive holds one file or directory, else any number of them.
        name: what that must be called; None accepts any name.
        prefix: what all names are put below, in the new archive.
        top: the new name of the single file or directory; None leaves it.
        is_for_unpacking: directories are open while they are filled, come again at the end with
            the mode and time that they shall keep, and long names are written as BusyBox
            understands them.
        keeps_links: keep links that point outside, as they are.

    Attributes:
        summary: what has passed.
        made: what the new archive makes, below ``prefix``.
    """

    def __init__(
        self,
        rules: Rules,
        *,
        on_skip: OnSkip,
        on_bytes: OnBytes,
        single: bool = True,
        name: bytes | None = None,
        prefix: Path = (),
        top: bytes | None = None,
        is_for_unpacking: bool = False,
        keeps_links: bool = False,
    ) -> None:
        self.summary = Summary()
        self.made: dict[Path, Make] = {}
        self._contents: dict[Path, _Content] = {}
        self._single = single
        self._reader = TarReader()
        self._judge = Judge(rules, single=single, name=name)
        self._on_skip = on_skip
        self._on_bytes = on_bytes
        self._prefix = prefix
        self._top = top
        self._is_for_unpacking = is_for_unpacking
        self._keeps_links = keeps_links
        self._now_ns = time.time_ns() // NS_PER_S * NS_PER_S
        self._directories: dict[Path, Entry] = {}
        self._current: Entry | None = None
        self._last_skipped: Skipped | None = None

    def receive_data(self, data: bytes | memoryview) -> Iterator[bytes | memoryview]:
        """Take in the next bytes; yield those of the new archive, to be used at once.

        Raises:
            StreamError: this is not an acceptable archive.
            EntryRefused: an entry breaks a rule.
        """
        self._reader.receive_data(data)
        return self._deal()

    def finish(self) -> Iterator[bytes | memoryview]:
        """Take in the end of the archive; yield the rest of the new one, without its end mark.

        Raises:
            StreamError: it is not complete.
            CopyError: the single file or directory is not in it.
        """
        self._reader.receive_eof()
        yield from self._deal()
        if self._single and not (self.made or self.summary.directories):
            raise nothing_copied(self._last_skipped)
        yield from self.directories()

    def directories(self) -> Iterator[bytes]:
        """Yield the entries of the directories, deepest first, as they shall be in the end."""
        for entry in reversed(self._directories.values()):
            yield self._encoded(entry)

    @property
    def has_absolute(self) -> bool:
        """Whether a name began with a slash, which was left out."""
        return self._judge.has_absolute

    def keep(self, path: Path) -> None:
        """Count something that has passed but leaves what is there as it is."""
        self.summary.kept += 1
        if path in self._contents:
            self._forget(path)
        else:
            self.summary.links -= 1

    def _forget(self, path: Path) -> None:
        """Take back the count of a file."""
        content = self._contents[path]
        self.summary.files -= 1
        content.names -= 1
        if not content.names:
            self.summary.size_bytes -= content.size_bytes

    def extra(self, name: Path, kind: EntryType) -> bytes:
        """Return an entry without content that was not in the archive."""
        mode = 0o700 if kind is EntryType.DIRECTORY else 0o600
        return self._encoded(Entry(b"/".join(name), kind, mode=mode, mtime_ns=self._now_ns))

    def _deal(self) -> Iterator[bytes | memoryview]:
        for event in self._reader.events_received():
            if isinstance(event, EntryStarted):
                self._current = self._judged(event.entry)
                if self._current is not None:
                    yield self._encoded(self._current)
            elif isinstance(event, DataReceived):
                if self._current is not None:
                    self._on_bytes(len(event.data))
                    yield event.data
            elif isinstance(event, EntryFinished) and self._current is not None:
                yield padding_after(self._current.size_bytes)
        if self._reader.error is not None:
            raise self._reader.error

    def _judged(self, entry: Entry) -> Entry | None:
        """Return the entry as it goes on; None if it is left out."""
        verdict = self._judge.judge(entry)
        if (replaced := self._judge.replaced) is not None:
            # One file for another is what every tar understands, and it is the only one that asks.
            if not (self._is_for_unpacking and replaced[1:] == (Make.FILE, Make.FILE)):
                raise ambiguous(entry.name)
            self._forget(self._below(replaced.path))
        if isinstance(verdict, Skipped):
            if not (self._keeps_links and verdict.rule == "outward-link"):
                self.summary.skipped += 1
                self._last_skipped = verdict
                self._on_skip(verdict)
                return None
            path = take_apart(entry.name, what=entry.name)
            verdict = Item(
                path if self._judge.top == b"." else path[1:],
                Make.SYMLINK,
                0,
                entry.mode,
                entry.mtime_ns,
                (entry.uid, entry.gid),
                entry.link,
            )
        return self._rewritten(verdict)

    def _rewritten(self, item: Item) -> Entry | None:
        path = self._below(item.path)
        self.summary.count(item)
        if not path and self._is_for_unpacking:
            return None  # a directory that is there already, and stays as it is
        self.made[path] = item.make
        if item.make is Make.HARDLINK:
            self._contents[path] = self._contents[self._below(item.original)]
        elif item.make is Make.FILE:
            self._contents[path] = _Content(item.size_bytes)
        if path in self._contents:
            self._contents[path].names += 1
        uid, gid = item.owner or (0, 0)
        entry = Entry(
            self._name(path),
            _KINDS[item.make],
            item.size_bytes,
            item.mode,
            self._now_ns if item.mtime_ns is None else item.mtime_ns,
            uid,
            gid,
            self._name(self._below(item.original)) if item.make is Make.HARDLINK else item.target,
        )
        if item.make is Make.DIRECTORY and self._is_for_unpacking:
            self._directories[path] = entry
            return entry._replace(mode=entry.mode | stat.S_IRWXU)
        return entry

    def _below(self, path: Path) -> Path:
        """Where something goes that is at ``path`` below the top."""
        top = self._judge.top if self._top is None else self._top
        return path if top in (None, b".") else (top or b"", *path)

    def _name(self, path: Path) -> bytes:
        return b"/".join((*self._prefix, *path)) or b"."

    def _encoded(self, entry: Entry) -> bytes:
        return encode_entry(entry, busybox=self._is_for_unpacking)
