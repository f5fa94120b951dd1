"""The generated classes against data/api.facts: the facts of the gRPC APIs, one per line.

The lines were made from the tables of the Kubernetes API and of containerd, not from our own
sources; those of the proposals KEP-5334 and KEP-4582 were added. Each begins with its parent::

    service NAME rpc METHOD REQUEST -> RESPONSE unary|server-stream|client-stream|bidi
    enum NAME NUMBER VALUE
    message NAME NUMBER FIELD [repeated] TYPE|map<KEY,TYPE> [optional] [deprecated] [debug_redact]
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor

from pycrictl._proto import cri_pb2
from pycrictl._proto.containerd import (
    content_pb2,
    events_pb2,
    images_pb2,
    leases_pb2,
    snapshots_pb2,
    types_pb2,
    version_pb2,
)

MODULES = (
    cri_pb2, content_pb2, events_pb2, images_pb2, leases_pb2,
    snapshots_pb2, types_pb2, version_pb2,
)  # fmt: skip
SCALARS = ("bool", "int32", "int64", "uint32", "uint64", "double", "string", "bytes")
KINDS = {
    (False, False): "unary",
    (False, True): "server-stream",
    (True, False): "client-stream",
    (True, True): "bidi",
}


def type_name(field: FieldDescriptor) -> str:
    if field.message_type is not None:
        return field.message_type.full_name
    if field.enum_type is not None:
        return field.enum_type.full_name
    by_number = {getattr(FieldDescriptor, f"TYPE_{name.upper()}"): name for name in SCALARS}
    return by_number[field.type]


def line_of(field: FieldDescriptor) -> str:
    options, entry = field.GetOptions(), field.message_type
    kind = ("repeated " if field.is_repeated else "") + type_name(field)
    if entry is not None and entry.GetOptions().map_entry:
        key, value = entry.fields_by_name["key"], entry.fields_by_name["value"]
        kind = f"map<{type_name(key)},{type_name(value)}>"
    flags = {
        # Messages have presence anyway; the keyword shows in the oneof that protoc makes for it.
        "optional": field.containing_oneof is not None,
        "deprecated": options.deprecated,
        "debug_redact": options.debug_redact,
    }
    return " ".join(
        [f"{field.number} {field.name} {kind}", *(name for name in flags if flags[name])]
    )


def of_message(message: Descriptor) -> Iterator[str]:
    if not message.GetOptions().map_entry:
        name = f"message {message.full_name}"
        yield from (name, *(f"{name} {line_of(field)}" for field in message.fields))
    for nested in message.nested_types:
        yield from of_message(nested)
    for enum in message.enum_types:
        yield from of_enum(enum)


def of_enum(enum: EnumDescriptor) -> Iterator[str]:
    name = f"enum {enum.full_name}"
    yield from (name, *(f"{name} {value.number} {value.name}" for value in enum.values))


def of_file(file: FileDescriptor) -> Iterator[str]:
    for service in file.services_by_name.values():
        yield f"service {service.full_name}"
        for method in service.methods:
            call = f"{method.name} {method.input_type.full_name} -> {method.output_type.full_name}"
            kind = KINDS[method.client_streaming, method.server_streaming]
            yield f"service {service.full_name} rpc {call} {kind}"
    for enum in file.enum_types_by_name.values():
        yield from of_enum(enum)
    for message in file.message_types_by_name.values():
        yield from of_message(message)


def test_the_generated_code_is_that_of_the_apis() -> None:
    facts = set(Path(__file__).with_name("data").joinpath("api.facts").read_text().splitlines())
    generated = {fact for module in MODULES for fact in of_file(module.DESCRIPTOR)}
    assert sorted(generated ^ facts) == []
