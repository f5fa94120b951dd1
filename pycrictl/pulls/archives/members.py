"""The files of an image archive: of a tar file, a tar stream, or the folder of an OCI layout.

A plain tar file is scanned first, without reading its content, so that its documents can be read
before its layers. A stream, or anything compressed, is read in its own order.

Nothing is ever written under a member's name. Still, names and links that could lead out of an
archive are refused: no tool that writes image archives makes them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Final, NamedTuple

from pycrictl.base.errors import ArchiveError, RemoteProtocolError, StreamError
from pycrictl.base.units import quote
from pycrictl.copy.archive.decompress import decompressed
from pycrictl.pulls.archives.documents import LISTS
from pycrictl.streams.wire.tar.header import BLOCK_BYTES, Entry, EntryType
from pycrictl.streams.wire.tar.reader import (
    DataReceived,
    EntryFinished,
    EntryStarted,
    Event,
    other_format,
    read,
)

PIECE_BYTES: Final = 1024 * 1024
Pieces = Iterator[bytes | memoryview]


class Member(NamedTuple):
    """A regular file of an archive, or a link to one.

    Attributes:
        name: relative, with ``/``, without ``.`` and ``..``.
        size_bytes: of the content, 0 for a link.
        pieces: returns the content; callable once if the archive is a stream.
        link: the name of the member that a symbolic link leads to; empty for a file.
    """

    name: str
    size_bytes: int
    pieces: Callable[[], Pieces]
    link: str = ""


@contextmanager
def opened(path: str) -> Iterator[Iterable[Member]]:
    """Open the archive in a file or folder, or on standard input if the path is ``-``.

    Its lists and small files, thus its documents, come first, except in a stream.

    Raises:
        ArchiveError: it cannot be read, or is a folder, but no image layout.
    """
    try:
        if os.path.isdir(path):
            yield _small_first(_of_folder(Path(path)))
            return
        with open(0 if path == "-" else path, "rb", buffering=0, closefd=path != "-") as file:
            descriptor = file.fileno()
            is_file = path != "-" and stat.S_ISREG(os.fstat(descriptor).st_mode)
            if is_file and not other_format(os.pread(descriptor, BLOCK_BYTES, 0)):
                yield _small_first(_scanned(descriptor))
            else:
                yield of_stream(file)
    except OSError as exc:
        reason = (exc.strerror or str(exc)).lower()
        raise ArchiveError(f"cannot read {title(path)}: {reason}") from None


def title(path: str) -> str:
    """Return what an archive is called in messages."""
    return "standard input" if path == "-" else quote(path, 4096)


def of_stream(file: IO[bytes]) -> Iterator[Member]:
    """Yield the members of an archive, which may be compressed, as they arrive."""
    events = read(decompressed(_read(file)))
    for event in events:
        if isinstance(event, EntryStarted):
            content = _content(events)
            yield from _members(event.entry, partial(iter, content))
            for _ in content:  # what was not read
                pass


def _read(file: IO[bytes]) -> Generator[memoryview, None, None]:
    while piece := file.read(PIECE_BYTES):
        yield memoryview(piece)


def _content(events: Iterator[Event]) -> Generator[memoryview, None, None]:
    for event in events:
        if isinstance(event, DataReceived):
            yield event.data
        elif isinstance(event, EntryFinished):
            return


def _small_first(members: Iterable[Member]) -> list[Member]:
    return sorted(members, key=lambda member: (member.name not in LISTS, member.size_bytes))


def _scanned(descriptor: int) -> Iterator[Member]:
    """Yield the members of a tar file by reading only its headers.

    The reader is given zeros in place of content, which it does not interpret.
    """
    zeros, position, skipped = bytes(PIECE_BYTES), 0, 0

    def blocks() -> Iterator[bytes]:
        nonlocal position, skipped
        while block := os.pread(descriptor, BLOCK_BYTES, position):
            position += len(block)
            yield block
            position += skipped
            for begin in range(0, skipped, PIECE_BYTES):
                yield zeros[: skipped - begin]
            skipped = 0

    for event in read(blocks()):
        if isinstance(event, EntryStarted):
            size_bytes = event.entry.size_bytes
            if size_bytes > os.fstat(descriptor).st_size - position:
                raise StreamError("the archive ends too early")
            yield from _members(event.entry, partial(_range, descriptor, position, size_bytes))
            skipped = size_bytes + -size_bytes % BLOCK_BYTES  # so that each read is one block


def _range(descriptor: int, start: int, size_bytes: int) -> Pieces:
    for offset in range(0, size_bytes, PIECE_BYTES):
        wanted = min(PIECE_BYTES, size_bytes - offset)
        piece = os.pread(descriptor, wanted, start + offset)
        if len(piece) < wanted:
            raise StreamError("the archive has become shorter while it was read")
        yield piece


def _members(entry: Entry, pieces: Callable[[], Pieces]) -> Iterator[Member]:
    """Yield the member that an entry is; nothing for a directory."""
    name = _name(entry.name)
    if entry.kind is EntryType.FILE:
        yield Member(name, entry.size_bytes, pieces)
    elif entry.kind is EntryType.SYMLINK:
        # Old versions of docker save write a layer that images share once, and links to it.
        target = os.path.normpath(Path(name).parent / os.fsdecode(entry.link))
        yield Member(name, 0, pieces, _name(os.fsencode(target)))
    elif entry.kind is not EntryType.DIRECTORY:
        raise RemoteProtocolError(f"{quote(name)} in the archive is a {entry.kind.value}")


def _name(name: bytes) -> str:
    text = os.fsdecode(name)
    plain = text.removeprefix("./")
    if plain.startswith("/") or ".." in plain.split("/"):
        raise RemoteProtocolError(f"the name {quote(text)} leads out of the archive")
    return plain


def _of_folder(folder: Path) -> Iterator[Member]:
    if not (folder / "index.json").is_file():
        raise ArchiveError(f"{quote(str(folder), 4096)} is not an OCI image layout")
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            size_bytes = path.stat().st_size
            name = path.relative_to(folder).as_posix()
            yield Member(name, size_bytes, partial(_of_file, path, size_bytes))


def _of_file(path: Path, size_bytes: int) -> Pieces:
    with path.open("rb") as file:
        yield from _range(file.fileno(), 0, size_bytes)
