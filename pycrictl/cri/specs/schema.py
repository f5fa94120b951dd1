"""The JSON Schema of pod and container configurations, made from the API's descriptors. Pure.

Draft 2020-12. The schema accepts exactly the documents that ``loading`` accepts, except that
it also allows numbers beyond 64 bits written as text, and no null.
"""

from __future__ import annotations

from typing import Any, Final, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from pycrictl._proto import cri_pb2
from pycrictl.cri.specs import loading

Schema = dict[str, Any]

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
_ID: Final = "https://k8s.io/cri-api/pkg/apis/runtime/v1/"


def pod_schema() -> Schema:
    return _schema("pod-sandbox-config", cri_pb2.PodSandboxConfig(), loading.POD_REQUIRES)


def container_schema() -> Schema:
    return _schema("container-config", cri_pb2.ContainerConfig(), loading.CONTAINER_REQUIRES)


def _schema(name: str, message: Message, required: tuple[tuple[str, ...], ...]) -> Schema:
    root = cast("Descriptor", message.DESCRIPTOR)
    definitions: dict[str, Schema] = {}
    _define(root, definitions)
    return {
        "$schema": DRAFT,
        "$id": _ID + name,
        "$ref": f"#/$defs/{root.name}",
        **_requirement(required),
        "$defs": dict(sorted(definitions.items())),
    }


def _requirement(paths: tuple[tuple[str, ...], ...]) -> Schema:
    """Return the part of a schema that requires texts, none of them empty."""
    if paths == ((),):
        return {"minLength": 1}
    keys = dict.fromkeys(path[0] for path in paths)
    return {
        "required": list(keys),
        "properties": {
            key: _requirement(tuple(path[1:] for path in paths if path[0] == key)) for key in keys
        },
    }


def _define(message: Descriptor, definitions: dict[str, Schema]) -> None:
    if message.name in definitions:
        return
    definition: Schema = {"properties": {}, "additionalProperties": False, "type": "object"}
    definitions[message.name] = definition
    second_spellings: dict[str, Schema] = {}
    for field in message.fields:
        value = _field(field, definitions)
        name, *others = loading.spellings(field)
        definition["properties"][name] = value
        for other in others:
            definition["properties"][other] = value
            second_spellings[other] = {"properties": {name: False}}
    if second_spellings:
        definition["dependentSchemas"] = second_spellings


def _field(field: FieldDescriptor, definitions: dict[str, Schema]) -> Schema:
    if (value := loading.map_value(field)) is not None:
        return {"additionalProperties": _value(value, definitions), "type": "object"}
    if field.is_repeated:
        return {"items": _value(field, definitions), "type": "array"}
    return _value(field, definitions)


def _value(field: FieldDescriptor, definitions: dict[str, Schema]) -> Schema:
    if field.message_type is not None:
        _define(field.message_type, definitions)
        return {"$ref": f"#/$defs/{field.message_type.name}"}
    if field.enum_type is not None:
        names = loading.enum_names(field.enum_type)
        numbers = list(dict.fromkeys(names.values()))
        return {
            "oneOf": [{"type": "string", "enum": list(names)}, {"type": "integer", "enum": numbers}]
        }
    if field.type in loading.INTEGERS:
        return _integer(field, definitions)
    return {"type": "boolean" if field.type == FieldDescriptor.TYPE_BOOL else "string"}


def _integer(field: FieldDescriptor, definitions: dict[str, Schema]) -> Schema:
    limits = loading.INTEGERS[field.type]
    number = {"type": "integer", "minimum": limits.start, "maximum": limits.stop - 1}
    pattern = loading.text_pattern(field)
    if pattern is None:
        return number
    name = "int64" if limits.start else "uint64"
    definitions[name] = {"oneOf": [number, {"type": "string", "pattern": f"^{pattern}$"}]}
    return {"$ref": f"#/$defs/{name}"}
