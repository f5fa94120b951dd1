"""Wire tables: the facts of a gRPC API as text.

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
from dataclasses import dataclass, field

SCALARS = ("bool", "int32", "int64", "uint32", "uint64", "double", "string", "bytes")

_FIELD = re.compile(
    r"(?P<number>\d+) (?P<name>\w+) (?P<repeated>repeated )?"
    r"(?:map<(?P<key>\w+),(?P<value>[\w.]+)>|(?P<type>[\w.]+))(?P<flags>(?: \w+)*)"
)


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
