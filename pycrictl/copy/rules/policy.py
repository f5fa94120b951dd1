"""Which entries of an archive or a tree may be created, and as what. Pure.

Nothing from outside is trusted: names are split into components here, once, and the raw name is not
used afterwards. An entry that only a broken or hostile writer produces makes the whole copy fail.
One that is legitimate but not copied (a device, a link that points out of the tree) is skipped, and
the copy continues.
"""

from __future__ import annotations

import os
from typing import Final, NamedTuple

from pycrictl.base.errors import EntryRefused
from pycrictl.base.units import plural, quote
from pycrictl.copy.rules.spec import is_match
from pycrictl.streams.wire.tar.header import Entry, EntryType

MAX_PATH_BYTES: Final = 4095
MAX_NAME_BYTES: Final = 255
MAX_DEPTH: Final = 512
MAX_ENTRIES: Final = 1_000_000
MAX_ID: Final = 2**32 - 2
"""The highest user or group ID: the next one means "no change" to Linux."""

MAX_TIME_NS: Final = 2**40 * 10**9
"""Times this far from 1970, in either direction, are not kept: some 34,800 years."""

PERMISSIONS: Final = 0o777
ALL_MODE_BITS: Final = 0o7777

Path = tuple[bytes, ...]
"""Components of a path below the top of the copy; the top itself is the empty path."""


class Rules(NamedTuple):
    """What the user allows.

    Attributes:
        archive: keep modes (set-id and sticky bits too), times and owners.
        max_size_bytes: the largest total size of all files.
        max_entries: the largest number of entries, each of which takes memory; 0 for no limit.
        umask: permission bits to clear unless ``archive``.
        follow: if the source is a symbolic link, copy its target.
    """

    archive: bool = False
    max_size_bytes: int | None = None
    max_entries: int = MAX_ENTRIES
    umask: int = 0
    follow: bool = False


class AcceptedEntry(NamedTuple):
    """An entry to create.

    Attributes:
        mtime_ns: the time to set; None: the time of the copy.
        owner: user and group ID in the source; None: the default of the destination.
        target: the target of a symbolic link, as text that is never followed.
        original: for a hard link, the file created earlier that it links to.
    """

    path: Path
    kind: EntryType
    size_bytes: int = 0
    mode: int = 0o755
    mtime_ns: int | None = None
    owner: tuple[int, int] | None = None
    target: bytes = b""
    original: Path = ()


class Skipped(NamedTuple):
    """A skipped entry: its name as received, the stable name of the rule, and the reason."""

    path: bytes
    rule: str
    reason: str


class EntryPolicy:
    """Decides about the entries of one copy, one after another.

    Args:
        single: require all entries to be below one top: that of the first entry, or ``name``.
            Otherwise the top is the archive itself, with any number of names in it.
        name: the required name of the top; None accepts any name.
        pattern: a wildcard pattern that the name of every top must match; None for no pattern.

    Attributes:
        top: the name of the top, ``.`` if the archive has none. Known after the first entry.
    """

    def __init__(
        self,
        rules: Rules,
        *,
        single: bool = True,
        name: bytes | None = None,
        pattern: bytes | None = None,
    ) -> None:
        self._rules = rules
        self._pattern = pattern
        self._single = single
        self.top: bytes | None = name if single else b"."
        self.entries = 0
        self.size_bytes = 0
        # Keyed by the path as one string, which takes less memory than a tuple.
        self._made: dict[bytes, EntryType | None] = {}  # None: skipped
        self._symlinks: dict[bytes, bytes] = {}

    def decide(self, entry: Entry) -> AcceptedEntry | Skipped:
        """Decide about one entry."""
        self.entries += 1
        if 0 < self._rules.max_entries < self.entries:
            limit = plural(self._rules.max_entries, "entry", "entries")
            raise _refusal(entry.name, "too-many", f"more than {limit} would be copied")
        path = self._below_top(entry.name, take_apart(entry.name, entry_name=entry.name))
        verdict = self._verdict(entry, path)
        self._remember(path, entry.name, verdict)
        return verdict

    def _below_top(self, name: bytes, path: Path) -> Path:
        if self._pattern is not None and not (path and is_match(path[0], self._pattern)):
            reason = f"it does not match {quote(os.fsdecode(self._pattern))}"
            raise _refusal(name, "beside", reason)
        if not self._single:
            return path
        if self.top is None:
            self.top = path[0] if path else b"."
        if self.top == b".":
            return path
        if path[:1] != (self.top,):
            reason = f"it is not below {quote(os.fsdecode(self.top))}"
            if self._pattern is not None:
                reason = "several files match, and the destination is not a directory"
            raise _refusal(name, "beside", reason)
        return path[1:]

    def _verdict(self, entry: Entry, path: Path) -> AcceptedEntry | Skipped:
        if (
            entry.kind is not EntryType.DIRECTORY
            and not path
            and (not self._single or self.top == b".")
        ):
            raise _refusal(entry.name, "top", f"it must be a directory, not a {entry.kind.value}")
        if entry.kind in (EntryType.CHARACTER, EntryType.BLOCK, EntryType.FIFO):
            return Skipped(entry.name, "special", f"it is a {entry.kind.value}")
        mode, mtime_ns, owner = self._metadata(entry)
        if entry.kind is EntryType.DIRECTORY:
            return AcceptedEntry(path, EntryType.DIRECTORY, 0, mode, mtime_ns, owner)
        if entry.kind is EntryType.FILE:
            self._count(entry)
            return AcceptedEntry(path, EntryType.FILE, entry.size_bytes, mode, mtime_ns, owner)
        item = AcceptedEntry(path, EntryType.SYMLINK, 0, mode, mtime_ns, owner)
        if entry.kind is EntryType.SYMLINK:
            return self._symlink(item, entry.name, entry.link)
        return self._hardlink(item, entry)

    def _metadata(self, entry: Entry) -> tuple[int, int | None, tuple[int, int] | None]:
        """Return mode, time and owner, as far as they are kept."""
        if not self._rules.archive:
            return entry.mode & PERMISSIONS & ~self._rules.umask, None, None
        if not (0 <= entry.uid <= MAX_ID and 0 <= entry.gid <= MAX_ID):
            raise _refusal(entry.name, "owner", "its owner is out of range")
        mtime_ns = entry.mtime_ns if abs(entry.mtime_ns) < MAX_TIME_NS else None
        return entry.mode & ALL_MODE_BITS, mtime_ns, (entry.uid, entry.gid)

    def _count(self, entry: Entry) -> None:
        if entry.name.endswith(b"/"):
            raise _refusal(entry.name, "trailing-slash", "it is a file whose name ends in /")
        if entry.size_bytes < 0:
            raise _refusal(entry.name, "size", "its size is negative")
        self.size_bytes += entry.size_bytes
        limit = self._rules.max_size_bytes
        if limit is not None and self.size_bytes > limit:
            raise _refusal(
                entry.name, "too-large", f"more than {plural(limit, 'byte')} would be copied"
            )

    def _symlink(self, item: AcceptedEntry, name: bytes, target: bytes) -> AcceptedEntry | Skipped:
        if not target or b"\0" in target or len(target) > MAX_PATH_BYTES:
            raise _refusal(name, "link-target", "it is a link with an impossible target")
        if not stays_inside(target, depth=max(len(item.path) - 1, 0)):
            return Skipped(
                name, "outward-link", f"it points outside the copy, to {quote(os.fsdecode(target))}"
            )
        return item._replace(target=target)

    def _hardlink(self, item: AcceptedEntry, entry: Entry) -> AcceptedEntry | Skipped:
        original = self._below_top(entry.name, take_apart(entry.link, entry_name=entry.name))
        key = b"/".join(original)
        if original == item.path:
            raise _refusal(entry.name, "hard-link", "it is a hard link to itself")
        # A hard link to a symbolic link: its target may resolve differently in this directory.
        if (target := self._symlinks.get(key)) is not None:
            return self._symlink(item, entry.name, target)
        shown = quote(os.fsdecode(entry.link))
        made = self._made.get(key, EntryType.DIRECTORY)
        if made is None:
            reason = f"it is a hard link to {shown}, which was skipped"
            return Skipped(entry.name, "hard-link-to-skipped", reason)
        if made is not EntryType.FILE:
            reason = f"it is a hard link to {shown}, which is not a file of this copy"
            raise _refusal(entry.name, "hard-link", reason)
        return item._replace(kind=EntryType.HARDLINK, original=original)

    def _remember(self, path: Path, name: bytes, verdict: AcceptedEntry | Skipped) -> None:
        for length in range(len(path) - 1, -1, -1):
            parent = b"/".join(path[:length])
            if self._made.get(parent, EntryType.DIRECTORY) is not EntryType.DIRECTORY:
                raise _refusal(
                    name, "not-a-directory", "it is below something that is not a directory"
                )
            if parent in self._made:
                break
            self._made[parent] = EntryType.DIRECTORY
        key = b"/".join(path)
        kind: EntryType | None = None
        if isinstance(verdict, AcceptedEntry):
            kind = EntryType.FILE if verdict.kind is EntryType.HARDLINK else verdict.kind
        if key in self._made and not kind is self._made[key] is EntryType.DIRECTORY:
            # In tar the last one counts, but the first may have been sent on already.
            rule = "duplicate" if self._made[key] is kind else "type-change"
            raise _refusal(name, rule, "the same name occurs twice")
        self._made[key] = kind
        if isinstance(verdict, AcceptedEntry) and kind is EntryType.SYMLINK:
            self._symlinks[key] = verdict.target


def take_apart(name: bytes, *, entry_name: bytes) -> Path:
    """Split a name from an archive into components, without ``.`` and empty ones.

    This also drops leading slashes, which ``tar -P`` writes.
    """
    if not name:
        raise _refusal(entry_name, "empty", "it has an empty name")
    if b"\0" in name:
        raise _refusal(entry_name, "nul", "its name contains a NUL")
    if len(name) > MAX_PATH_BYTES:
        raise _refusal(entry_name, "too-long", "its name is too long")
    parts = name.split(b"/")
    if b"" in parts or b"." in parts:
        parts = [part for part in parts if part not in (b"", b".")]
    if b".." in parts:
        raise _refusal(entry_name, "dot-dot", 'its name contains ".."')
    if len(parts) > MAX_DEPTH:
        raise _refusal(entry_name, "too-deep", "it is nested too deeply")
    if max(map(len, parts), default=0) > MAX_NAME_BYTES:
        raise _refusal(entry_name, "too-long", "its name is too long")
    return tuple(parts)


def stays_inside(target: bytes, *, depth: int) -> bool:
    """Return whether the target of a link ``depth`` directories below the top is itself below it.

    ``..`` is accepted only at the beginning: after a name, which may itself be a link, it could
    lead anywhere.
    """
    if target.startswith(b"/"):
        return False
    parts = [part for part in target.split(b"/") if part not in (b"", b".")]
    ups = 0
    while ups < len(parts) and parts[ups] == b"..":
        ups += 1
    return ups <= depth and b".." not in parts[ups:]


def _refusal(name: bytes, rule: str, reason: str) -> EntryRefused:
    return EntryRefused(
        f"refused to copy {quote(os.fsdecode(name))}: {reason}", path=name, rule=rule, reason=reason
    )
