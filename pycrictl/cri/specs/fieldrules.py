"""What a field of a configuration file may hold. Pure.

The loader and the JSON Schema are both made from this, so that they accept the same documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final, NamedTuple

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor


class Range(NamedTuple):
    least: int
    greatest: int


INTEGERS: Final = {
    FieldDescriptor.TYPE_INT32: Range(-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_UINT32: Range(0, 2**32 - 1),
    FieldDescriptor.TYPE_INT64: Range(-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT64: Range(0, 2**64 - 1),
}

_WIDE: Final = (FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_UINT64)

# The API's own file calls SIGTERM what the generated code must call SIGNAL_SIGTERM.
_UNSHOWN_PREFIXES: Final = {"Signal": "SIGNAL_"}


def spellings(field: FieldDescriptor) -> tuple[str, ...]:
    """Return the keys of a field: its name in the API and, where it differs, JSON's camelCase."""
    return tuple(dict.fromkeys((field.name, field.json_name)))


@cache
def fields_by_key(message: Descriptor) -> Mapping[str, FieldDescriptor]:
    return {key: field for field in message.fields for key in spellings(field)}


def enum_names(enum: EnumDescriptor) -> dict[str, int]:
    """Return the names of an enum's values, in the API's order."""
    prefix = _UNSHOWN_PREFIXES.get(enum.name, "")
    names: dict[str, int] = {}
    for value in enum.values:
        names[value.name.removeprefix(prefix)] = value.number
        names[value.name] = value.number
    return names


def map_value(field: FieldDescriptor) -> FieldDescriptor | None:
    """Return the field of a map's values; None for any other field. Keys of maps are text."""
    entry = field.message_type
    if entry is None or not entry.GetOptions().map_entry:
        return None
    return entry.fields_by_name["value"]


def text_pattern(field: FieldDescriptor) -> str | None:
    """Return the expression that a number written as text must match as a whole.

    None for fields of less than 64 bits, which any JSON library carries exactly.
    """
    if field.type not in _WIDE:
        return None
    return r"-?[0-9]{1,20}" if INTEGERS[field.type].least else r"[0-9]{1,20}"
