"""Protobuf messages as plain data: merged, picked from, and written as YAML. Pure.

A *document* consists of ``dict`` (with ``str`` keys), ``list``, ``str``, ``int``, ``float``,
``bool`` and ``None``. A **message document** is the data of ``jsontext``. A **status document** is
``{"status": …}`` with the entries of the response's ``info`` map next to it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from google.protobuf.message import Message

from pycrictl.show import jsontext

Document = dict[str, Any]

MAX_NESTING: Final = 100
"""Levels up to which an ``info`` value is read as JSON; deeper ones could not be written again."""

MAX_INTEGER_DIGITS: Final = 4000
"""Python refuses to convert more than 4300."""

_LONE_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")


def message_document(message: Message) -> Document:
    """Return the proto3 JSON mapping, defaults included."""
    document: Document = json.loads(jsontext.message_json(message))
    return document


def list_document(name: str, messages: Iterable[Message]) -> Document:
    """Return the mapping of a response whose only field, the list ``name``, holds ``messages``."""
    document: Document = json.loads(jsontext.list_json(name, messages))
    return document


def status_document(
    status: Message,
    info: Mapping[str, str] | None = None,
    *,
    unset_as_null: bool = False,
    times: Mapping[str, str] | None = None,
    extras: Mapping[str, Any] | None = None,
) -> Document:
    """Return a status and what else the runtime reports, as the inspecting commands show it.

    Args:
        status: the message below ``"status"``.
        info: the response's ``info`` map; each entry becomes a sibling of ``"status"``.
        unset_as_null: whether sub-messages that the status lacks are None instead of missing.
        times: texts that replace fields of the status, by their JSON names.
        extras: further siblings of ``"status"``.
    """
    document = message_document(status)
    if unset_as_null:
        for field in status.DESCRIPTOR.fields:
            if field.message_type is not None and not field.is_repeated:
                document.setdefault(field.json_name, None)
    document.update(times or {})
    siblings = {key: info_value(text) for key, text in (info or {}).items()}
    return {**siblings, **(extras or {}), "status": document}


def declared_document(message: Message) -> Document:
    """Return the fields of ``message`` that are set, by their names in the proto file."""
    document: Document = {}
    for field, value in message.ListFields():
        if field.message_type is None:
            document[field.name] = list(value) if field.is_repeated else value
        elif field.is_repeated:
            document[field.name] = [declared_document(item) for item in value]
        else:
            document[field.name] = declared_document(value)
    return document


def info_value(text: str) -> Any:
    """Return a value of an ``info`` map: data if it is a JSON object, else text without quotes.

    Integers of any size stay exact. Text that is not valid JSON, or is nested deeper than
    MAX_NESTING, is shown as it is.
    """
    if not text.startswith("{"):
        return text.strip('"')
    try:
        return _sound(json.loads(text, parse_int=_parse_integer, parse_constant=_refuse_constant))
    except (ValueError, RecursionError):
        return text


def _parse_integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= MAX_INTEGER_DIGITS else float(digits)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _sound(value: Any, depth: int = 0) -> Any:
    """Return ``value`` without strings that cannot be written again.

    Raises:
        ValueError: it is nested too deeply, or a number is beyond the range of a float.
    """
    if depth > MAX_NESTING:
        raise ValueError("nested too deeply")
    if isinstance(value, str):
        return _LONE_SURROGATE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, dict):
        return {_sound(key): _sound(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_sound(item, depth + 1) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("number out of range")
    return value
