"""JSON text, of protobuf messages and of data. Pure.

Messages follow the proto3 JSON mapping: lowerCamelCase names in the order of the proto file, 64-bit
integers as strings, enums as names, bytes as base64, maps sorted by key. Every field without
presence is written, sub-messages only where they are set. Data is written with all keys sorted.
Both are indented by two spaces and have one space after a colon.

A writer is compiled for each message type once and goes from message to text without data in
between: google's ``json_format`` followed by ``json.dumps`` takes five times as long, which shows
with the thousands of containers of a large node.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable, Iterable
from decimal import Decimal
from json.encoder import encode_basestring as quote_string
from json.encoder import encode_basestring_ascii
from typing import Any, Final, cast

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

INDENT: Final = "  "

_Write = Callable[[Any, str], str]
"""Turns a value into text; the second argument is its line break and indentation."""

# The proto file names SIGNAL_SIGTERM what crictl shows as SIGTERM.
_UNSHOWN_PREFIXES: Final = {"Signal": "SIGNAL_"}

_INT64_TYPES: Final = frozenset(
    {
        FieldDescriptor.TYPE_INT64,
        FieldDescriptor.TYPE_UINT64,
        FieldDescriptor.TYPE_SINT64,
        FieldDescriptor.TYPE_FIXED64,
        FieldDescriptor.TYPE_SFIXED64,
    }
)

_writers: dict[Descriptor, _Write] = {}


def message_json(message: Message) -> str:
    return _escape_controls(_message_text(message, "\n"))


def list_json(name: str, messages: Iterable[Message]) -> str:
    """Return the JSON of a response whose only field, the list ``name``, holds ``messages``."""
    inner = "\n" + INDENT
    items = [_message_text(message, inner + INDENT) for message in messages]
    parts = [f"{quote_string(name)}: {_wrap('[', items, ']', inner)}"]
    return _escape_controls(_wrap("{", parts, "}"))


def document_json(document: Any) -> str:
    """Return data as JSON with sorted keys; ``<``, ``>`` and ``&`` are escaped as in Go."""
    return _for_html(_document_text(document, "\n"))


def compact_json(document: Any) -> str:
    """Return data as ``document_json`` does, but on one line and without spaces."""
    return _for_html(_compact_text(document))


def number_text(value: int | float) -> str:
    """Return a finite number as Go writes it in JSON: ``1.5``, ``2``, ``0.00001``, ``1e+30``."""
    text = repr(value).removesuffix(".0")
    mantissa, e, exponent = text.partition("e")
    if not e:
        return text
    if -7 < int(exponent) < 21:
        return format(Decimal(text), "f")
    return f"{mantissa}e{int(exponent):+d}"


def _escape_controls(text: str) -> str:
    """Escape in the strings of a JSON ``text`` what is not printable, as ``units.escape`` does.

    JSON itself escapes the control characters below 0x20 only. Terminals obey others as well, and
    those that change the direction of writing, or are invisible, hide what is there.
    """
    if text.isascii() and "\x7f" not in text:
        return text
    escapes = {ord(char): encode_basestring_ascii(char)[1:-1] for char in unprintable(text)}
    return text.translate(escapes | {0x7F: "\\u007f"})


def unprintable(text: str) -> set[str]:
    """Return the characters of ``text`` that are not printable, but for line breaks and tabs."""
    if text.isprintable():
        return set()
    return {char for char in set(text) if not char.isprintable() and char not in "\n\t"}


def _for_html(text: str) -> str:
    for char in "<>&\u2028\u2029":
        if char in text:
            text = text.replace(char, f"\\u{ord(char):04x}")
    return _escape_controls(text)


def _wrap(opening: str, parts: list[str], closing: str, newline: str = "\n") -> str:
    """Join ``parts``, one a line and indented, between brackets that stand at ``newline``."""
    if not parts:
        return opening + closing
    inner = newline + INDENT
    return opening + inner + ("," + inner).join(parts) + newline + closing


def _document_text(value: Any, newline: str) -> str:
    if isinstance(value, str):
        return quote_string(value)
    inner = newline + INDENT
    if isinstance(value, dict):
        parts = [
            f"{quote_string(key)}: {_document_text(value[key], inner)}" for key in sorted(value)
        ]
        return _wrap("{", parts, "}", newline)
    if isinstance(value, list):
        return _wrap("[", [_document_text(item, inner) for item in value], "]", newline)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return number_text(value)


def _compact_text(value: Any) -> str:
    if isinstance(value, dict):
        parts = (f"{quote_string(key)}:{_compact_text(value[key])}" for key in sorted(value))
        return f"{{{','.join(parts)}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_compact_text, value))}]"
    return _document_text(value, "")


def _message_text(message: Message, newline: str) -> str:
    return _writer(cast("Descriptor", message.DESCRIPTOR))(message, newline)


def _writer(descriptor: Descriptor) -> _Write:
    if descriptor in _writers:
        return _writers[descriptor]
    fields: list[tuple[str, str, bool, _Write | None]] = []

    def write(message: Message, newline: str) -> str:
        inner = newline + INDENT
        parts = []
        for prefix, name, has_presence, write_value in fields:
            if has_presence and not message.HasField(name):
                continue
            value = getattr(message, name)
            # Most fields are plain strings, which need no call.
            text = quote_string(value) if write_value is None else write_value(value, inner)
            parts.append(prefix + text)
        return _wrap("{", parts, "}", newline)

    _writers[descriptor] = write  # before its fields, for a message may contain itself
    fields += [
        (f'"{field.json_name}": ', field.name, field.has_presence, _field_writer(field))
        for field in descriptor.fields
    ]
    return write


def _field_writer(field: FieldDescriptor) -> _Write | None:
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        return _map_writer(inner)
    write = _value_writer(field)
    return _list_writer(write) if field.is_repeated else write


def _list_writer(write: _Write | None) -> _Write:
    def write_list(values: Iterable[Any], newline: str) -> str:
        if write is None:
            return _wrap("[", [quote_string(value) for value in values], "]", newline)
        inner = newline + INDENT
        return _wrap("[", [write(value, inner) for value in values], "]", newline)

    return write_list


def _map_writer(entry: Descriptor) -> _Write:
    assert entry.fields_by_name["key"].type == FieldDescriptor.TYPE_STRING  # so everywhere in CRI
    assert entry.fields_by_name["value"].type == FieldDescriptor.TYPE_STRING

    def write_map(values: Any, newline: str) -> str:
        if not values:
            return "{}"
        parts = [f"{quote_string(key)}: {quote_string(values[key])}" for key in sorted(values)]
        return _wrap("{", parts, "}", newline)

    return write_map


def _value_writer(field: FieldDescriptor) -> _Write | None:
    if field.message_type is not None:
        return _writer(field.message_type)
    if field.enum_type is not None:
        return _enum_writer(field.enum_type)
    if field.type == FieldDescriptor.TYPE_STRING:
        return None
    if field.type in _INT64_TYPES:
        return lambda value, newline: f'"{value}"'
    if field.type == FieldDescriptor.TYPE_BOOL:
        return lambda value, newline: "true" if value else "false"
    if field.type == FieldDescriptor.TYPE_BYTES:
        return lambda value, newline: f'"{b64encode(value).decode("ascii")}"'
    if field.type == FieldDescriptor.TYPE_DOUBLE:
        return _write_double
    return lambda value, newline: str(value)


def _enum_writer(descriptor: EnumDescriptor) -> _Write:
    prefix = _UNSHOWN_PREFIXES.get(descriptor.name, "")
    # The first of several names of one number is the canonical one.
    names = {
        value.number: f'"{value.name.removeprefix(prefix)}"'
        for value in reversed(descriptor.values)
    }
    # A number without a name is written as it is.
    return lambda number, newline: names.get(number) or str(number)


def _write_double(value: float, newline: str) -> str:
    if math.isfinite(value):
        return number_text(value)
    return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'
