"""JSON from other programs: parsed within limits, and then read field by field. Pure.

For a value of the wrong type, a reader here returns the empty value of the type that it reads.
Where wrong values must be noticed, ``fit`` checks against a schema and reports what it left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, NoReturn, TypeVar

from pycrictl.base.units import INT64_MAX, escape

MAX_CHARS: Final = 4096
"""Longest text by default: readers truncate a longer one, ``fit`` rejects it."""

MAX_ITEMS: Final = 1000
"""Longest list, unless its schema has another limit."""

T = TypeVar("T")

_INT32_MAX: Final = 2**31 - 1
_BEFORE_VALUES: Final = (b",", b"{", b"[")
_MOMENT: Final = r"(?a)\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)"


def parse(content: str | bytes | bytearray, *, most: int = 0) -> Any:
    """Return the value of a JSON text (RFC 8259, so without NaN and infinity).

    At most ``most`` values are allowed, counted before any is created; 0 means any number.

    Raises:
        ValueError: the text is not JSON, has too many values or digits, or is nested too deeply.
    """
    if most:
        whole = content.encode() if isinstance(content, str) else content
        if sum(map(whole.count, _BEFORE_VALUES)) > most:
            raise ValueError(f"it has more than {most} values")
    try:
        return _DECODER.decode(content if isinstance(content, str) else content.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parsed(content: str | bytes | bytearray) -> dict[str, Any]:
    """Return the object of a JSON text; empty if the text is not a JSON object."""
    try:
        return mapping(parse(content))
    except ValueError:
        return {}


def mapping(value: object, *path: str) -> dict[str, Any]:
    """Return an object, or the one at a path in it; empty if there is none."""
    for key in path:
        value = mapping(value).get(key)
    return value if isinstance(value, dict) else {}


def mappings(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def text(value: object, most: int = MAX_CHARS) -> str:
    """Return a text, truncated to ``most`` characters; empty if the value is not one."""
    return value[:most] if isinstance(value, str) else ""


def texts(value: object, most: int = MAX_CHARS) -> list[str]:
    return (
        [item[:most] for item in value if isinstance(item, str)] if isinstance(value, list) else []
    )


def count(value: object, most: int = INT64_MAX) -> int:
    """Return a whole number from 0 to ``most``; 0 if the value is not one."""
    return value if type(value) is int and 0 <= value <= most else 0


def whole(value: object) -> int:
    """Return a whole number of 64 bits, even if written as ``5.0``; 0 if the value is not one."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and -INT64_MAX - 1 <= value <= INT64_MAX else 0


def flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def number(value: object) -> float | None:
    """Return a number that is not negative; None if the value is not one."""
    if type(value) not in (int, float):
        return None
    return float(value) if 0 <= value <= INT64_MAX else None  # type: ignore[operator,arg-type]


def moment(value: object) -> float:
    """Return a time as the API server writes it (RFC 3339), in Unix seconds; 0 if it is not one."""
    if not isinstance(value, str) or not re.fullmatch(_MOMENT, value):
        return 0.0
    try:
        return datetime.fromisoformat(value).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def strict(value: object, read: Callable[[object], T]) -> T | None:
    """Return a value as ``read``, a reader of this module, returns it; None for null.

    Raises:
        ValueError: the value has the wrong type, or exceeds the limits of ``read``.
    """
    if value is None:
        return None
    if (reading := read(value)) != value:
        raise ValueError("a value has the wrong type")
    return reading


def cleaned(value: Any) -> Any:
    if isinstance(value, dict):
        return {escape(key): cleaned(item) for key, item in value.items()}
    if isinstance(value, list):
        return [cleaned(item) for item in value]
    return escape(value) if isinstance(value, str) else value


def fit(value: object, schema: Mapping[str, Any], wrong: list[str], path: str = "") -> Any:
    """Return the part of a JSON value that fits a schema, with texts escaped; None if nothing fits.

    Args:
        schema: an OpenAPI schema. Unless it says otherwise, numbers must not be negative, and lists
            and texts have default limits. Unknown and null fields are left out.
        wrong: receives the paths of fields that do not fit.
    """
    fitted = _KINDS[schema["type"]](value, schema, wrong, path)
    if fitted is None and path:
        wrong.append(path)
    return fitted


def _object(
    value: object, schema: Mapping[str, Any], wrong: list[str], path: str
) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        return None
    fitted = {}
    for key, inner in schema.get("properties", {}).items():
        item = value.get(key)
        if item is not None:
            item = fit(item, inner, wrong, f"{path}.{key}" if path else key)
        if item is not None:
            fitted[key] = item
    return fitted if fitted.keys() >= set(schema.get("required", ())) else None


def _array(
    value: object, schema: Mapping[str, Any], wrong: list[str], path: str
) -> list[Any] | None:
    if not isinstance(value, list) or len(value) > schema.get("maxItems", MAX_ITEMS):
        return None
    fitted = [fit(item, schema["items"], wrong, f"{path}[]") for item in value]
    return [item for item in fitted if item is not None]


def _string(value: object, schema: Mapping[str, Any], *_: object) -> str | None:
    if not isinstance(value, str) or len(value) > schema.get("maxLength", MAX_CHARS):
        return None
    if value not in schema.get("enum", (value,)):
        return None
    if "pattern" in schema and not re.fullmatch(schema["pattern"], value):
        return None
    if schema.get("format") == "date-time" and not moment(value):
        return None
    return escape(value)


def _number(value: object, schema: Mapping[str, Any], *_: object) -> float | None:
    if type(value) is not int and not (type(value) is float and schema["type"] == "number"):
        return None
    top = _INT32_MAX if schema.get("format") == "int32" else INT64_MAX
    least, most = schema.get("minimum", 0), schema.get("maximum", top)
    return value if least <= value <= most else None  # NaN fails this


def _boolean(value: object, *_: object) -> bool | None:
    return value if isinstance(value, bool) else None


_KINDS: Final[dict[str, Callable[[object, Mapping[str, Any], list[str], str], Any]]] = {
    "object": _object,
    "array": _array,
    "string": _string,
    "integer": _number,
    "number": _number,
    "boolean": _boolean,
}


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse)
