"""kubectl's JSONPath on documents: the parts in common use. Pure.

A *path* is ``.metadata.name``, ``$.items[?(@.state=="X")].id`` or ``{.id}``. Its steps are

- ``.name``: any characters but ``.,[]${}@()=<>!&|`` and spaces, unless escaped by a backslash;
- ``..name``: at any depth;
- ``*`` and ``[*]``: all values of a list or an object;
- ``[0]``, ``[-1]``, ``[1:]``, ``[:2]``: elements of a list;
- ``['name']``: this key;
- ``[?(@.a)]``, ``[?(@.a == 'x')]``: elements in which the path has a value, or a value for which
  the comparison (with text, a number, ``true`` or ``false``) holds.

A *template* is text with paths in braces, and ``{range PATH}…{end}`` around parts that are
repeated for each match. Missing data yields nothing, and values of different types are unequal.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from pycrictl.base.errors import UsageError
from pycrictl.base.units import escape, quote
from pycrictl.show.datatext import compact_json

MAX_VALUES: Final = 1_000_000
"""The most values that a step may select; several ``..`` in a row could select any number."""

_OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_FILTER_HINT: Final = (
    "a filter is [?(@.NAME)] or [?(@.NAME == VALUE)], also with != < <= > >=; text is in quotes"
)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r"}

# All expressions match in linear time.
_QUOTED: Final = r"""(?s:'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+\")"""
_INTEGER: Final = r"-?[0-9]{1,15}"
_NAME: Final = r"(?s:[^.,\[\]${}@ ()=<>!&|\t\n\\]|\\.)"
_CONSTANT: Final = rf"{_QUOTED}|true|false|[+-]?[0-9]{{1,15}}(?:\.[0-9]{{1,15}})?"
_FILTER: Final = (
    rf"\?\(\s*(?P<operand>@?(?:\.{_NAME}++|\[(?:{_QUOTED}|{_INTEGER})\])*+)\s*"
    rf"(?:(?P<operator>[=!<>]=|[<>])\s*(?P<constant>{_CONSTANT})\s*)?\)"
)
_STEP: Final = (
    rf"(?P<dots>\.\.?)(?P<name>{_NAME}*+)|\[\s*(?:(?P<all>\*)|(?P<key>{_QUOTED})|"
    rf"(?P<bounds>(?:{_INTEGER})?:(?:{_INTEGER})?|{_INTEGER})|{_FILTER})\s*\]"
)


class JsonPathError(UsageError):
    """A path or a template is malformed, or selects too much."""


Step = Callable[[Any], Sequence[Any]]
"""Returns the values selected from a value."""


class JsonPath:
    def __init__(
        self, text: str, *, aliases: Mapping[str, str] | None = None, at_top: bool = True
    ) -> None:
        """Parse a path; it may lack the leading dot, and may be in braces.

        ``aliases`` maps other names to top-level keys of the document. They apply to paths that
        start with ``$``, and if ``at_top`` to all others.
        """
        inner = text.strip()
        if inner.startswith("{") and inner.endswith("}"):
            inner = inner[1:-1].strip()
        if not inner:
            raise JsonPathError(f"{quote(text)} is not a JSONPath: it is empty")
        self._is_absolute = inner[0] == "$"
        path = inner[inner[0] in "$@" :]
        self._steps: list[Step] = []
        position = 0
        if path and path[0] not in ".[":
            path = f".{path}" if path == inner else path
        while position < len(path):
            match = re.compile(_STEP).match(path, position)
            if match is None or (match["dots"] == ".." and not match["name"]):
                hint = _FILTER_HINT if "?" in path else None
                rest = quote(path[position:])
                raise JsonPathError(
                    f"{quote(text)} is not a JSONPath: {rest} is not expected", hint=hint
                )
            names = (aliases or {}) if (self._is_absolute or at_top) and not self._steps else {}
            self._steps += _steps(match, names)
            position = match.end()

    def find(self, document: Any, top: Any = None) -> Sequence[Any]:
        """Return the selected values; ``top`` is what ``$`` stands for, if not the document."""
        values = [top if self._is_absolute and top is not None else document]
        for step in self._steps:
            values = [inner for value in values for inner in step(value)]
            if len(values) > MAX_VALUES:
                raise JsonPathError("the JSONPath selects too many values")
        return values


def _steps(match: re.Match[str], aliases: Mapping[str, str]) -> Iterator[Step]:
    if match["dots"] == "..":
        yield _containers
    if match["all"] or match["name"] == "*":
        yield _children
    elif name := match["name"]:
        name = re.sub(r"(?s)\\(.)", r"\1", name)
        yield partial(_member, aliases.get(name, name) if match["dots"] == "." else name)
    elif match["key"]:
        yield partial(_member, _unquoted(match["key"]))
    elif match["bounds"]:
        bounds = [int(bound) if bound else None for bound in match["bounds"].split(":")]
        if len(bounds) == 1:
            index = int(match["bounds"])
            bounds = [index, index + 1 or None]
        yield partial(_elements, slice(*bounds))
    elif match["operand"] is not None:
        operand = JsonPath(match["operand"] or "@")
        constant = _constant(match["constant"] or "true")
        yield partial(_matching, operand, match["operator"], constant)


def _children(value: Any) -> Sequence[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else ()


def _containers(value: Any) -> Sequence[Any]:
    """Return a value and the lists and objects in it, from the top down."""
    containers, todo = [], [value]
    while todo:
        containers.append(todo.pop())
        inner = reversed(_children(containers[-1]))
        todo += [child for child in inner if isinstance(child, dict | list)]
    return containers


def _member(name: str, value: Any) -> Sequence[Any]:
    return (value[name],) if isinstance(value, dict) and name in value else ()


def _elements(bounds: slice, value: Any) -> Sequence[Any]:
    return value[bounds] if isinstance(value, list) else ()


def _matching(operand: JsonPath, sign: str | None, constant: Any, value: Any) -> Sequence[Any]:
    """Return the elements that have a value, and one that compares as wanted."""
    return [
        child
        for child in _children(value)
        for value_found in operand.find(child)
        if sign is None or _compares(value_found, sign, constant)
    ]


def _compares(left: Any, sign: str, right: Any) -> bool:
    kinds = {float if type(value) is int else type(value) for value in (left, right)}
    if len(kinds) > 1:
        return sign == "!="
    return (kinds <= {float, str} or sign in ("==", "!=")) and _OPERATORS[sign](left, right)


def _unquoted(text: str) -> str:
    return re.sub(r"(?s)\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), text[1:-1])


def _constant(text: str) -> str | bool | float:
    if text[0] in "'\"":
        return _unquoted(text)
    return text == "true" if text in ("true", "false") else float(text)


# Templates

MAX_NESTING: Final = 50
"""Maximum nesting of ``range`` in a template."""

_ACTION: Final = rf"\{{((?s:{_QUOTED}|\\.|[^}}'\"\\])*+)\}}"
_RANGE: Final = r"range(?=[\s.$@\[]|$)"


Node = Callable[[Any, Any], Iterator[str]]
"""Yields the output of a part of a template; takes the current value and the document."""


class JsonPathTemplate:
    def __init__(self, text: str, *, aliases: Mapping[str, str] | None = None) -> None:
        """Parse a template; text without braces is a path."""
        nodes, ended = _parsed(_parts(text), aliases or {}, 0)
        self._nodes = nodes if "{" in text else [partial(_found, JsonPath(text, aliases=aliases))]
        if ended:
            raise JsonPathError(f"{{end}} without {{range}} in {quote(text)}")

    def render(self, document: Any) -> str:
        return "".join(part for node in self._nodes for part in node(document, document))


def value_text(value: Any) -> str:
    """Return a value on one line: strings as they are, objects and lists as compact JSON."""
    return escape(value if isinstance(value, str) else compact_json(value))


def _text(text: str, *_: Any) -> Iterator[str]:
    yield text


def _found(path: JsonPath, current: Any, top: Any) -> Iterator[str]:
    yield " ".join(map(value_text, path.find(current, top)))


def _repeated(path: JsonPath, body: Sequence[Node], current: Any, top: Any) -> Iterator[str]:
    for item in path.find(current, top):
        for node in body:
            yield from node(item, top)


def _parts(text: str) -> Iterator[tuple[str, bool]]:
    """Split a template into its parts, each with whether it stood in braces."""
    position = 0
    while (start := text.find("{", position)) >= 0:
        yield text[position:start], False
        action = re.compile(_ACTION).match(text, start)
        if action is None:
            raise JsonPathError(f'"}}" is missing in {quote(text)}')
        yield action[1].strip(), True
        position = action.end()
    yield text[position:], False


def _parsed(
    parts: Iterator[tuple[str, bool]], aliases: Mapping[str, str], depth: int
) -> tuple[list[Node], bool]:
    """Return the nodes up to ``{end}`` or the end of the text, and whether ``{end}`` was found."""
    nodes: list[Node] = []
    for part, is_action in parts:
        if not is_action:
            nodes.append(partial(_text, part))
        elif part == "end":
            return nodes, True
        elif re.fullmatch(_QUOTED, part):
            nodes.append(partial(_text, _unquoted(part)))
        elif re.match(_RANGE, part):
            if depth == MAX_NESTING:
                raise JsonPathError("{range} is nested too deeply")
            path = JsonPath(part[len("range") :], aliases=aliases, at_top=not depth)
            body, ended = _parsed(parts, aliases, depth + 1)
            if not ended:
                raise JsonPathError("{range} without {end}")
            nodes.append(partial(_repeated, path, body))
        else:
            path = JsonPath(part or "@", aliases=aliases, at_top=not depth)
            nodes.append(partial(_found, path))
    return nodes, False
