"""Header blocks of SPDY/3.1: headers, compressed in a chain. Pure.

A block is a count, then name and value of each header with their lengths (32 bits, big-endian).
All blocks of one direction of a connection go through one zlib stream, which both sides begin
with the same dictionary and which is flushed after each block. So the blocks are a chain: one that
cannot be read makes all later ones unreadable.
"""

from __future__ import annotations

import re
import struct
import zlib
from typing import Final

from pycrictl.errors import RemoteProtocolError

MAX_BLOCK_BYTES: Final = 65536
"""Longest block that is accepted, decompressed."""

MAX_FIELDS: Final = 128

_LONG: Final = struct.Struct(">I")

# Draft 3, 2.6.10: names are in lower case.
_NAME: Final = re.compile(r"[\x21-\x40\x5b-\x7e]+")

HeaderFields = tuple[tuple[str, str], ...]
"""Names in lower case with their values, decoded as ISO 8859-1; a name may occur several times."""


def _dictionary() -> bytes:
    """Put together the dictionary of draft 3, 2.6.10.1: words with their lengths, then text."""
    words = (
        "options head post put delete trace accept accept-charset accept-encoding accept-language"
        " accept-ranges age allow authorization cache-control connection content-base"
        " content-encoding content-language content-length content-location content-md5"
        " content-range content-type date etag expect expires from host if-match"
        " if-modified-since if-none-match if-range if-unmodified-since last-modified location"
        " max-forwards pragma proxy-authenticate proxy-authorization range referer retry-after"
        " server te trailer transfer-encoding upgrade user-agent vary via warning"
        " www-authenticate method get status 200_OK version HTTP/1.1 url public set-cookie"
        " keep-alive origin"
    )
    text = (
        "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
        "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request"
        "401 Unauthorized403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented"
        "503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 "
        "Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,"
        "application/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age="
        "gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
    )
    entries = (word.replace("_", " ").encode() for word in words.split(" "))
    return b"".join(_LONG.pack(len(entry)) + entry for entry in entries) + text.encode()


DICTIONARY: Final = _dictionary()


class HeaderCompressor:
    """Writes the blocks of one direction, in the order in which they are sent."""

    def __init__(self) -> None:
        self._compressor = zlib.compressobj(zdict=DICTIONARY)

    def compress(self, headers: HeaderFields) -> bytes:
        """Write one block, with each name once (draft 3, 2.6.10)."""
        block = bytearray(_LONG.pack(len(headers)))
        for field in headers:
            for text in field:
                encoded = text.encode("iso-8859-1")
                block += _LONG.pack(len(encoded)) + encoded
        return self._compressor.compress(block) + self._compressor.flush(zlib.Z_SYNC_FLUSH)


class HeaderDecompressor:
    """Reads the blocks of one direction, in the order in which they came."""

    def __init__(self) -> None:
        self._decompressor = zlib.decompressobj(zdict=DICTIONARY)

    def decompress(self, compressed: bytes) -> HeaderFields:
        """Read one block; after a RemoteProtocolError no later block can be read either."""
        try:
            # The limit is one of the work as well: what is beyond it is not decompressed.
            block = self._decompressor.decompress(compressed, MAX_BLOCK_BYTES + 1)
        except zlib.error:
            raise RemoteProtocolError("a SPDY header block cannot be decompressed") from None
        if len(block) > MAX_BLOCK_BYTES:
            raise RemoteProtocolError("too long a SPDY header block")
        count, pos = _length(block, 0)
        if count > MAX_FIELDS:
            raise RemoteProtocolError("too many headers in a SPDY frame")
        texts: list[str] = []
        for _ in range(2 * count):
            size, pos = _length(block, pos)
            texts.append(block[pos : pos + size].decode("iso-8859-1"))
            pos += size
        if pos != len(block):
            raise RemoteProtocolError("a SPDY header block has a wrong length")
        names, values = texts[::2], texts[1::2]
        if len({*names}) != count or not all(map(_NAME.fullmatch, names)):
            raise RemoteProtocolError("invalid header in a SPDY frame")
        pairs = zip(names, values, strict=True)
        return tuple((name, value) for name, several in pairs for value in several.split("\0"))


def _length(block: bytes, pos: int) -> tuple[int, int]:
    """Read a number; return it and where it ends."""
    end = pos + _LONG.size
    if end > len(block):
        raise RemoteProtocolError("a SPDY header block is cut off")
    return int.from_bytes(block[pos:end], "big"), end
