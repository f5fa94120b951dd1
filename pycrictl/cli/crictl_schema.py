"""The JSON Schemas of crictl, which say less than the program's own."""

from __future__ import annotations

from typing import Any, Final

NEWER_FIELDS: Final = frozenset(("mount_options",))
"""Fields that the API has got since."""

_ROOT: Final = ("$schema", "$id", "$ref")
_LIMITS: Final = ("minimum", "maximum", "enum")


def plain(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without requirements, ranges, names of enums and second spellings."""
    definitions = {
        name: _definition(definition)
        for name, definition in schema["$defs"].items()
        if "properties" in definition
    }
    return {**{key: schema[key] for key in _ROOT}, "$defs": definitions}


def _definition(definition: dict[str, Any]) -> dict[str, Any]:
    spellings = definition.get("dependentSchemas", {})
    properties = {
        name: _value(value)
        for name, value in definition["properties"].items()
        if name not in spellings and name not in NEWER_FIELDS
    }
    return {"properties": properties, "additionalProperties": False, "type": "object"}


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return [_value(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("$ref", "").endswith("int64"):
        return {"type": "integer"}
    return {key: _value(item) for key, item in value.items() if key not in _LIMITS}
