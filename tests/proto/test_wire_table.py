"""The generated classes against the wire tables in data/: the facts of a gRPC API as text.

A table names its packages (``file package=…``); below each stand services, enums and messages, one
line for each method, value and field::

    service NAME
      rpc METHOD REQUEST -> RESPONSE unary|server-stream|client-stream|bidi
    enum NAME
      NUMBER VALUE
    message NAME
      NUMBER FIELD [repeated] TYPE|map<KEY,TYPE> [optional] [deprecated] [debug_redact]
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor

from pycrictl._proto import cri_pb2
from pycrictl._proto.containerd import (
    content_pb2,
    events_pb2,
    images_pb2,
    introspection_pb2,
    leases_pb2,
    snapshots_pb2,
    types_pb2,
    version_pb2,
)

MODULES = (
    *(cri_pb2, content_pb2, events_pb2, images_pb2, introspection_pb2, leases_pb2),
    *(snapshots_pb2, types_pb2, version_pb2),
)
SCALARS = ("bool", "int32", "int64", "uint32", "uint64", "double", "string", "bytes")
KINDS = {
    (False, False): "unary",
    (False, True): "server-stream",
    (True, False): "client-stream",
    (True, True): "bidi",
}

#: A message of another package that the generated code has under a name of its own; and what the
#: enhancement proposals KEP-5334 and KEP-4582 add to the CRI.
MORE = """\
file package=containerd.types
message Status
  1 code int32
  2 message string
  3 details repeated google.protobuf.Any
file package=runtime.v1
service RuntimeService
  rpc ImagePullProgress ImagePullProgressRequest -> ImagePullProgressResponse unary
  rpc CopyToContainer CopyToContainerRequest -> CopyToContainerResponse unary
  rpc CopyFromContainer CopyFromContainerRequest -> CopyFromContainerResponse unary
message ImagePullProgressRequest
  1 pod_sandbox_id string
  2 container_id string
message ImagePullProgressResponse
  1 url string
message CopyToContainerRequest
  1 container_id string
  2 size uint64
  3 checksum uint32
  4 path string
message CopyToContainerResponse
  1 url string
message CopyFromContainerRequest
  1 container_id string
  2 path string
message CopyFromContainerResponse
  1 url string
  2 size uint64
  3 checksum uint32
"""

_TYPE = re.compile(r"(rpc \w+ |-> |^\d+ \w+ (?:repeated )?(?:map<\w+,)?)([\w.]+)")

Facts = dict[str, set[str]]
"""Lines with full names, by kind and full name of what they are of."""


def read(text: str, facts: Facts) -> None:
    package, lines = "", set[str]()

    def with_full_name(match: re.Match[str]) -> str:
        is_full = match[2] in SCALARS or match[2].startswith(("google.", "containerd."))
        return match[0] if is_full else f"{match[1]}{package}.{match[2]}"

    for line in text.replace("google.rpc.Status", "containerd.types.Status").splitlines():
        words = line.split()
        if words[0] == "file":
            package = words[1].removeprefix("package=")
        elif not line.startswith(" "):
            lines = facts.setdefault(f"{words[0]} {package}.{words[1]}", set())
        else:
            lines.add(_TYPE.sub(with_full_name, line.strip()))


def tables() -> Facts:
    facts: Facts = {}
    for path in sorted(Path(__file__).with_name("data").glob("*.wire")):
        read(path.read_text(), facts)
    read(MORE, facts)
    return facts


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
        # Messages have presence anyway: the keyword shows in the oneof that protoc makes for it.
        "optional": field.containing_oneof is not None,
        "deprecated": options.deprecated,
        "debug_redact": options.debug_redact,
    }
    return " ".join(
        [f"{field.number} {field.name} {kind}", *(name for name in flags if flags[name])]
    )


def of_message(message: Descriptor) -> Iterator[tuple[str, set[str]]]:
    if not message.GetOptions().map_entry:
        yield f"message {message.full_name}", set(map(line_of, message.fields))
    for nested in message.nested_types:
        yield from of_message(nested)
    yield from map(of_enum, message.enum_types)


def of_enum(enum: EnumDescriptor) -> tuple[str, set[str]]:
    return f"enum {enum.full_name}", {f"{value.number} {value.name}" for value in enum.values}


def of_file(file: FileDescriptor) -> Iterator[tuple[str, set[str]]]:
    for service in file.services_by_name.values():
        yield (
            f"service {service.full_name}",
            {
                f"rpc {each.name} {each.input_type.full_name} -> {each.output_type.full_name}"
                f" {KINDS[each.client_streaming, each.server_streaming]}"
                for each in service.methods
            },
        )
    yield from map(of_enum, file.enum_types_by_name.values())
    for message in file.message_types_by_name.values():
        yield from of_message(message)


def test_the_generated_code_is_that_of_the_tables() -> None:
    facts = tables()
    generated = dict(fact for module in MODULES for fact in of_file(module.DESCRIPTOR))
    assert generated.keys() == facts.keys()
    bad = {name: generated[name] ^ facts[name] for name in facts if generated[name] != facts[name]}
    assert not bad, bad
    # So that a truncated table is no quiet pass.
    assert len(facts) == 276
