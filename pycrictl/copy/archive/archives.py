"""The archive that a copy moves, from any source, in pieces, and its metadata."""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from importlib import import_module
from io import BufferedReader, RawIOBase
from itertools import chain
from typing import IO, TYPE_CHECKING, Final

from pycrictl.base.errors import CopyError, NoSpace, PycrictlError, StreamError
from pycrictl.base.units import quote
from pycrictl.copy.archive.pack import Census, Measured, crc32, file_pieces, measure, pack
from pycrictl.copy.rules.policy import Rules
from pycrictl.copy.rules.spec import SourceKind, has_wildcards, take_apart
from pycrictl.copy.tree.content import CHUNK_BYTES, DEFAULT_FOLDER, SparseWriter
from pycrictl.copy.tree.places import Source
from pycrictl.copy.tree.rootfs import to_error
from pycrictl.copy.tree.walk import OnSkip, Watch
from pycrictl.streams.wire.tar.header import BLOCK_BYTES
from pycrictl.streams.wire.tar.reader import other_format

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class Archive:
    """An archive on its way into or out of a container.

    Attributes:
        kind: the kind of its contents; None: one file or directory or, if the destination is a
            directory, any number of entries.
        name: the name of its single file or directory, ``.`` if only the contents are copied;
            None: any name that matches ``pattern``.
        pattern: a wildcard pattern that the names in it must match; None for no pattern.
        tree: its source tree, if that is accessible: copying it directly is faster.
    """

    kind: SourceKind | None = None
    name: bytes | None = None
    pattern: bytes | None = None
    tree: Source | None = None

    def pieces(self, offset: int = 0) -> Generator[memoryview, None, None]:
        """Yield the archive from an offset; each piece is valid until the next is requested.

        Unless ``measured`` was called before, this works only once.
        """
        raise NotImplementedError

    def measured(self, rules: Rules, watch: Watch) -> Measured:
        """Return its size, checksum and summary before it is sent; the rules are enforced."""
        raise NotImplementedError

    def check(self) -> object:
        """Raise an error if it was cut off; called after the last piece or the whole tree."""


@dataclass(eq=False)
class Outgoing(Archive):
    """An archive of a path in a container; its pieces are reported to ``watch.on_bytes``."""

    made: Callable[[], Generator[memoryview, None, None]]
    name: bytes | None = None
    checked: Callable[[], object] = lambda: None
    tree: Source | None = None
    kind: SourceKind | None = SourceKind.DIRECTORY
    pattern: bytes | None = None

    def pieces(self, offset: int = 0) -> Generator[memoryview, None, None]:
        return self.made()

    def check(self) -> object:
        return self.checked()


def from_server(path: bytes, pieces: Callable[[], Generator[memoryview, None, None]]) -> Outgoing:
    """Return the archive that a server makes of a path; the server expands wildcards."""
    text = take_apart(path)
    if has_wildcards(path):
        return Outgoing(pieces, kind=None, pattern=text.name)
    return Outgoing(pieces, b"." if text.wants_contents else text.name)


class TreeArchive(Archive):
    """An archive made from file trees on this machine."""

    def __init__(self, source: Source, on_skip: OnSkip) -> None:
        self.tree = source
        self.kind = source.kind
        self.name = None if source.paths else source.top
        self._source = source
        self._on_skip = on_skip

    def pieces(self, offset: int = 0) -> Generator[memoryview, None, None]:
        return pack(self._source, on_skip=self._on_skip, offset=offset)

    def measured(self, rules: Rules, watch: Watch) -> Measured:
        self._on_skip = lambda _: None  # skipped entries are reported once
        return measure(self._source, on_skip=watch.on_skip, rules=rules)


class StreamArchive(Archive):
    """An archive read from a descriptor, decompressed; spooled if it has to be measured."""

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


_MODULES: Final = {"gzip": "gzip", "bzip2": "bz2", "xz": "lzma", "zstd": "compression.zstd"}
"""For each format its module in the standard library, which some Pythons lack."""


class _File(RawIOBase):
    """Presents pieces as a file."""

    def __init__(self, pieces: Iterator[memoryview]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = piece
        into = memoryview(buffer)[: len(self._rest)]
        into[:], self._rest = self._rest[: len(into)], self._rest[len(into) :]
        return len(into)


def decompressed(
    pieces: Generator[memoryview, None, None],
) -> Generator[memoryview, None, None]:
    """Yield a possibly compressed archive as plain tar; a piece is valid until the next one.

    Only what the user pipes in is decompressed, in this program and in bounded memory. An archive
    from another machine is plain tar: that machine would otherwise decide which decompressor is
    run, and how much comes out.

    Raises:
        CopyError: it has a format that cannot be read here.
        StreamError: it is damaged or ends too early.
    """
    with closing(pieces):
        start = b""
        for piece in pieces:
            start += piece
            if len(start) >= BLOCK_BYTES:
                break
        whole = chain([memoryview(start)] if start else [], pieces)
        if name := other_format(start[:BLOCK_BYTES]):
            yield from _content(name, _opened(name, whole))
        else:
            yield from whole


def _opened(name: str, pieces: Iterator[memoryview]) -> IO[bytes]:
    if name in _MODULES:
        try:
            library = import_module(_MODULES[name])
        except ImportError:
            pass
        else:
            opened: IO[bytes] = library.open(BufferedReader(_File(pieces)))
            return opened
    others = [known for known in ("gzip", "bzip2", "xz") if known != name]
    raise CopyError(
        f"the archive has the format {name}, which is not supported here",
        hint=f"pipe a tar archive, plain or compressed with {' or '.join(others)}",
    )


def _content(name: str, file: IO[bytes]) -> Generator[memoryview, None, None]:
    try:
        while piece := file.read(CHUNK_BYTES):
            yield memoryview(piece)
    except PycrictlError:
        raise
    except EOFError:
        raise StreamError(f"the archive ends too early ({name})") from None
    except Exception as exc:  # each module has its own
        raise StreamError(f"the archive is damaged ({name}): {exc}") from exc


_WINDOW_BYTES: Final = 8 * 1024 * 1024
_KEPT_WINDOWS: Final = 4
_NO_UNNAMED: Final = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL})
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Spool:
    """An archive in an unnamed temporary file, until it is closed.

    The file is on disk, as it may be larger than memory. Since it has no name, nothing of it
    remains however this program ends.

    Raises:
        NoSpace: there is not enough space; ``write`` raises it, too.
        CopyError: no file can be created there.
    """

    def __init__(self, folder: str | None = None) -> None:
        self.size_bytes = self.crc32 = 0
        self._folder = folder or os.environ.get("TMPDIR") or DEFAULT_FOLDER
        try:
            self.fd = open_unnamed(self._folder)
        except OSError as exc:
            raise self._failure(exc.errno) from exc
        self._writer = SparseWriter(self.fd)

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, data: bytes | memoryview) -> None:
        view, disk = memoryview(data), os.fstatvfs(self.fd)
        if disk.f_bavail * disk.f_frsize < len(view):  # what is reserved for root is not used
            raise self._failure(errno.ENOSPC)
        try:
            self._writer.write(view)
        except OSError as exc:
            raise self._failure(exc.errno) from exc
        self.crc32 = crc32(view, self.crc32)
        self.size_bytes += len(view)

    def fill(self, pieces: Iterable[bytes | memoryview]) -> None:
        for piece in pieces:
            self.write(piece)
        self.finish()

    def finish(self) -> None:
        self._writer.finish()

    def pieces(self, offset: int = 0) -> Generator[memoryview, None, None]:
        """Yield its content from an offset, each piece valid until the next is requested."""
        return file_pieces(self.fd, offset, self.size_bytes)

    def read(self, offset: int, buffer: memoryview) -> memoryview:
        """Read its content from an offset into a buffer; more may still be written."""
        piece = buffer[: self.size_bytes - offset]
        count = os.preadv(self.fd, [piece], offset)
        forget_behind(self.fd, offset, offset + count)  # a resuming client reads from disk again
        piece[count:] = bytes(len(piece) - count)  # a hole at the end is not yet in the file
        return piece

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _failure(self, number: int | None) -> CopyError:
        if number in _FULL:
            return NoSpace(
                f"there is not enough space for the copy in {quote(self._folder)}",
                hint="copy less, or try again later",
            )
        reason = os.strerror(number or 0).lower()
        return CopyError(f"cannot spool in {quote(self._folder)}: {reason}")


def open_unnamed(folder: str) -> int:
    """Create a file without a name: nothing of it remains however this program ends."""
    try:
        return os.open(folder, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        if exc.errno not in _NO_UNNAMED:
            raise
    name = f"{folder}/.pycrictl-{os.urandom(8).hex()}"
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.unlink(name)  # noqa: PTH108 (pathlib would be imported for this alone)
    return fd


def forget_behind(fd: int, begin: int, end: int) -> None:
    """Write the file's cached pages before ``end`` to disk, and drop them, in steps of 8 MiB.

    Call it after each piece (``begin`` to ``end``) that was written or read. The next pieces then
    reuse that memory: fresh memory costs more than the copying, above all in a virtual machine.
    Also, the memory counted against a container's limit does not grow.
    """
    edge = end - end % _WINDOW_BYTES
    if edge > begin:
        kept_bytes = _KEPT_WINDOWS * _WINDOW_BYTES
        with suppress(OSError):  # not a file on disk
            os.posix_fadvise(fd, max(edge - kept_bytes, 0), kept_bytes, os.POSIX_FADV_DONTNEED)
