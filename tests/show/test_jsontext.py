from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from pycrictl._proto import cri_pb2
from pycrictl.show.jsontext import compact_json, document_json, number_text, ordered_json
from pycrictl.show.protodata import message_document

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)

SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_STRING: TEXTS,
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
            fields[field.name] = st.dictionaries(TEXTS, TEXTS, max_size=3)
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


TYPES = [
    descriptor
    for name, descriptor in cri_pb2.DESCRIPTOR.message_types_by_name.items()
    if name.endswith(("Response", "Request", "Config"))
]


def message_json(message: Message) -> str:
    return ordered_json(message_document(message))


def expected(message: Message) -> str:
    """Google's mapping; signals have shorter names in crictl's."""
    text = json_format.MessageToJson(message, always_print_fields_with_no_presence=True)
    return text.replace('"SIGNAL_', '"')


@given(st.sampled_from(TYPES).flatmap(messages))
def test_is_the_proto3_json_mapping(message: Message) -> None:
    text = message_json(message)
    # Integers are compared as floats, for Go writes the double 2.0 as 2.
    assert json.loads(text, parse_int=float) == json.loads(expected(message), parse_int=float)
    assert all(char == "\n" or char >= " " for char in text)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(-(2**53), 2**53)  # greater ones are read back as integers near by
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=20,
)


@given(JSON)
def test_data_is_read_back_as_it_was(document: Any) -> None:
    text = document_json(document)
    assert json.loads(text) == document
    assert not set(text) & set("<>&\u2028\u2029\x7f\x9b")


def test_data_has_sorted_keys_and_escapes() -> None:
    document = {"b": [], "a": {"z": None, "B": True}, "<&>": {}, "big": 2**63 - 1}
    assert (
        document_json(document)
        == r"""{
  "\u003c\u0026\u003e": {},
  "a": {
    "B": true,
    "z": null
  },
  "b": [],
  "big": 9223372036854775807
}"""
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "-0"),
        (2.0, "2"),
        (1.5, "1.5"),
        (1e20, "100000000000000000000"),
        (1.2345678901234568e20, "123456789012345680000"),
        (1e21, "1e+21"),
        (1.5e300, "1.5e+300"),
        (0.000001, "0.000001"),
        (-1.25e-5, "-0.0000125"),
        (1e-7, "1e-7"),
        (5e-324, "5e-324"),
        (2**53 + 1, "9007199254740993"),
    ],
)
def test_numbers_have_gos_form(value: float, text: str) -> None:
    assert number_text(value) == text


HIDDEN = "\u202e\u2066\u200f\ufeff\u00ad\U000e0041\U000e007f\u2028\x85\x7f"
"""Characters that change the direction of writing, are invisible, or are obeyed by terminals."""


def test_hidden_characters_are_escaped() -> None:
    image = cri_pb2.Image(id=f"a{HIDDEN}é→")
    for text in (
        message_json(image),
        document_json({HIDDEN: [HIDDEN, "é→"]}),
        compact_json(f"{HIDDEN}é→"),
    ):
        assert not set(text) & set(HIDDEN)
        assert "é→" in text
    assert json.loads(message_json(image))["id"] == f"a{HIDDEN}é→"
    assert compact_json("\u202e\U000e0041") == r'"\u202e\udb40\udc41"'
