"""The archive that a copy moves, from any source, in pieces, and its metadata."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Protocol

from pycrictl.base.errors import CopyError
from pycrictl.copy.archive.decompress import decompressed
from pycrictl.copy.archive.pack import Census, Measured, measure, pack
from pycrictl.copy.archive.spool import Spool
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.rules.spec import SourceKind, has_wildcards, take_apart
from pycrictl.copy.tree.content import CHUNK_BYTES
from pycrictl.copy.tree.places import Source
from pycrictl.copy.tree.rootfs import to_error
from pycrictl.copy.tree.walk import OnSkip, Watch


@dataclass(eq=False)
class Outgoing:
    """An archive of a path in a container.

    Attributes:
        pieces: yields it, each piece valid until the next is requested, and reports them to
            ``watch.on_bytes``. Errors are raised at the latest at the end of iteration. After
            ``BeginAnew`` it can be called again.
        name: the name of its single file or directory; ``.`` if only the contents are copied;
            None: any that matches ``pattern``.
        check: called after the last piece, or the copy of ``tree``; raises if it was cut off.
        tree: the source of the archive, if it is accessible: copying that directly is faster.
        kind, pattern: as in ``Incoming``.
    """

    pieces: Callable[[], Generator[memoryview, None, None]]
    name: bytes | None
    check: Callable[[], object] = lambda: None
    tree: Source | None = None
    kind: SourceKind | None = SourceKind.DIRECTORY
    pattern: bytes | None = None


def from_server(path: bytes, pieces: Callable[[], Generator[memoryview, None, None]]) -> Outgoing:
    """Return the archive that a server makes of a path, which expands wildcards in it."""
    text = take_apart(path)
    if has_wildcards(path):
        return Outgoing(pieces, None, kind=None, pattern=text.name)
    return Outgoing(pieces, b"." if text.wants_contents else text.name)


class BeginAnew(CopyError):
    """The pieces yielded so far are void; the message says why."""


class Incoming(Protocol):
    """An archive to write into a container.

    Attributes:
        kind: the kind of its contents; None: one file or directory or, if the destination is a
            directory, any number of entries.
        name: the name of its single file or directory; None: any name.
        tree: as in ``Outgoing``.
        pattern: with wildcards, that the names in it must match; None for none.
    """

    kind: SourceKind | None
    name: bytes | None
    tree: Source | None
    pattern: bytes | None

    def pieces(self, offset: int = 0) -> Generator[memoryview, None, None]:
        """Yield it from an offset, each piece valid until the next is requested.

        Unless ``measured`` was called before, this works only once.
        """

    def measured(self, rules: Rules, watch: Watch) -> Measured:
        """Return its size, checksum and summary; the rules are enforced."""


class TreeArchive:
    """An ``Incoming`` made from file trees on this machine."""

    pattern: bytes | None = None

    def __init__(self, source: Source, on_skip: OnSkip) -> None:
        self.tree: Source | None = source
        self.kind: SourceKind | None = source.kind
        self.name: bytes | None = None if source.paths else source.top
        self._source = source
        self._on_skip = on_skip

    def pieces(self, offset: int = 0) -> Generator[memoryview, None, None]:
        return pack(self._source, on_skip=self._on_skip, offset=offset)

    def measured(self, rules: Rules, watch: Watch) -> Measured:
        self._on_skip = lambda _: None  # skipped entries are reported once
        return measure(self._source, on_skip=watch.on_skip, rules=rules)


class StreamArchive:
    """An ``Incoming`` read from a descriptor, decompressed; spooled if it has to be measured."""

    tree: Source | None = None
    name: bytes | None = None
    pattern: bytes | None = None

    def __init__(self, stream: int, kind: SourceKind | None = SourceKind.ARCHIVE) -> None:
        self.kind = kind
        self._stream = stream
        self._spool: Spool | None = None

    def close(self) -> None:
        if self._spool is not None:
            self._spool.close()

    def pieces(self, offset: int = 0) -> Generator[memoryview, None, None]:
        return decompressed(self._read()) if self._spool is None else self._spool.pieces(offset)

    def measured(self, rules: Rules, watch: Watch) -> Measured:
        census = Census(rules)
        spool = self._spool = Spool()
        spool.fill(census.through(decompressed(self._read())))
        return Measured(spool.size_bytes, spool.crc32, census.summary)

    def _read(self) -> Generator[memoryview, None, None]:
        buffer = memoryview(bytearray(CHUNK_BYTES))
        while True:
            try:
                count = os.readv(self._stream, [buffer])
            except BlockingIOError:  # set non-blocking by a process that shares it
                select.select((self._stream,), (), ())
                continue
            except OSError as exc:
                raise to_error(exc, "read", b"-") from exc
            if not count:
                return
            yield buffer[:count]
