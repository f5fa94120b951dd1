"""What the arguments of a copy mean, and where the copy goes. Pure.

One of the two arguments names a container: ``CONTAINER:PATH`` or ``POD/CONTAINER:PATH``. The other
is a local path or ``-``, a tar archive on standard input or output. An argument that begins with
``/`` or ``.`` is always local, so ``./a:b`` is the way to write a local name with a colon. The
slash at the beginning of a container's path may be left out, as in docker cp.

There may be several sources on one side; the last name of a source in a container may have
wildcards, which mean what they mean to a shell, unless there is a file of exactly that name.

The destination follows the rules of ``docker cp``:

===================  ======================  =============================================
source               destination             result
===================  ======================  =============================================
file                 does not exist          it is made there; its parent must exist
file                 missing, ends in ``/``  error: no such directory
file                 is a file               it is replaced
file                 is a directory          the file goes into it, under its own name
directory            does not exist          it is made there; its parent must exist
directory            is a file               error
directory            is a directory          the directory goes into it, under its own name
directory ``/.``     is a directory          the directory's contents go into it
archive              is a directory          the archive's entries go into it
several sources      is a directory          each goes into it, under its own name
===================  ======================  =============================================

A symbolic link counts as a file, but a link to a directory as destination counts as the directory.
Any other link at the destination is replaced, and never written through.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from enum import Enum
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from pycrictl.base.errors import CopyError, FailedPrecondition, UsageError
from pycrictl.base.units import quote, short_id

STREAM: Final = "-"

_WILDCARD: Final = frozenset(b"*?[")

SINGLE_VARIABLE: Final = "PYCRICTL_CP_SINGLE"
"""Set by a client on another host: the archive on standard input is of a single path."""

_WRITE_LOCAL_HINT: Final = "write ./NAME for a local file whose name has a colon"


class ContainerPath(NamedTuple):
    """``POD/CONTAINER:PATH``: ``pod`` is empty when only the container was named."""

    pod: str
    container: str
    path: bytes


class LocalPath(NamedTuple):
    """A path of this machine, or the standard streams."""

    path: bytes

    @property
    def is_stream(self) -> bool:
        """Whether it is one of the standard streams."""
        return self.path == STREAM.encode()


class CopyTo(NamedTuple):
    """From this machine into a container."""

    sources: list[LocalPath]
    destination: ContainerPath


class CopyFrom(NamedTuple):
    """Out of containers onto this machine."""

    sources: list[ContainerPath]
    destination: LocalPath


def parse(
    sources: Sequence[str],
    destination: str,
    *,
    form: str = "CONTAINER:PATH",
    adds_slash: bool = True,
) -> CopyTo | CopyFrom:
    """Parse the arguments, of which at least one is a source.

    Args:
        form: the syntax of a container path, for messages.
        adds_slash: take a relative path in a container from its root; otherwise refuse it.
    """
    parsed = [parse_side(text, adds_slash=adds_slash) for text in sources]
    target = parse_side(destination, adds_slash=adds_slash)
    local = [argument for argument in parsed if isinstance(argument, LocalPath)]
    inside = [argument for argument in parsed if isinstance(argument, ContainerPath)]
    if local and inside:
        raise UsageError("some sources are in containers and others are not")
    if len(parsed) > 1:
        if LocalPath(STREAM.encode()) in (*local, target):
            raise UsageError("an archive must be the only source, or the destination")
        check_names([argument.path for argument in parsed])
    if local and isinstance(target, ContainerPath):
        return CopyTo(local, target)
    if inside and isinstance(target, LocalPath):
        return CopyFrom(inside, target)
    if inside:
        raise UsageError(
            "both sides are in containers",
            hint="copy to a local path first, or pipe one 'cp … -' into another",
        )
    bare = [text for text in (*sources, destination) if text[:1] not in ("/", ".", "-")]
    raise UsageError(
        "neither side is in a container",
        hint=f"add the path in the container: {' or '.join(f'{text}:/PATH' for text in bare)}"
        if bare
        else f"name one as {form}",
    )


def parse_side(text: str, *, adds_slash: bool = True) -> ContainerPath | LocalPath:
    """Parse one argument; see ``parse``."""
    reference, colon, path = text.partition(":")
    if not colon or text.startswith(("/", ".")):
        if not text:
            raise UsageError("a path is empty")
        return LocalPath(os.fsencode(text))
    pod, _, container = reference.rpartition("/")
    if not container or (not pod and "/" in reference):
        raise UsageError(f"{quote(text)} does not name a container", hint=_WRITE_LOCAL_HINT)
    raw = os.fsencode(path)
    if adds_slash and path:
        raw = b"/" + raw.lstrip(b"/")
    check_container_path(raw, shown=text)
    return ContainerPath(pod, container, raw)


def check_container_path(path: bytes, *, shown: str = "") -> None:
    """Require an absolute path without ``..`` or NUL, as both sides of the protocol do."""
    named = quote(shown or os.fsdecode(path))
    if not path.startswith(b"/"):
        raise UsageError(
            f"the path in {named} is not absolute",
            hint=f"paths in containers begin with a slash; {_WRITE_LOCAL_HINT}",
        )
    if b".." in path.split(b"/"):
        raise UsageError(f'the path in {named} contains ".."')
    if b"\0" in path:
        raise UsageError(f"the path in {named} contains a NUL")


def check_names(paths: Iterable[bytes]) -> None:
    """Require that several sources differ in their last name, under which they are copied."""
    known: dict[bytes, bytes] = {}
    for path in paths:
        text = take_apart(path)
        if text.wants_contents:
            continue
        if text.name in known:
            first, second = (quote(os.fsdecode(source)) for source in (known[text.name], path))
            raise UsageError(f"{first} and {second} would have the same name in the copy")
        known[text.name] = path


def has_wildcards(path: bytes) -> bool:
    """Return whether the last name of a path has wildcards."""
    return not _WILDCARD.isdisjoint(take_apart(path).name) and not take_apart(path).wants_contents


def is_match(name: bytes, pattern: bytes) -> bool:
    """Return whether a name matches a shell's pattern, or is the same text."""
    is_hidden = name.startswith(b".") and not pattern.startswith(b".")
    return name == pattern or (fnmatchcase(name, pattern) and not is_hidden)


class SourceKind(Enum):
    """The kind of a source."""

    FILE = "file"
    DIRECTORY = "directory"
    ARCHIVE = "archive"


class Existing(Enum):
    """The kind of an existing or new entry. A link counts as a file."""

    NOTHING = "nothing"
    FILE = "file"
    DIRECTORY = "directory"
    SPECIAL = "device, pipe or socket"


class PathText(NamedTuple):
    """The parts of a path as it was typed.

    Attributes:
        path: without final slashes and ``/.``.
        name: the last component; empty for ``/``, ``.`` and ``..``.
        wants_directory: it ended in a slash, or in a name that only a directory can have.
        wants_contents: it ended in ``.`` or ``..`` or is ``/``: as a source, the contents of the
            directory are copied, not the directory itself.
    """

    path: bytes
    name: bytes
    wants_directory: bool
    wants_contents: bool


def take_apart(path: bytes) -> PathText:
    """Split a path into its parts, without accessing any file system."""
    stripped = path.rstrip(b"/")
    wants_directory = stripped != path
    last = stripped.rpartition(b"/")[2]
    # These give the copy no name.
    wants_contents = last in (b".", b"..", b"")
    while last == b"." and b"/" in stripped:
        stripped = stripped.rpartition(b"/")[0].rstrip(b"/")
        last = stripped.rpartition(b"/")[2]
    if not stripped:
        stripped = b"/"
    name = b"" if last in (b".", b"..", b"") else last
    return PathText(stripped, name, wants_directory or wants_contents, wants_contents)


def address(path: bytes, kind: SourceKind | None) -> bytes:
    """Return a destination as ``CopyToContainer`` expects it for this kind of source.

    For an archive, the result ends in ``/.``, added if missing; without that ending, the server
    accepts only one entry. For a file or directory, ``/.`` at the end becomes ``/``. If ``kind``
    is None, the destination is unchanged.
    """
    asks_so = path.rstrip(b"/").endswith(b"/.")
    if kind is SourceKind.ARCHIVE:
        return path if asks_so else path.rstrip(b"/") + b"/."
    if kind is not None and asks_so:
        return take_apart(path).path.rstrip(b"/") + b"/"
    return path


def place(
    source: SourceKind, name: bytes, *, destination: PathText, existing: Existing
) -> bytes | None:
    """Return the name of the copy.

    It is created in the destination if that is a directory, else in its parent. None: the contents
    of the source go into the directory, each under its own name.

    Args:
        name: the name of the source in a directory; ``.`` if only its contents are copied.
        destination: as typed.
        existing: the kind of the destination, after following a link to a directory.
    """
    shown = quote(os.fsdecode(destination.path))
    if existing is Existing.SPECIAL:
        raise _special(shown)
    if existing is Existing.DIRECTORY:
        is_spread = source is SourceKind.ARCHIVE or name == b"."
        return None if is_spread else name
    if existing is Existing.FILE:
        if destination.wants_directory or source is SourceKind.ARCHIVE:
            raise CopyError(f"{shown} is not a directory")
        if source is SourceKind.DIRECTORY:
            raise CopyError(f"cannot copy a directory over the file {shown}")
        return destination.name
    is_missing = not destination.name or source is SourceKind.ARCHIVE
    if is_missing or (source is SourceKind.FILE and destination.wants_directory):
        raise CopyError(f"there is no directory {shown}")
    return destination.name


class Meeting(Enum):
    """What happens to an entry at its destination."""

    MAKE = "nothing is there"
    REPLACE = "a file takes the place of another"
    MERGE = "both are directories"


def meet(new: Existing, old: Existing, *, shown: str) -> Meeting:
    """Decide what happens when ``new`` is copied to a path where ``old`` exists."""
    if old is Existing.NOTHING:
        return Meeting.MAKE
    if old is Existing.SPECIAL:
        raise _special(shown)
    if new is not old:
        raise CopyError(
            f"cannot copy a {new.value} over the {old.value} {shown}",
            hint="remove it first, or copy to another place",
        )
    return Meeting.MERGE if new is Existing.DIRECTORY else Meeting.REPLACE


def _special(shown: str) -> CopyError:
    return CopyError(
        f"{shown} is a device, pipe or socket, which is never replaced",
        hint="remove it first, or copy to another place",
    )


def not_running(container: str, *, state: str = "is not running") -> FailedPrecondition:
    """Return the error for a container, given by name or ID, that is not running."""
    return FailedPrecondition(
        f"container {quote(short_id(container))} {state}",
        hint="only running containers can be copied from or to",
    )
