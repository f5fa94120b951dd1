"""What a copy moves, wherever it comes from: an archive, in pieces, and what is known about it."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Protocol

from pycrictl.copy.archive.measure import Census, Measured, measure
from pycrictl.copy.archive.pack import pack
from pycrictl.copy.archive.spool import Spool
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.rules.spec import SourceKind
from pycrictl.copy.tree.content import CHUNK_BYTES
from pycrictl.copy.tree.places import Source
from pycrictl.copy.tree.rootfs import to_error
from pycrictl.copy.tree.walk import OnSkip, Watch
from pycrictl.errors import CopyError


@dataclass(eq=False)
class Outgoing:
    """What a method gives of a container.

    Attributes:
        pieces: yields it, each piece valid until the next is asked for, and tells
            ``watch.on_bytes`` of them. What it fails with comes at the latest instead of its end.
            After ``BeginAnew`` it can be asked for again.
        name: what its single file or directory is called; ``.`` where what is in that is copied.
        check: requires that it was not cut off: after the last piece, or the copy of the tree.
        tree: what it is made of, where that can be reached: to copy it directly takes less time.
        is_whole: nothing of it will be taken back; else it is spooled first.
    """

    pieces: Callable[[], Generator[memoryview, None, None]]
    name: bytes
    check: Callable[[], object] = lambda: None
    tree: Source | None = None
    is_whole: bool = True
    kind: SourceKind = SourceKind.DIRECTORY


class BeginAnew(CopyError):
    """What has come so far does not count; the message says why."""


class Incoming(Protocol):
    """What is to get into a container.

    Attributes:
        kind: what is in it; None: one file or directory, or, where the destination is a directory,
            any number of entries.
        name: what its single file or directory is called; None: it may have any name.
        tree: as of ``Outgoing``.
    """

    kind: SourceKind | None
    name: bytes | None
    tree: Source | None

    def pieces(self, offset: int = 0) -> Generator[memoryview, None, None]:
        """Yield it from an offset on, each piece valid until the next is asked for.

        Without ``measured``, it can be asked for once.
        """

    def measured(self, rules: Rules, watch: Watch) -> Measured:
        """Return how long it is, its checksum and what is in it; the rules are held."""


class TreeArchive:
    """An ``Incoming`` that is made of a tree of this machine."""

    def __init__(self, source: Source, on_skip: OnSkip) -> None:
        self.tree: Source | None = source
        self.kind: SourceKind | None = source.kind
        self.name: bytes | None = source.top
        self._source = source
        self._on_skip = on_skip

    def pieces(self, offset: int = 0) -> Generator[memoryview, None, None]:
        return pack(self._source, on_skip=self._on_skip, offset=offset)

    def measured(self, rules: Rules, watch: Watch) -> Measured:
        self._on_skip = lambda _: None  # what is left out is told once
        return measure(self._source, on_skip=watch.on_skip, rules=rules)


class StreamArchive:
    """An ``Incoming`` that comes from a descriptor. It is spooled where it has to be measured."""

    tree: Source | None = None
    kind: SourceKind | None = SourceKind.ARCHIVE
    name: bytes | None = None

    def __init__(self, stream: int) -> None:
        self._stream = stream
        self._spool: Spool | None = None

    def close(self) -> None:
        if self._spool is not None:
            self._spool.close()

    def pieces(self, offset: int = 0) -> Generator[memoryview, None, None]:
        return self._read() if self._spool is None else self._spool.pieces(offset)

    def measured(self, rules: Rules, watch: Watch) -> Measured:
        census = Census(rules)
        spool = self._spool = Spool()
        spool.fill(census.through(self._read()))
        return Measured(spool.size_bytes, spool.crc32, census.summary)

    def _read(self) -> Generator[memoryview, None, None]:
        buffer = memoryview(bytearray(CHUNK_BYTES))
        while True:
            try:
                count = os.readv(self._stream, [buffer])
            except BlockingIOError:  # as other processes have it that share it
                select.select((self._stream,), (), ())
                continue
            except OSError as exc:
                raise to_error(exc, "read", b"-") from exc
            if not count:
                return
            yield buffer[:count]
