"""The schema and the loader accept the same documents."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from pycrictl import yamltree
from pycrictl._proto import cri_pb2
from pycrictl.cri.specs import loading
from pycrictl.cri.specs.schema import Schema, container_schema, pod_schema
from tests.captures import capture

ODD: st.SearchStrategy[Any] = st.sampled_from(
    [
        *(None, True, 0, 1, -1, 2.0, 1.5, 2**31, 2**63, -(2**63), 2**64),
        *("", "x", "5", "-5", "05", "NODE", "SIGTERM", "TCP", "00000000000000000001"),
        *("9223372036854775807", "-9223372036854775808"),
        *([], {}, ["a"], {"name": "a"}, {"": ""}),
    ]
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


def scalar(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.enum_type is not None:
        names = loading.enum_names(field.enum_type)
        return st.sampled_from([*names, *names.values()])
    if field.type in loading.INTEGERS:
        limits = loading.INTEGERS[field.type]
        numbers = st.integers(limits.start, limits.stop - 1)
        return numbers | numbers.map(str) if loading.text_pattern(field) else numbers
    return st.booleans() if field.type == FieldDescriptor.TYPE_BOOL else TEXT


def value(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if (in_map := loading.map_value(field)) is not None:
        return st.dictionaries(TEXT, scalar(in_map), max_size=2)
    one = document(field.message_type) if field.message_type is not None else scalar(field)
    return st.lists(one, max_size=2) if field.is_repeated else one


def document(message: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy for documents of a message, most of them valid."""

    @st.composite
    def draw_document(draw: st.DrawFn) -> dict[str, Any]:
        fields = draw(st.lists(st.sampled_from(list(message.fields)), max_size=3))
        found: dict[str, Any] = {}
        for field in fields:
            key = draw(st.sampled_from(loading.spellings(field)))
            is_odd = draw(st.integers(0, 30)) == 0
            found[key] = draw(ODD if is_odd else value(field))
        if draw(st.integers(0, 30)) == 0:
            found[draw(st.sampled_from(["", "nme", "Metadata", "x"]))] = draw(
                ODD.filter(lambda odd: odd is not None)
            )
        return found

    return draw_document()


def loads(text: str, message: Message, required: tuple[tuple[str, ...], ...]) -> bool:
    try:
        loading.parse(text, message, required)
    except yamltree.Problem:
        return False
    return True


def without_nulls(found: Any) -> Any:
    if isinstance(found, dict):
        return {key: without_nulls(each) for key, each in found.items() if each is not None}
    return [without_nulls(each) for each in found] if isinstance(found, list) else found


POD_VALIDATOR = jsonschema.Draft202012Validator(pod_schema())
CONTAINER_VALIDATOR = jsonschema.Draft202012Validator(container_schema())


@settings(max_examples=150)
@given(document(cri_pb2.PodSandboxConfig.DESCRIPTOR), st.booleans())
def test_pods(found: dict[str, Any], has_name: bool) -> None:
    if has_name:
        found["metadata"] = {"name": "a", "namespace": "b"}
    accepted = loads(json.dumps(found), cri_pb2.PodSandboxConfig(), loading.POD_REQUIRES)
    assert accepted == POD_VALIDATOR.is_valid(without_nulls(found))


@settings(max_examples=150)
@given(document(cri_pb2.ContainerConfig.DESCRIPTOR), st.booleans())
def test_containers(found: dict[str, Any], has_name: bool) -> None:
    if has_name:
        found |= {"metadata": {"name": "a"}, "image": {"image": "b"}}
    accepted = loads(json.dumps(found), cri_pb2.ContainerConfig(), loading.CONTAINER_REQUIRES)
    assert accepted == CONTAINER_VALIDATOR.is_valid(without_nulls(found))


NEWER = (("Mount", "mount_options"),)
"""Fields added to the API after the recorded version."""


def as_crictl_writes(schema: Schema) -> dict[str, dict[str, Any]]:
    """Return the definitions without second spellings, limits and names, as in crictl's schema."""

    def simple(value: Schema) -> Schema:
        if "oneOf" in value:
            return {"oneOf": [{"type": choice["type"]} for choice in value["oneOf"]]}
        if value.get("$ref") in ("#/$defs/int64", "#/$defs/uint64"):
            return {"type": "integer"}
        if "items" in value:
            return {"items": simple(value["items"]), "type": "array"}
        return {key: value[key] for key in value if key not in ("minimum", "maximum")}

    simplified = {}
    for name, definition in schema["$defs"].items():
        if name in ("int64", "uint64"):
            continue
        second = definition.get("dependentSchemas", {})
        properties = {
            key: simple(value)
            for key, value in definition["properties"].items()
            if key not in second
        }
        simplified[name] = {**definition, "properties": properties}
        simplified[name].pop("dependentSchemas", None)
    return simplified


def test_definitions_are_crictls() -> None:
    text = capture("run-jsonschema-both").output
    decoder = json.JSONDecoder()
    pod, end = decoder.raw_decode(text)
    container, _ = decoder.raw_decode(text, text.index("{", end))
    for schema, recorded in ((pod_schema(), pod), (container_schema(), container)):
        for key in ("$schema", "$id", "$ref"):
            assert schema[key] == recorded[key]
        ours = as_crictl_writes(schema)
        for name, field in NEWER:
            ours.get(name, {"properties": {}})["properties"].pop(field, None)
        assert ours == recorded["$defs"]
        assert list(ours) == list(recorded["$defs"])
