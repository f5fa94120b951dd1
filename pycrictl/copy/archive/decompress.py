"""Decompression of an archive from standard input, in this program and in bounded memory.

Only what the user pipes in is decompressed. An archive from another machine is plain tar: it would
otherwise decide which decompressor reads it, and how much comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from importlib import import_module
from itertools import chain
from typing import Any, Final, Protocol

from pycrictl.copy.tree.content import CHUNK_BYTES
from pycrictl.errors import CopyError, StreamError
from pycrictl.wire.tar.header import BLOCK_BYTES
from pycrictl.wire.tar.reader import other_format

_MAX_DICTIONARY_BYTES: Final = 256 * 1024 * 1024
"""The memory that xz may take. Its highest level takes 65 MiB."""

_GZIP_WINDOW: Final = 31
"""The largest window, with a gzip header (zlib manual, inflateInit2)."""


class _Decompressor(Protocol):
    """A decompressor of one member, as the standard library's classes are."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes | memoryview, max_length: int) -> bytes: ...


class _Gzip:
    """The interface of the other decompressors for zlib's."""

    def __init__(self, zlib: Any) -> None:
        self._inflating = zlib.decompressobj(_GZIP_WINDOW)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return bool(self._inflating.eof)

    @property
    def unused_data(self) -> bytes:
        return bytes(self._inflating.unused_data)

    def decompress(self, data: bytes | memoryview, max_length: int) -> bytes:
        found: bytes = self._inflating.decompress(
            self._inflating.unconsumed_tail or data, max_length
        )
        self.needs_input = not self._inflating.unconsumed_tail and len(found) < max_length
        return found


_FORMATS: Final[dict[str, tuple[str, Callable[[Any], _Decompressor]]]] = {
    "gzip": ("zlib", _Gzip),
    "bzip2": ("bz2", lambda bz2: bz2.BZ2Decompressor()),
    "xz": ("lzma", lambda lzma: lzma.LZMADecompressor(memlimit=_MAX_DICTIONARY_BYTES)),
    "zstd": ("compression.zstd", lambda zstd: zstd.ZstdDecompressor()),
}
"""For each format its module in the standard library, which some Pythons lack, and its class."""


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
            make = _decompressor(name)
            yield from _members(name, make, whole)
        else:
            yield from whole


def _decompressor(name: str) -> Callable[[], _Decompressor]:
    if name in _FORMATS:
        module, make = _FORMATS[name]
        try:
            library = import_module(module)
        except ImportError:
            pass
        else:
            return lambda: make(library)
    others = [known for known in ("gzip", "bzip2", "xz") if known != name]
    raise CopyError(
        f"the archive has the format {name}, which is not read here",
        hint=f"pipe a tar archive, plain or compressed with {' or '.join(others)}",
    )


def _members(
    name: str, make: Callable[[], _Decompressor], pieces: chain[memoryview]
) -> Generator[memoryview, None, None]:
    """Yield the content of all compressed members, which follow each other without separators."""
    member: _Decompressor | None = None
    for piece in pieces:
        data: bytes | memoryview = piece
        while True:
            if member is None:
                data = bytes(data).lstrip(b"\0")  # padding, as of a tape
                if not data:
                    break
                member = make()
            try:
                found = member.decompress(data, CHUNK_BYTES)
            except Exception as exc:  # each module has its own
                raise StreamError(f"the archive is damaged ({name}): {exc}") from exc
            if found:
                yield memoryview(found)
            data = b""
            if member.eof:
                data, member = member.unused_data, None
            elif member.needs_input:
                break
    if member is not None:
        raise StreamError(f"the archive ends too early ({name})")
