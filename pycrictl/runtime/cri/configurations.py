"""Loading and validation of pod and container configurations (JSON or YAML), and credentials.

A file is a CRI ``PodSandboxConfig`` or ``ContainerConfig``. Keys are the API's names or their
camelCase; enums are names or numbers; integers of 64 bits are exact, as numbers or as text; a value
of null is as if its key were absent. A key that the API does not define is an error with file, line
and field: a runtime would silently ignore it.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, Final, TypeVar

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from pycrictl._proto import cri_pb2
from pycrictl.base import yamltree
from pycrictl.base.config import read_text
from pycrictl.base.errors import ConfigError, UsageError
from pycrictl.base.units import quote
from pycrictl.base.yamltree import Member, Node, NodeType, Problem

M = TypeVar("M", bound=Message)


_PATH_LIMIT_CHARS: Final = 4096
_NOUNS: Final = {
    "mapping": "a mapping",
    "list": "a list",
    "string": "text",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
}


INTEGERS: Final = {
    FieldDescriptor.TYPE_INT32: range(-(2**31), 2**31),
    FieldDescriptor.TYPE_UINT32: range(2**32),
    FieldDescriptor.TYPE_INT64: range(-(2**63), 2**63),
    FieldDescriptor.TYPE_UINT64: range(2**64),
}

_WIDE: Final = (FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_UINT64)

# SIGTERM in the API's own file is SIGNAL_SIGTERM in the generated code.
_UNSHOWN_PREFIXES: Final = {"Signal": "SIGNAL_"}


@cache
def fields_by_key(message: Descriptor) -> Mapping[str, FieldDescriptor]:
    """Return the fields by their keys: the name in the API, and JSON's camelCase."""
    return {key: field for field in message.fields for key in (field.name, field.json_name)}


def enum_names(enum: EnumDescriptor) -> dict[str, int]:
    prefix = _UNSHOWN_PREFIXES.get(enum.name, "")
    names: dict[str, int] = {}
    for value in enum.values:
        names[value.name.removeprefix(prefix)] = value.number
        names[value.name] = value.number
    return names


def map_value(field: FieldDescriptor) -> FieldDescriptor | None:
    """Return the field of a map's values; None for any other field. Keys of maps are text."""
    entry = field.message_type
    if entry is None or not entry.GetOptions().map_entry:
        return None
    return entry.fields_by_name["value"]


# Loading


Warn = Callable[[str], None]


def load_pod(path: str, warn: Warn) -> cri_pb2.PodSandboxConfig:
    """Read a pod's configuration; a missing ``metadata.uid`` becomes a random UUID."""
    config = _load(path, "pod config", cri_pb2.PodSandboxConfig(), POD_REQUIRES, warn)
    config.metadata.uid = config.metadata.uid or str(uuid.uuid4())
    if config.HasField("linux") and not config.linux.cgroup_parent:
        file = f"pod config {quote(path, _PATH_LIMIT_CHARS)}"
        why = "the pod does not get its own cgroup; 'pycrictl runtime-config' shows the driver"
        warn(f"{file} sets no linux.cgroup_parent: {why}")
    return config


def load_container(path: str, warn: Warn) -> cri_pb2.ContainerConfig:
    """Read a container's configuration, and fill ``image.user_specified_image``."""
    config = _load(path, "container config", cri_pb2.ContainerConfig(), CONTAINER_REQUIRES, warn)
    if not config.image.user_specified_image:
        config.image.user_specified_image = config.image.image
    return config


POD_REQUIRES: Final = (("metadata", "name"), ("metadata", "namespace"))
"""Key paths of the texts that a pod's configuration must contain."""

CONTAINER_REQUIRES: Final = (("metadata", "name"), ("image", "image"))
"""Key paths of the texts that a container's configuration must contain."""


def parse(text: str, message: Message, required: tuple[tuple[str, ...], ...] = ()) -> Node:
    """Fill ``message`` from a document, and return its root; raise the first ``Problem``."""
    root = yamltree.parse(text)
    _fill(message, root, "")
    for keys in required:
        _require(message, root, keys)
    return root


def _load(path: str, what: str, message: M, required: tuple[tuple[str, ...], ...], warn: Warn) -> M:
    if not path:  # it would mean the working directory
        raise UsageError(f"the name of the {what} is empty", hint="is a script's variable not set?")
    file = f"{what} {quote(path, _PATH_LIMIT_CHARS)}"
    try:
        root = parse(read_text(path), message, required)
    except Problem as error:
        raise UsageError(f"{file}, line {error.line}: {error}", hint=error.hint) from None
    except ConfigError as error:
        raise UsageError(f"{file}: {error.message}") from None
    except (OSError, ValueError) as error:  # a path may hold a NUL
        reason = error.strerror if isinstance(error, OSError) else None
        raise UsageError(f"cannot read {file}: {reason or error}") from None
    if root.next_line:
        warn(f"{file}: {yamltree.UNREAD.format(root.next_line)}")
    return message


def _require(message: Message, root: Node, keys: tuple[str, ...]) -> None:
    value: Any = message
    line, members = root.line, root.members
    for key in keys:
        value = getattr(value, key)
        found = next((member for member in members if member.key == key), None)
        line, members = (found.line, found.node.members) if found else (line, [])
    if not value:
        raise Problem(f"{'.'.join(keys)} is missing or empty", line)


def _fill(message: Message, node: Node, path: str) -> None:
    _expect("mapping", node, path)
    fields = fields_by_key(message.DESCRIPTOR)
    seen: set[str] = set()
    for member in node.members:
        field = fields.get(member.key)
        if field is None:
            raise _unknown_key(member, path, list(fields))
        if member.node.type == "null":  # as if the key were absent
            continue
        where = f"{path}.{member.key}" if path else member.key
        if field.name in seen:
            raise Problem(f"{where} is given twice", member.line)
        seen.add(field.name)
        _set(message, field, member.node, where)


def _unknown_key(member: Member, path: str, known: list[str]) -> Problem:
    near = get_close_matches(member.key, known, n=1)
    if not near:  # differs only in case, which crictl's loader ignores
        near = [key for key in known if key.lower() == member.key.lower()]
    prefix = f"{path}: " if path else ""
    hint = f'did you mean "{near[0]}"?' if near else None
    return Problem(f"{prefix}unknown key {quote(member.key)}", member.line, hint=hint)


def _set(message: Message, field: FieldDescriptor, node: Node, path: str) -> None:
    target: Any = getattr(message, field.name)
    if (in_map := map_value(field)) is not None:
        _expect("mapping", node, path)
        for member in node.members:
            where = f"{path}[{quote(member.key)}]"
            key = member.key
            if key in target:
                raise Problem(f"{where} is given twice", member.line)
            is_null = member.node.type == "null"
            target[key] = in_map.default_value if is_null else _scalar(in_map, member.node, where)
    elif field.is_repeated:
        _expect("list", node, path)
        for index, item in enumerate(node.items):
            where = f"{path}[{index}]"
            if field.message_type is not None:
                _fill(target.add(), item, where)
            else:
                target.append(_scalar(field, item, where))
    elif field.message_type is not None:
        target.SetInParent()
        _fill(target, node, path)
    else:
        setattr(message, field.name, _scalar(field, node, path))


def _scalar(field: FieldDescriptor, node: Node, path: str) -> Any:
    if field.type in INTEGERS:
        return _integer(field, node, path)
    if field.enum_type is not None:
        return _enum(field, node, path)
    if field.type == FieldDescriptor.TYPE_BOOL:
        _expect("boolean", node, path)
        return node.value
    _expect("string", node, path)
    text = str(node.value)
    # The values of environment variables are bytes in the API and plain text in files.
    return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text


def _integer(field: FieldDescriptor, node: Node, path: str) -> int:
    limits, value = INTEGERS[field.type], node.value
    given = node.text if node.type == "number" else _NOUNS[node.type]
    if isinstance(value, str) and field.type in _WIDE:
        given = quote(value)
        value = int(value) if re.fullmatch("-?[0-9]{1,20}", value) else value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is int and value in limits:
        return value
    wanted = f"a whole number from {limits.start} to {limits.stop - 1}"
    raise Problem(f"{path} must be {wanted}, not {given}", node.line)


def _enum(field: FieldDescriptor, node: Node, path: str) -> int:
    assert field.enum_type is not None
    names = enum_names(field.enum_type)
    if node.type == "string" and node.value in names:
        return names[str(node.value)]
    if node.type == "number" and node.value in names.values():
        return int(node.value)  # type: ignore[arg-type]  # a float such as 2.0 is one of them
    given = quote(str(node.value)) if node.type in ("string", "number") else _NOUNS[node.type]
    first_names = {number: name for name, number in reversed(names.items())}
    known = ", ".join(f"{first_names[number]} ({number})" for number in sorted(first_names)[:8])
    more = ", …" if len(first_names) > 8 else ""
    raise Problem(f"{path}: {given} is not one of {known}{more}", node.line)


def _expect(wanted: NodeType, node: Node, path: str) -> None:
    if node.type == wanted:
        return
    needs_quotes = wanted == "string" and node.type in ("number", "boolean")
    hint = "put it in quotes" if needs_quotes else None
    raise Problem(
        f"{path or 'the document'} must be {_NOUNS[wanted]}, not {_NOUNS[node.type]}",
        node.line,
        hint=hint,
    )


def auth_config(
    *, creds: str = "", auth: str = "", username: str = "", password: str = ""
) -> cri_pb2.AuthConfig | None:
    """Make the credentials of a pull; None if none were given.

    ``creds`` is ``USER[:PASSWORD]``, ``auth`` the Base64 of the same, passed to the
    runtime undecoded; ``username`` overrides both. No error message contains a secret.
    """
    if username:
        return cri_pb2.AuthConfig(username=username, password=password)
    if creds and auth:
        raise UsageError("--creds and --auth cannot be combined")
    if auth:
        return cri_pb2.AuthConfig(auth=auth)
    if creds:
        user, _, secret = creds.partition(":")
        if not user:
            raise UsageError("--creds needs a user name before the colon")
        return cri_pb2.AuthConfig(username=user, password=secret)
    return None
