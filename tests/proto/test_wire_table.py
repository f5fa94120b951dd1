"""The generated classes against the wire tables in data/, in both directions."""

from __future__ import annotations

from pathlib import Path

from google.protobuf import descriptor_pool
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
from tests.proto.wire_table import SCALARS, Field, Method, Table

FILES: list[FileDescriptor] = [
    module.DESCRIPTOR
    for module in (
        cri_pb2,
        content_pb2,
        events_pb2,
        images_pb2,
        introspection_pb2,
        leases_pb2,
        snapshots_pb2,
        types_pb2,
        version_pb2,
    )
]

#: Messages of other packages that the tables refer to.
FOREIGN = """\
file package=google.protobuf
message Any
  1 type_url string
  2 value bytes
message Empty
message FieldMask
  1 paths repeated string
message Timestamp
  1 seconds int64
  2 nanos int32
file package=google.rpc
message Status
  1 code int32
  2 message string
  3 details repeated google.protobuf.Any
"""

#: What the enhancement proposals KEP-5334 and KEP-4582 add to the CRI.
PROPOSALS = """\
file package=runtime.v1
service ProposedMethods
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

#: Messages that the generated code has under a name of its own; names are not on the wire.
RENAMED = {"google.rpc.Status": "containerd.types.Status"}

TYPES = {
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_INT32: "int32",
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_UINT32: "uint32",
    FieldDescriptor.TYPE_UINT64: "uint64",
    FieldDescriptor.TYPE_DOUBLE: "double",
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_BYTES: "bytes",
}


def read_tables() -> Table:
    table = Table()
    for path in sorted(Path(__file__).with_name("data").glob("*.wire")):
        table.read(path.read_text())
    table.read(FOREIGN)
    table.read(PROPOSALS)
    proposed = table.services.pop("runtime.v1.ProposedMethods")
    table.services["runtime.v1.RuntimeService"] += proposed
    return table


TABLE = read_tables()
MESSAGES = sorted(name for name in TABLE.messages if not name.startswith("google.protobuf."))


def generated_name(name: str) -> str:
    return RENAMED.get(name, name)


def descriptor(name: str) -> Descriptor:
    return descriptor_pool.Default().FindMessageTypeByName(generated_name(name))


def generated_messages() -> dict[str, Descriptor]:
    """Every message of the generated files, without the entries that stand for maps."""
    found: dict[str, Descriptor] = {}
    pending = [message for file in FILES for message in file.message_types_by_name.values()]
    while pending:
        message = pending.pop()
        if not message.GetOptions().map_entry:
            found[message.full_name] = message
            pending += message.nested_types
    return found


def generated_enums() -> dict[str, EnumDescriptor]:
    enums = [enum for file in FILES for enum in file.enum_types_by_name.values()]
    enums += [enum for message in generated_messages().values() for enum in message.enum_types]
    return {enum.full_name: enum for enum in enums}


def type_name(field: FieldDescriptor) -> str:
    if field.message_type is not None:
        return field.message_type.full_name
    if field.enum_type is not None:
        return field.enum_type.full_name
    return TYPES[field.type]


def described(field: FieldDescriptor) -> Field:
    """A generated field in the words of the table."""
    options = field.GetOptions()
    flags = {
        # Messages have presence anyway: the keyword shows in the oneof that protoc makes for it.
        "optional": field.containing_oneof is not None,
        "deprecated": options.deprecated,
        "debug_redact": options.debug_redact,
    }
    entry = field.message_type
    key = value = None
    if entry is not None and entry.GetOptions().map_entry:
        key, value = entry.fields_by_name["key"], entry.fields_by_name["value"]
    return Field(
        number=field.number,
        name=field.name,
        type=type_name(value or field),
        repeated=field.is_repeated and key is None,
        map_key=type_name(key) if key else None,
        flags=frozenset(name for name, is_set in flags.items() if is_set),
    )


def expected(field: Field) -> Field:
    """A field of the table as the generated code names its type."""
    return Field(**{**vars(field), "type": generated_name(field.type)})


def test_tables_are_whole() -> None:
    """Counts of the tables, so that a truncated file is no quiet pass."""
    assert len(TABLE.messages) == 258
    assert len(TABLE.enums) == 13
    assert sum(map(len, TABLE.services.values())) == 83
    used = {field.type for fields in TABLE.messages.values() for field in fields}
    assert used <= {*SCALARS, *TABLE.messages, *TABLE.enums}


def test_fields_are_those_of_the_table() -> None:
    bad = []
    for name in MESSAGES:
        generated = [described(field) for field in descriptor(name).fields]
        table = sorted(map(expected, TABLE.messages[name]), key=lambda field: field.number)
        bad += [name] if generated != table else []
    assert not bad, bad


def test_no_other_messages() -> None:
    assert sorted(generated_messages()) == sorted(map(generated_name, MESSAGES))


def test_enums() -> None:
    generated = {
        name: {value.name: value.number for value in enum.values}
        for name, enum in generated_enums().items()
    }
    assert generated == TABLE.enums


def test_services() -> None:
    kinds = {
        (False, False): "unary",
        (False, True): "server-stream",
        (True, False): "client-stream",
        (True, True): "bidi",
    }
    generated = {
        service.full_name: {
            Method(
                method.name,
                method.input_type.full_name,
                method.output_type.full_name,
                kinds[method.client_streaming, method.server_streaming],
            )
            for method in service.methods
        }
        for file in FILES
        for service in file.services_by_name.values()
    }
    assert generated == {name: set(methods) for name, methods in TABLE.services.items()}
