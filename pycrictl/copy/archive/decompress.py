"""Decompression of an archive from standard input, in this program and in bounded memory.

Only what the user pipes in is decompressed. An archive from another machine is plain tar: it would
otherwise decide which decompressor reads it, and how much comes out.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from importlib import import_module
from io import BufferedReader, RawIOBase
from itertools import chain
from typing import IO, TYPE_CHECKING, Final

from pycrictl.base.errors import CopyError, PycrictlError, StreamError
from pycrictl.copy.tree.content import CHUNK_BYTES
from pycrictl.streams.wire.tar.header import BLOCK_BYTES
from pycrictl.streams.wire.tar.reader import other_format

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_MODULES: Final = {"gzip": "gzip", "bzip2": "bz2", "xz": "lzma", "zstd": "compression.zstd"}
"""For each format its module in the standard library, which some Pythons lack."""


class _File(RawIOBase):
    """Pieces as a file."""

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
    """Yield an archive that may be compressed as plain tar, each piece until the next is requested.

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
        f"the archive has the format {name}, which is not read here",
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
