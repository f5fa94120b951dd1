"""Header compression for HTTP/2 (RFC 7541). Pure.

A program between two HTTP/2 connections must decode every block that passes, needed or not, because
each may change the dynamic table that the next one refers to. It need not compress what it sends:
``encode`` touches no dynamic table, so its blocks may be mixed with those of another encoder.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import cache
from typing import Final, TypeAlias

from pycrictl.errors import RemoteProtocolError
from pycrictl.wire import limits
from pycrictl.wire.http2 import ErrorCode, Http2Error

__all__ = [
    "DEFAULT_TABLE_BYTES",
    "Decoder",
    "Header",
    "ListTooLarge",
    "encode",
    "size_of",
    "table_updates",
]

Header: TypeAlias = tuple[bytes, bytes]

DEFAULT_TABLE_BYTES: Final = 4096
_ENTRY_OVERHEAD_BYTES: Final = 32  # section 4.1
_MAX_INTEGER: Final = 1 << 28

# Appendix A.
_STATIC: Final[tuple[Header, ...]] = (
    (b":authority", b""),
    (b":method", b"GET"),
    (b":method", b"POST"),
    (b":path", b"/"),
    (b":path", b"/index.html"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    *((b":status", status) for status in b"200 204 206 304 400 404 500".split()),
    (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
    *(
        (name, b"")
        for name in b"""
        accept-language accept-ranges accept access-control-allow-origin age allow authorization
        cache-control content-disposition content-encoding content-language content-length
        content-location content-range content-type cookie date etag expect expires from host
        if-match if-modified-since if-none-match if-range if-unmodified-since last-modified link
        location max-forwards proxy-authenticate proxy-authorization range referer refresh
        retry-after server set-cookie strict-transport-security transfer-encoding user-agent vary
        via www-authenticate
        """.split()
    ),
)
_STATIC_INDEX: Final = {header: index for index, header in enumerate(_STATIC, 1)}
_STATIC_NAME: Final = {name: index for index, (name, _) in reversed([*enumerate(_STATIC, 1)])}

# Appendix B. The code is canonical, so the lengths of the codes of the 256 octets and of the end of
# the string (the last one) define it.
_CODE_BITS: Final = (
    *(13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28),
    *(28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28),
    *(6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6),
    *(5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10),
    *(13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7),
    *(7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6),
    *(15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5),
    *(6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28),
    *(20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23),
    *(24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24),
    *(22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23),
    *(21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23),
    *(26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25),
    *(19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27),
    *(20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23),
    *(26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26),
    30,
)
_END_OF_STRING: Final = 256


class ListTooLarge(RemoteProtocolError):
    """The decoded headers exceed the limit. The table is as the writer thinks: go on with it."""


class Decoder:
    """A reader of the header blocks of one direction of one connection, in their order.

    Attributes:
        max_table_bytes: the limit of the dynamic table that the reader of the blocks has announced
            (SETTINGS_HEADER_TABLE_SIZE); the writer says what it uses of it.
    """

    def __init__(self) -> None:
        self.max_table_bytes = DEFAULT_TABLE_BYTES
        self._limit_bytes = DEFAULT_TABLE_BYTES
        self._table: deque[Header] = deque()
        self._table_bytes = 0

    def decode(self, block: bytes) -> list[Header]:
        """Decode a complete block.

        Raises:
            Http2Error: the block is malformed, or not worth being read to its end. The connection
                cannot go on: the table is not what the writer thinks it is.
            ListTooLarge: the headers are larger than ``limits.HEADER_LIST_BYTES``.
        """
        headers: list[Header] = []
        left_bytes = limits.HEADER_LIST_BYTES
        is_begun = False
        pos = 0
        end = len(block)
        while pos < end:
            first = block[pos]
            if first & 0x80:
                if first < 0xFF:
                    index = first & 0x7F
                    pos += 1
                else:
                    index, pos = _integer(block, pos, 0x7F)
                header = self._at(index)
            elif first & 0x40:
                header, pos = self._literal(block, pos, 0x3F)
                self._add(header)
            elif first & 0x20:
                limit, pos = _integer(block, pos, 0x1F)
                if is_begun or limit > self.max_table_bytes:
                    raise _malformed("a change of the table size is not allowed")
                self._limit_bytes = limit
                self._evict()
                continue
            else:
                header, pos = self._literal(block, pos, 0x0F)
            is_begun = True
            left_bytes -= len(header[0]) + len(header[1]) + _ENTRY_OVERHEAD_BYTES
            if left_bytes >= 0:
                headers.append(header)
            elif left_bytes < -limits.HEADER_LIST_BYTES:
                raise Http2Error("the headers are far too large", ErrorCode.ENHANCE_YOUR_CALM)
        if left_bytes < 0:
            raise ListTooLarge(f"HTTP/2: the headers exceed {limits.HEADER_LIST_BYTES} bytes")
        return headers

    def _literal(self, block: bytes, pos: int, mask: int) -> tuple[Header, int]:
        index = block[pos] & mask
        if index < mask:  # as nearly always
            pos += 1
        else:
            index, pos = _integer(block, pos, mask)
        if index:
            name = self._at(index)[0]
        else:
            name, pos = _string(block, pos)
        value, pos = _string(block, pos)
        return (name, value), pos

    def _at(self, index: int) -> Header:
        if 0 < index <= len(_STATIC):
            return _STATIC[index - 1]
        place = index - len(_STATIC) - 1
        if not 0 <= place < len(self._table):
            raise _malformed("an index is out of range")
        return self._table[place]

    def _add(self, header: Header) -> None:
        self._table.appendleft(header)
        self._table_bytes += len(header[0]) + len(header[1]) + _ENTRY_OVERHEAD_BYTES
        self._evict()

    def _evict(self) -> None:
        while self._table_bytes > self._limit_bytes:
            name, value = self._table.pop()
            self._table_bytes -= len(name) + len(value) + _ENTRY_OVERHEAD_BYTES


def encode(headers: Iterable[Header]) -> bytes:
    """Encode a block that refers to the static table only.

    All other fields are literals that are never to be indexed: the form in which those that their
    sender marked so must stay (section 7.1.3), and harmless for the others.
    """
    block = bytearray()
    for header in headers:
        index = _STATIC_INDEX.get(header)
        if index is not None:
            block.append(0x80 | index)
            continue
        name, value = header
        index = _STATIC_NAME.get(name, 0)
        if index < 0x0F:
            block.append(0x10 | index)
        else:
            _put_integer(block, index, 0x0F, 0x10)
        for text in (value,) if index else (name, value):
            if len(text) < 0x7F:
                block.append(len(text))
            else:
                _put_integer(block, len(text), 0x7F, 0)
            block += text
    return bytes(block)


def table_updates(*sizes: int) -> bytes:
    """Return the changes of the table's size that a block must begin with (section 4.2)."""
    block = bytearray()
    for size in sizes:
        _put_integer(block, size, 0x1F, 0x20)
    return bytes(block)


def size_of(headers: Iterable[Header]) -> int:
    """Return how large headers are, in bytes by the measure of section 4.1."""
    return sum(len(name) + len(value) + _ENTRY_OVERHEAD_BYTES for name, value in headers)


def _malformed(problem: str) -> Http2Error:
    return Http2Error(f"header compression: {problem}", ErrorCode.COMPRESSION_ERROR)


def _integer(block: bytes, pos: int, mask: int) -> tuple[int, int]:
    """Return the number at ``pos`` (section 5.1), whose first bits ``mask`` gives, and its end."""
    value = block[pos] & mask
    pos += 1
    if value < mask:
        return value, pos
    shift = 0
    while True:
        if pos >= len(block):
            raise _malformed("a block ends in the middle of a number")
        octet = block[pos]
        pos += 1
        value += (octet & 0x7F) << shift
        shift += 7
        if value > _MAX_INTEGER or shift > 35:
            raise _malformed("a number is too large")
        if octet < 0x80:
            return value, pos


def _put_integer(block: bytearray, value: int, mask: int, flags: int) -> None:
    if value < mask:
        block.append(flags | value)
        return
    block.append(flags | mask)
    value -= mask
    while value >= 0x80:
        block.append(value & 0x7F | 0x80)
        value >>= 7
    block.append(value)


def _string(block: bytes, pos: int) -> tuple[bytes, int]:
    """Return a string literal (section 5.2) and its end."""
    if pos >= len(block):
        raise _malformed("a block ends where a string must follow")
    length = block[pos]
    is_huffman = length >= 0x80
    if length & 0x7F < 0x7F:  # as nearly always
        length &= 0x7F
        pos += 1
    else:
        length, pos = _integer(block, pos, 0x7F)
    end = pos + length
    if end > len(block):
        raise _malformed("a block ends in the middle of a string")
    text = block[pos:end]
    return (_huffman_decode(text) if is_huffman else text), end


# The decoder of the Huffman code goes from state to state by octets. A state is the beginning of a
# code that has been read, with a one before it: 1 is none, 0b10 the bit 0.
_NO_BITS: Final = 1
_Step: TypeAlias = tuple[bytes, int]


@cache
def _huffman_codes() -> dict[int, int]:
    """Return the symbols by their codes, each with a one before it."""
    codes: dict[int, int] = {}
    code = last_bits = 0
    for bits, symbol in sorted((bits, symbol) for symbol, bits in enumerate(_CODE_BITS)):
        code <<= bits - last_bits
        last_bits = bits
        codes[1 << bits | code] = symbol
        code += 1
    return codes


# By state and octet: the symbols that the octet completes, and the state after it. A table of all
# would take longer to make than most programs that want it run, so it has what was asked for.
_huffman_steps: Final[dict[int, _Step]] = {}


def _huffman_step(state: int, octet: int) -> _Step:
    codes = _huffman_codes()
    decoded = bytearray()
    for shift in range(7, -1, -1):
        state = state << 1 | octet >> shift & 1
        symbol = codes.get(state)
        if symbol is not None:
            if symbol == _END_OF_STRING:
                raise _malformed("a string has its end in the middle")
            decoded.append(symbol)
            state = _NO_BITS
    return bytes(decoded), state


def _huffman_decode(text: bytes) -> bytes:
    steps = _huffman_steps
    decoded = bytearray()
    state = _NO_BITS
    for octet in text:
        key = state << 8 | octet
        step = steps.get(key)
        if step is None:
            step = steps[key] = _huffman_step(state, octet)
        symbols, state = step
        decoded += symbols
    # What is left are the first bits of the end of the string: ones, less than an octet.
    if state & state + 1 or state > 0xFF:
        raise _malformed("a string is padded wrongly")
    return bytes(decoded)
