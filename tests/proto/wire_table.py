"""Wire tables: the facts of a gRPC API as text, and bytes made from them without protobuf.

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
import struct
from dataclasses import dataclass, field
from itertools import count

SCALARS = ("bool", "int32", "int64", "uint32", "uint64", "double", "string", "bytes")

Value = bool | int | float | str | bytes | list["Value"] | dict[str, "Value"]

_FIELD = re.compile(
    r"(?P<number>\d+) (?P<name>\w+) (?P<repeated>repeated )?"
    r"(?:map<(?P<key>\w+),(?P<value>[\w.]+)>|(?P<type>[\w.]+))(?P<flags>(?: \w+)*)"
)
#: Nested messages are filled down to this depth and empty below it.
_DEPTH = 2


@dataclass(frozen=True)
class Field:
    """One field. ``type`` is a scalar's name or a full name; for a map it is the values' type."""

    number: int
    name: str
    type: str
    repeated: bool
    map_key: str | None
    flags: frozenset[str]


@dataclass(frozen=True)
class Method:
    """One method of a service, with the full names of its messages."""

    name: str
    request: str
    response: str
    kind: str


@dataclass
class Table:
    """What tables say, by full name."""

    services: dict[str, list[Method]] = field(default_factory=dict)
    enums: dict[str, dict[str, int]] = field(default_factory=dict)
    messages: dict[str, list[Field]] = field(default_factory=dict)

    def read(self, text: str) -> None:
        """Add the contents of a table; a name that is there already or an odd line is an error."""
        package = kind = name = ""
        for line in text.splitlines():
            words = line.split()
            if words[0] == "file":
                package = words[1].removeprefix("package=")
            elif not line.startswith(" "):
                kind, name = words[0], f"{package}.{words[1]}"
                if name in {**self.services, **self.enums, **self.messages}:
                    raise ValueError(f"{name} is described twice")
                match kind:
                    case "service":
                        self.services[name] = []
                    case "enum":
                        self.enums[name] = {}
                    case "message":
                        self.messages[name] = []
                    case _:
                        raise ValueError(f"odd line: {line}")
            elif kind == "service":
                _, method, request, _, response, streams = words
                types = _full_name(request, package), _full_name(response, package)
                self.services[name].append(Method(method, *types, streams))
            elif kind == "enum":
                self.enums[name][words[1]] = int(words[0])
            else:
                self.messages[name].append(_field(line.strip(), package))

    def sample(self, fields: list[Field]) -> dict[str, Value]:
        """A value for each of the fields, different from each other wherever the type has room."""
        return self._sample(fields, count(1), _DEPTH)

    def encode(self, fields: list[Field], values: dict[str, Value], *, packed: bool) -> bytes:
        """The fields that ``values`` has as protobuf's wire format.

        ``packed`` chooses how repeated numbers are written; a reader must take both.
        """
        return b"".join(
            self._encode_field(field, values[field.name], packed=packed)
            for field in fields
            if field.name in values
        )

    def _sample(self, fields: list[Field], numbers: count[int], depth: int) -> dict[str, Value]:
        values: dict[str, Value] = {}
        for each in fields:
            if each.map_key:
                values[each.name] = {
                    f"key-{next(numbers)}": self._sample_one(each.type, numbers, depth)
                    for _ in range(2)
                }
            elif each.repeated:
                values[each.name] = [self._sample_one(each.type, numbers, depth) for _ in range(3)]
            else:
                values[each.name] = self._sample_one(each.type, numbers, depth)
        return values

    def _sample_one(self, type_name: str, numbers: count[int], depth: int) -> Value:
        number = next(numbers)
        match type_name:
            case "bool":
                return True
            # Out of the range of the narrower and of the unsigned types.
            case "int32":
                return -number
            case "int64":
                return -(2**40) - number
            case "uint32":
                return 2**31 + number
            case "uint64":
                return 2**63 + number
            case "double":
                return number + 0.5
            case "string":
                return f"text-{number}"
            case "bytes":
                return b"\xff\x00" + str(number).encode()
        if type_name in self.enums:
            members = sorted(set(self.enums[type_name].values()) - {0})
            return members[number % len(members)]
        return self._sample(self.messages[type_name], numbers, depth - 1) if depth else {}

    def _encode_field(self, field: Field, value: Value, *, packed: bool) -> bytes:
        if isinstance(value, dict) and field.map_key:
            entries = (
                self._encode_one(1, field.map_key, key, packed=packed)
                + self._encode_one(2, field.type, item, packed=packed)
                for key, item in value.items()
            )
            return b"".join(_tag(field.number, 2) + _sized(entry) for entry in entries)
        if not isinstance(value, list):
            return self._encode_one(field.number, field.type, value, packed=packed)
        if packed and field.type not in self.messages and field.type not in ("string", "bytes"):
            content = b"".join(_scalar(item)[1] for item in value)
            return _tag(field.number, 2) + _sized(content)
        return b"".join(
            self._encode_one(field.number, field.type, item, packed=packed) for item in value
        )

    def _encode_one(self, number: int, type_name: str, value: Value, *, packed: bool) -> bytes:
        if isinstance(value, dict):
            content = self.encode(self.messages[type_name], value, packed=packed)
            return _tag(number, 2) + _sized(content)
        wire_type, content = _scalar(value)
        return _tag(number, wire_type) + content


def _field(line: str, package: str) -> Field:
    match = _FIELD.fullmatch(line)
    if match is None:
        raise ValueError(f"odd line: {line}")
    type_name = match["value"] or match["type"]
    return Field(
        number=int(match["number"]),
        name=match["name"],
        type=type_name if type_name in SCALARS else _full_name(type_name, package),
        repeated=match["repeated"] is not None,
        map_key=match["key"],
        flags=frozenset(match["flags"].split()),
    )


def _full_name(name: str, package: str) -> str:
    return name if name.startswith(("google.", "containerd.")) else f"{package}.{name}"


def _scalar(value: Value) -> tuple[int, bytes]:
    """Wire type and bytes; the Python type says enough, for no table has fixed or zigzag types."""
    match value:
        case float():
            return 1, struct.pack("<d", value)
        case str():
            return 2, _sized(value.encode())
        case bytes():
            return 2, _sized(value)
        case int():
            # Negative numbers take ten bytes, whatever the width of the type.
            return 0, _varint(value % 2**64)
    raise TypeError(f"no scalar: {value!r}")


def _tag(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _sized(content: bytes) -> bytes:
    return _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
