"""Which entries of an archive or a tree may be made, and as what. Pure.

Nothing from outside is trusted: names are taken apart into components here, once, and the raw name
is not used afterwards. An entry that only a broken or hostile writer makes is refused, and with it
the whole copy. One that honest trees have but that is not copied (a device, a link that points out
of the tree) is skipped, and the copy goes on.
"""

from __future__ import annotations

import os
from typing import Final, NamedTuple

from pycrictl.errors import EntryRefused
from pycrictl.units import plural, quote
from pycrictl.wire.tar.header import Entry, EntryType

MAX_PATH_BYTES: Final = 4095
MAX_NAME_BYTES: Final = 255
MAX_DEPTH: Final = 512
MAX_ENTRIES: Final = 1_000_000
MAX_ID: Final = 2**32 - 2
"""The highest number of a user or group: the one above it means "no change" to Linux."""

MAX_TIME_NS: Final = 2**40 * 10**9
"""Times before 1970 and after the year 36,800 are not kept: file systems disagree on them."""

PERMISSIONS: Final = 0o777
ALL_MODE_BITS: Final = 0o7777

Path = tuple[bytes, ...]
"""Components of a path below the top of what is copied, which is the empty path itself."""


class Rules(NamedTuple):
    """What the user allows.

    Attributes:
        archive: keep modes (set-id and sticky bits too), times and owners.
        max_size_bytes: of all files together.
        max_entries: files, directories and links, each of which takes memory; 0 for any number.
        max_entries_name: of the option that sets it.
        umask: permission bits that are taken away unless ``archive``.
    """

    archive: bool = False
    no_clobber: bool = False
    max_size_bytes: int | None = None
    max_entries: int = MAX_ENTRIES
    max_entries_name: str = "--max-entries"
    umask: int = 0


class AcceptedEntry(NamedTuple):
    """Something to make.

    Attributes:
        mtime_ns: None: the time of the copy.
        owner: user and group number as the source knows them; None: the destination's own.
        target: of a symbolic link, as text that is never followed.
        original: of a hard link: the file, made before, that it is another name of.
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
    """An entry that is left out: its name as it came, the stable name of the rule, and why."""

    path: bytes
    rule: str
    reason: str


class Replaced(NamedTuple):
    """An entry whose name comes again: the last one counts, as for tar.

    ``before`` is what the earlier one has made; None: it was skipped.
    """

    path: Path
    before: EntryType | None


class Judge:
    """Judges the entries of one copy, one after another.

    Args:
        single: all entries are below one top: that of the first entry, or ``name``. Otherwise the
            top is the archive itself, with as many names in it as it likes.
        name: what the top must be called; None accepts any name.

    Attributes:
        top: the name of the top, ``.`` where the archive has none. Known after the first entry.
        replaced: what the last entry takes the place of, which is to be removed first.
    """

    def __init__(self, rules: Rules, *, single: bool = True, name: bytes | None = None) -> None:
        self._rules = rules
        self._single = single
        self.top: bytes | None = name if single else b"."
        self.entries = 0
        self.size_bytes = 0
        self.replaced: Replaced | None = None
        # By the path as one text, which takes less memory than a tuple.
        self._made: dict[bytes, EntryType | None] = {}  # None: skipped
        self._symlinks: dict[bytes, bytes] = {}
        self._filled: set[bytes] = set()  # directories with something in them

    def judge(self, entry: Entry) -> AcceptedEntry | Skipped:
        """Decide about one entry."""
        self.entries += 1
        if 0 < self._rules.max_entries < self.entries:
            name, limit = self._rules.max_entries_name, self._rules.max_entries
            raise _refusal(
                entry.name,
                "too-many",
                f"{name} allows no more than {plural(limit, 'entry', 'entries')}",
            )
        path = self._below_top(entry.name, take_apart(entry.name, what=entry.name))
        verdict = self._verdict(entry, path)
        self._remember(path, entry.name, verdict)
        return verdict

    def _below_top(self, name: bytes, path: Path) -> Path:
        if not self._single:
            return path
        if self.top is None:
            self.top = path[0] if path else b"."
        if self.top == b".":
            return path
        if path[:1] != (self.top,):
            reason = f"it is not below {quote(os.fsdecode(self.top))}"
            raise _refusal(name, "beside", reason)
        return path[1:]

    def _verdict(self, entry: Entry, path: Path) -> AcceptedEntry | Skipped:
        if (
            entry.kind is not EntryType.DIRECTORY
            and not path
            and (not self._single or self.top == b".")
        ):
            raise _refusal(entry.name, "top", f"it makes the top a {entry.kind.value}")
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
        """Mode, time and owner, as far as they are kept."""
        if not self._rules.archive:
            return entry.mode & PERMISSIONS & ~self._rules.umask, None, None
        if not (0 <= entry.uid <= MAX_ID and 0 <= entry.gid <= MAX_ID):
            raise _refusal(entry.name, "owner", "its owner is out of range")
        mtime_ns = entry.mtime_ns if 0 <= entry.mtime_ns < MAX_TIME_NS else None
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
                name, "outward-link", f"it points outside, to {quote(os.fsdecode(target))}"
            )
        return item._replace(target=target)

    def _hardlink(self, item: AcceptedEntry, entry: Entry) -> AcceptedEntry | Skipped:
        original = self._below_top(entry.name, take_apart(entry.link, what=entry.name))
        key = b"/".join(original)
        if original == item.path:
            raise _refusal(entry.name, "hard-link", "it is a hard link to itself")
        # A second name of a symbolic link: its target means something else in another place.
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
            self._filled.add(parent)
            if parent in self._made:
                break
            self._made[parent] = EntryType.DIRECTORY
        key = b"/".join(path)
        self.replaced = None
        kind: EntryType | None = None
        if isinstance(verdict, AcceptedEntry):
            kind = EntryType.FILE if verdict.kind is EntryType.HARDLINK else verdict.kind
        if key in self._made and not kind is self._made[key] is EntryType.DIRECTORY:
            if not path or key in self._filled:
                rule = "duplicate" if self._made[key] is kind else "type-change"
                raise _refusal(name, rule, "the same name came before")
            self.replaced = Replaced(path, self._made[key])
            self._symlinks.pop(key, None)
        self._made[key] = kind
        if isinstance(verdict, AcceptedEntry) and kind is EntryType.SYMLINK:
            self._symlinks[key] = verdict.target


def take_apart(name: bytes, *, what: bytes) -> Path:
    """Take a name of an archive apart into components; ``.`` and empty ones are left out.

    So are slashes that it begins with, as ``tar -P`` writes them.
    """
    if not name:
        raise _refusal(what, "empty", "it has an empty name")
    if b"\0" in name:
        raise _refusal(what, "nul", "its name contains a NUL")
    if len(name) > MAX_PATH_BYTES:
        raise _refusal(what, "too-long", "its name is too long")
    parts = name.split(b"/")
    if b"" in parts or b"." in parts:
        parts = [part for part in parts if part not in (b"", b".")]
    if b".." in parts:
        raise _refusal(what, "dot-dot", 'its name contains ".."')
    if len(parts) > MAX_DEPTH:
        raise _refusal(what, "too-deep", "it is too deep")
    if max(map(len, parts), default=0) > MAX_NAME_BYTES:
        raise _refusal(what, "too-long", "its name is too long")
    return tuple(parts)


def stays_inside(target: bytes, *, depth: int) -> bool:
    """Whether the target of a link ``depth`` directories below the top lies below that, too.

    ``..`` counts only at the beginning: after a name, which may itself be a link, it is not known
    where it goes.
    """
    if target.startswith(b"/"):
        return False
    parts = [part for part in target.split(b"/") if part not in (b"", b".")]
    ups = 0
    while ups < len(parts) and parts[ups] == b"..":
        ups += 1
    return ups <= depth and b".." not in parts[ups:]


def ambiguous(name: bytes) -> EntryRefused:
    """Return the error for a name that comes again where the first cannot be taken back."""
    return _refusal(name, "duplicate", "the same name came before")


def _refusal(name: bytes, rule: str, reason: str) -> EntryRefused:
    return EntryRefused(
        f"refused to copy {quote(os.fsdecode(name))}: {reason}",
        path=name,
        rule=rule,
        reason=reason,
    )
