"""How many messages an answer is made of, before any of them is made. Pure.

An empty message takes two bytes on the wire and more than a hundred in memory, so a limit on the
bytes of an answer alone lets 16 MiB become more than a gigabyte.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED: Final = {_FIXED64: 8, _FIXED32: 4}


def parts_in(data: bytes, descriptor: Any, most: int) -> int:
    """Return of how many messages a message is made, up to a number; what is malformed ends it.

    Args:
        data: serialised.
        descriptor: of its type (a ``Descriptor``, of which there are two classes).
        most: it is not counted beyond that.
    """
    count, open_parts = 0, [(0, len(data), descriptor)]
    while open_parts and count <= most:
        at, end, kind = open_parts.pop()
        inner = _messages(kind)
        while at < end and count <= most:
            key, at = _varint(data, at, end)
            wire = key & 7
            if wire == _VARINT:
                _, at = _varint(data, at, end)
            elif wire == _BYTES:
                length, at = _varint(data, at, end)
                if (found := inner.get(key >> 3)) is not None:
                    count += 1
                    if length and at + length <= end:
                        open_parts.append((at, at + length, found))
                at += length
            elif wire in _FIXED:
                at += _FIXED[wire]
            else:
                break
    return count


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    return 7, end  # a wire type that there is not


@lru_cache(maxsize=256)
def _messages(descriptor: Any) -> dict[int, Any]:
    """Return the fields that hold messages, by their numbers."""
    return {
        number: field.message_type
        for number, field in descriptor.fields_by_number.items()
        if field.message_type is not None
    }
