"""The files of an image archive: of a tar file or stream, or the folder of an OCI layout.

Nothing is ever written under a member's name. Still, names and links that could lead out of an
archive are refused: no tool that writes image archives makes them.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, NamedTuple

from pycrictl.base.errors import ArchiveError, RemoteProtocolError, reason_of
from pycrictl.base.units import quote
from pycrictl.copy.archive.decompress import decompressed
from pycrictl.streams.wire.tar.header import Entry, EntryType
from pycrictl.streams.wire.tar.reader import (
    DataReceived,
    EntryFinished,
    EntryStarted,
    Event,
    read,
)

_PIECE_BYTES: Final = 256 * 1024
"""gRPC keeps many of them on their way."""


class Member(NamedTuple):
    """A regular file of an archive, or a link to one.

    Attributes:
        name: relative, with ``/``, without ``.`` and ``..``.
        size_bytes: of the content, 0 for a link.
        pieces: the content; it can be read until the next member is asked for.
        link: the name of the member that a symbolic link leads to; empty for a file.
    """

    name: str
    size_bytes: int
    pieces: Iterator[bytes | memoryview]
    link: str = ""


@contextmanager
def opened(path: str) -> Iterator[Iterator[Member]]:
    """Open the archive in a file or folder, or on standard input if the path is ``-``.

    Raises:
        ArchiveError: it cannot be read, or is a folder, but no image layout.
    """
    try:
        if os.path.isdir(path):
            yield _of_folder(Path(path))
            return
        with open(0 if path == "-" else path, "rb", buffering=0, closefd=path != "-") as file:
            yield of_tar(file)
    except OSError as exc:
        reason = reason_of(exc)
        raise ArchiveError(f"cannot read {title(path)}: {reason}") from None


def title(path: str) -> str:
    """Return what an archive is called in messages."""
    return "standard input" if path == "-" else quote(path, 4096)


def of_tar(file: IO[bytes]) -> Iterator[Member]:
    """Yield the members of a tar archive, which may be compressed, in its order."""
    events = read(decompressed(_read(file)))
    for event in events:
        if isinstance(event, EntryStarted):
            content = _content(events)
            yield from _members(event.entry, content)
            for _ in content:  # what was not read
                pass


def _read(file: IO[bytes]) -> Generator[memoryview, None, None]:
    while piece := file.read(_PIECE_BYTES):
        yield memoryview(piece)


def _content(events: Iterator[Event]) -> Iterator[memoryview]:
    for event in events:
        if isinstance(event, DataReceived):
            yield event.data
        elif isinstance(event, EntryFinished):
            return


def _members(entry: Entry, content: Iterator[memoryview]) -> Iterator[Member]:
    """Yield the member that an entry is; nothing for a directory."""
    name = _name(entry.name)
    if entry.kind is EntryType.FILE:
        yield Member(name, entry.size_bytes, content)
    elif entry.kind is EntryType.SYMLINK:
        # Old versions of docker save write a layer that images share once, and links to it.
        target = os.path.normpath(Path(name).parent / os.fsdecode(entry.link))
        yield Member(name, 0, content, _name(os.fsencode(target)))
    elif entry.kind is not EntryType.DIRECTORY:
        raise RemoteProtocolError(f"{quote(name)} in the archive is a {entry.kind.value}")


def _name(name: bytes) -> str:
    text = os.fsdecode(name)
    plain = text.removeprefix("./")
    if plain.startswith("/") or ".." in plain.split("/"):
        raise RemoteProtocolError(f"the name {quote(text)} leads out of the archive")
    return plain


def _of_folder(folder: Path) -> Iterator[Member]:
    """Yield the files of an image layout; its documents, which are small, come first."""
    if not (folder / "index.json").is_file():
        raise ArchiveError(f"{quote(str(folder), 4096)} is not an OCI image layout")
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    for path in sorted(files, key=lambda path: (path.name != "index.json", path.stat().st_size)):
        with path.open("rb", buffering=0) as file:
            size_bytes = path.stat().st_size
            yield Member(path.relative_to(folder).as_posix(), size_bytes, _read(file))
