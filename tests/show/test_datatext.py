"""JSON and YAML text, checked with the libraries that read them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from pycrictl._proto import cri_pb2
from pycrictl.show.datatext import compact_json, document_json
from pycrictl.show.goyaml import document_yaml
from pycrictl.show.protodata import message_document

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
YAML_TEXTS = st.text(
    st.characters(exclude_categories=["Cs"]) | st.sampled_from("-:#'\"|>&*!%@`[]{}, \n\t0123ex._")
).filter(lambda text: text not in ("=", "<<") and "_" not in text)  # PyYAML reads these as no text
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
    """Return messages of one type with any of their fields set, down to ``depth`` levels."""
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
    """Return values for a field that is not a message; for enums also numbers without a name."""
    if field.enum_type is not None:
        numbers = [value.number for value in field.enum_type.values]
        return st.sampled_from(numbers) | st.integers(-(2**31), 2**31 - 1)
    return SCALARS[field.type]


TYPES = [
    descriptor
    for name, descriptor in cri_pb2.DESCRIPTOR.message_types_by_name.items()
    if name.endswith(("Response", "Request", "Config"))
]


def _without_newer(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name != "mountOptions" or value}


@given(st.sampled_from(TYPES).flatmap(messages))
def test_messages_are_in_the_proto3_json_mapping(message: Message) -> None:
    text = document_json(message_document(message), is_ordered=True)
    expected = json_format.MessageToJson(message, always_print_fields_with_no_presence=True)
    expected = expected.replace('"SIGNAL_', '"')  # crictl has shorter names
    wanted = json.loads(expected, parse_int=float, object_hook=_without_newer)
    # Integers are compared as floats, since Go writes the double 2.0 as 2.
    assert json.loads(text, parse_int=float) == wanted
    assert all(char == "\n" or char >= " " for char in text)


def documents(texts: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    simple = st.none() | st.booleans() | st.integers() | texts
    return st.recursive(
        simple, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=20
    )


@given(st.lists(documents(YAML_TEXTS)))
def test_data_is_read_back_as_it_was(document: Any) -> None:
    text = document_json(document)
    assert json.loads(text) == document
    assert not set(text) & set("<>&\u2028\u2029\x7f\x9b")
    assert yaml.safe_load(document_yaml(document)) == document


def test_json() -> None:
    document: Any = {"b": [], "a": {"z": None, "B": True, "f": 2.0}, "<&>": {}, "big": 2**63 - 1}
    assert (
        document_json(document)
        == r"""{
  "\u003c\u0026\u003e": {},
  "a": {
    "B": true,
    "f": 2,
    "z": null
  },
  "b": [],
  "big": 9223372036854775807
}"""
    )
    assert compact_json([1e20, 1.5, 1e21, "\u202e\U000e0041"]) == (
        r'[100000000000000000000,1.5,1e+21,"\u202e\udb40\udc41"]'
    )


HIDDEN = "\u202e\u2066\u200f\ufeff\u00ad\U000e0041\U000e007f\u2028\x85\x7f"
"""Characters that change the direction of writing, are invisible, or are obeyed by terminals."""


@pytest.mark.parametrize("around", ["{}", "a {} b", "a\n{}\n", "é {}", "- {}: '{}"])
def test_hidden_characters_are_escaped(around: str) -> None:
    document = {around.format(HIDDEN, HIDDEN): [around.format(HIDDEN, "é")], "é": "→b"}
    for text, read in (
        (document_json(document), json.loads),
        (document_json(document, is_ordered=True), json.loads),
        (document_yaml(document), yaml.safe_load),
    ):
        assert not set(text) & set(HIDDEN)
        assert "é" in text
        assert read(text) == document


def test_yaml_is_byte_for_byte_that_of_crictl() -> None:
    """The recording has hostile strings and keys, orders of keys, numbers and nesting."""
    recorded = json.loads((Path(__file__).parent / "data/go-yaml.json").read_text("utf-8"))
    assert document_yaml(recorded["document"]).split("\n") == recorded["yaml"].split("\n")
