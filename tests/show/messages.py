"""Hypothesis strategies that fill any protobuf message, by its descriptor."""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)

SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_STRING: TEXT,
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=8),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_DOUBLE: st.floats(),
    FieldDescriptor.TYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT64: st.integers(0, 2**64 - 1),
}


@cache
def messages(descriptor: Descriptor, depth: int = 3) -> st.SearchStrategy[Message]:
    """Messages of one type with any of their fields set, down to ``depth`` levels."""
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for field in descriptor.fields:
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            fields[field.name] = st.dictionaries(TEXT, TEXT, max_size=3)
        elif inner is None or depth:
            value = scalars(field) if inner is None else messages(inner, depth - 1)
            fields[field.name] = st.lists(value, max_size=2) if field.is_repeated else value
    make = GetMessageClass(descriptor)
    return st.fixed_dictionaries({}, optional=fields).map(lambda values: make(**values))


def scalars(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    """Values of a field that is no message; of enums also numbers that have no name."""
    if field.enum_type is not None:
        numbers = [value.number for value in field.enum_type.values]
        return st.sampled_from(numbers) | st.integers(-(2**31), 2**31 - 1)
    return SCALARS[field.type]
