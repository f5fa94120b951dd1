"""Protobuf messages as plain data. Pure.

A *document* consists of ``dict`` (with ``str`` keys), ``list``, ``str``, ``int``, ``float``,
``bool`` and ``None``. A **message document** follows the proto3 JSON mapping: lowerCamelCase names
in the order of the proto file, 64-bit integers as strings, enums as names, bytes as base64, maps
sorted by key; fields without presence are always included, sub-messages only if they are set
(Google's ``json_format`` writes set fields before all others). A **status document** is
``{"status": …}`` with the entries of the response's ``info`` map next to it.
"""

from __future__ import annotations

import json
import math
import re
from base64 import b64encode
from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

Document = dict[str, Any]

NEWER_FIELDS: Final = frozenset(("mount_options",))
"""Fields that the CRI of Kubernetes 1.36 does not have; they are omitted if they are empty."""

MAX_NESTING: Final = 100
"""Nesting up to which an ``info`` value is parsed; deeper ones could not be serialized again."""

_UNSHOWN_PREFIXES: Final = {"Signal": "SIGNAL_"}
"""Prefixes that crictl omits from the names of an enum's values."""

_INT64: Final = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)
_LONE_SURROGATE: Final = r"[\ud800-\udfff]"


def message_document(message: Message) -> Document:
    document: Document = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            continue
        value, kind = getattr(message, field.name), field.message_type
        if field.name in NEWER_FIELDS and not value:
            continue
        if kind is not None and kind.GetOptions().map_entry:
            document[field.json_name] = {key: value[key] for key in sorted(value)}
        elif field.is_repeated:
            document[field.json_name] = [_value(field, item) for item in value]
        else:
            document[field.json_name] = _value(field, value)
    return document


def _value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return message_document(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        prefix = _UNSHOWN_PREFIXES.get(field.enum_type.name, "")
        return known.name.removeprefix(prefix) if known else value
    if field.cpp_type in _INT64:
        return str(value)
    if isinstance(value, bytes):
        return b64encode(value).decode("ascii")
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def status_document(
    status: Message,
    info: Mapping[str, str] | None = None,
    *,
    unset_as_null: bool = False,
    times: Mapping[str, str] | None = None,
    extras: Mapping[str, Any] | None = None,
) -> Document:
    """Return a status with the other data of its response, as the inspect commands show it.

    Entries of ``info`` and ``extras`` become siblings of ``"status"``. ``times`` maps JSON names of
    fields of the status to the texts that replace their values. With ``unset_as_null``, unset
    sub-messages are None.
    """
    document = message_document(status)
    if unset_as_null:
        for field in status.DESCRIPTOR.fields:
            if field.message_type is not None and not field.is_repeated:
                document.setdefault(field.json_name, None)
    document.update(times or {})
    siblings = {key: info_value(text) for key, text in (info or {}).items()}
    return {**siblings, **(extras or {}), "status": document}


def info_value(text: str) -> Any:
    """Return a value of an ``info`` map: parsed if it is a JSON object, else unquoted text.

    Integers of any size stay exact. Text that is not valid JSON, or is nested deeper than
    MAX_NESTING, is returned unchanged.
    """
    if not text.startswith("{"):
        return text.strip('"')
    try:
        return _sound(json.loads(text))
    except (ValueError, RecursionError):
        return text


def _sound(value: Any, depth: int = 0) -> Any:
    """Repair strings that cannot be serialized; raise ValueError for such numbers or nesting."""
    if depth > MAX_NESTING:
        raise ValueError("nested too deeply")
    if isinstance(value, str):
        return re.sub(_LONE_SURROGATE, "\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, dict):
        return {_sound(key): _sound(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_sound(item, depth + 1) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("number out of range")
    return value
