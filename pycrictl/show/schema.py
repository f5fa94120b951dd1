"""The JSON Schema of pod and container configurations, from the API's descriptors, as crictl's."""

from __future__ import annotations

from typing import Any, Final, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from pycrictl._proto import cri_pb2
from pycrictl.show.protodata import NEWER_FIELDS

Schema = dict[str, Any]

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
_TYPES: Final = {
    FieldDescriptor.CPPTYPE_STRING: "string",  # also bytes
    FieldDescriptor.CPPTYPE_BOOL: "boolean",
}
"""Of scalars; all others are integers."""

_ID: Final = "https://k8s.io/cri-api/pkg/apis/runtime/v1/"


def pod_schema() -> Schema:
    return _schema("pod-sandbox-config", cri_pb2.PodSandboxConfig())


def container_schema() -> Schema:
    return _schema("container-config", cri_pb2.ContainerConfig())


def _schema(name: str, message: Message) -> Schema:
    root = cast("Descriptor", message.DESCRIPTOR)
    definitions: dict[str, Schema] = {}
    _define(root, definitions)
    reference = f"#/$defs/{root.name}"
    defs = dict(sorted(definitions.items()))
    return {"$schema": DRAFT, "$id": _ID + name, "$ref": reference, "$defs": defs}


def _define(message: Descriptor, definitions: dict[str, Schema]) -> None:
    if message.name in definitions:
        return
    definition: Schema = {"properties": {}, "additionalProperties": False, "type": "object"}
    definitions[message.name] = definition
    for field in message.fields:
        if field.name not in NEWER_FIELDS:
            definition["properties"][field.name] = _field(field, definitions)


def _field(field: FieldDescriptor, definitions: dict[str, Schema]) -> Schema:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        value = _value(kind.fields_by_name["value"], definitions)
        return {"additionalProperties": value, "type": "object"}
    if field.is_repeated:
        return {"items": _value(field, definitions), "type": "array"}
    return _value(field, definitions)


def _value(field: FieldDescriptor, definitions: dict[str, Schema]) -> Schema:
    if field.message_type is not None:
        _define(field.message_type, definitions)
        return {"$ref": f"#/$defs/{field.message_type.name}"}
    if field.enum_type is not None:
        return {"oneOf": [{"type": "string"}, {"type": "integer"}]}
    return {"type": _TYPES.get(field.cpp_type, "integer")}
