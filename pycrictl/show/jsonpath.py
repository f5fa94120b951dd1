"""kubectl's JSONPath on documents: single paths, and templates around them. Pure.

A *path* is ``.metadata.name``, ``$.items[?(@.state=="X")].id`` or ``{.id}``. Its steps are

- ``.name``: any characters but ``.,[]${}@()=<>!&|`` and spaces, unless escaped by a backslash;
- ``..name``: at any depth;
- ``*`` and ``[*]``: all values of a list or an object;
- ``[0]``, ``[-1]``, ``[1:]``, ``[::2]``: elements of a list;
- ``['name']``: this exact key, or else the path given by splitting it at dots, as in kubectl;
- ``[0,2]``, ``['a','b']``: all matches of the first, then all matches of the second;
- ``[?(@.a)]``, ``[?(@.a == 'x')]``: elements in which the path has a value, or one that compares
  as given with text, a number, ``true``, ``false`` or another path's value.

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
"""Maximum after one step; a few ``..`` in a row could select any number."""

_OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class JsonPathError(UsageError):
    reference = "jsonpath"


Selector = Callable[[Any, Any], Sequence[Any]]
"""Returns the values selected from a value; the second argument is the document (``$``)."""

Step = Sequence[Selector]


def _follow(steps: Sequence[Step], value: Any, document: Any) -> Sequence[Any]:
    values = [value]
    for step in steps:
        values = [found for select in step for each in values for found in select(each, document)]
        if len(values) > MAX_VALUES:
            raise JsonPathError("the JSONPath selects too many values")
    return values


def _children(value: Any, _: Any = None) -> Sequence[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else ()


def _containers(value: Any, _: Any) -> Sequence[Any]:
    """Return a value and the lists and objects in it, from the top down."""
    found, todo = [], [value]
    while todo:
        found.append(todo.pop())
        inner = reversed(_children(found[-1]))
        todo += [each for each in inner if isinstance(each, dict | list)]
    return found


def _member(name: str, value: Any, _: Any) -> Sequence[Any]:
    return (value[name],) if isinstance(value, dict) and name in value else ()


def _quoted_member(name: str, value: Any, document: Any) -> Sequence[Any]:
    if found := _member(name, value, document):
        return found
    return _follow([(partial(_member, part),) for part in name.split(".")], value, document)


def _elements(bounds: slice, value: Any, _: Any) -> Sequence[Any]:
    return value[bounds] if isinstance(value, list) else ()


def _matching(
    left: Selector, operator: str, right: Selector, value: Any, document: Any
) -> Sequence[Any]:
    """Return the elements that meet a condition; both sides of it must have a value."""
    found = []
    for each in _children(value):
        lefts, rights = left(each, document), right(each, document)
        if operator and (len(lefts) > 1 or len(rights) > 1):
            raise JsonPathError("a filter of the JSONPath compares several values at once")
        if lefts and rights and (not operator or _compares(lefts[0], operator, rights[0])):
            found.append(each)
    return found


def _compares(left: Any, operator: str, right: Any) -> bool:
    if _kind(left) is not _kind(right):
        return operator == "!="
    has_order = _kind(left) in (float, str)
    return (has_order or operator in ("==", "!=")) and _OPERATORS[operator](left, right)


def _kind(value: Any) -> type:
    """Return the type that decides which values can be compared; it is the same for all numbers."""
    return float if type(value) is int else type(value)


# Paths: from text to selectors

_FILTER_HINT: Final = (
    "a filter is [?(PATH)] or [?(PATH == VALUE)], also with != < <= > >=; text is in quotes"
)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r"}

_QUOTED: Final = r"""(?s:'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+\")"""
"""Matches quoted text; like all expressions here, in linear time."""

_CONSTANT: Final = r"true|false|[+-]?[0-9]{1,15}(?:\.[0-9]{1,15})?"
"""Matches a constant without quotes."""

_INTEGER: Final = r"-?[0-9]{1,15}"
_NAME: Final = r"(?s:[^.,\[\]${}@ ()=<>!&|\t\n\\]|\\.)*+"
_BARE_NAME: Final = r"\s*([^\W\d][^\s,\]]*)\s*[,\]]"
_SELECTOR: Final = (
    rf"\s*(?:(?P<all>\*)|(?P<text>{_QUOTED})|"
    rf"(?P<bounds>(?:{_INTEGER})?(?::(?:{_INTEGER})?){{1,2}}|{_INTEGER}))\s*(?P<end>[,\]])"
)
_FILTER: Final = r"\s*\?\(\s*"
_OPERATOR: Final = r"\s*([=!<>]=|[<>])\s*"
_FILTER_END: Final = r"\s*\)\s*\]"


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
        self._given = text
        self._text = inner if inner[0] in "$@.[" else f".{inner}"
        self._aliases = aliases or {}
        self._position = 0
        self._query = self._read(at_top=at_top)
        if self._position < len(self._text):
            raise self._unexpected()

    def find(self, document: Any, top: Any = None) -> Sequence[Any]:
        return self._query(document, document if top is None else top)

    def _read(self, *, at_top: bool, is_operand: bool = False) -> Selector:
        """Parse a path up to its end; a path in a filter cannot contain another filter."""
        is_absolute = self._next() == "$"
        aliases = self._aliases if is_absolute or at_top else {}
        self._position += self._next() in ("$", "@")
        steps: list[Step] = []
        while (char := self._next()) in (".", "["):
            if char == "[":
                steps.append(self._bracket(can_filter=not is_operand))
                continue
            is_deep = self._text.startswith("..", self._position)
            self._position += 1 + is_deep
            if is_deep:
                steps.append((_containers,))
                if self._next() == "[":
                    continue
            name = self._take(_NAME)[0]
            if name == "*":
                steps.append((_children,))
            elif name:
                name = re.sub(r"(?s)\\(.)", r"\1", name)
                steps.append((partial(_member, name if steps else aliases.get(name, name)),))
            elif is_deep:
                raise self._error("a name is missing")
        return lambda value, top: _follow(steps, top if is_absolute else value, top)

    def _bracket(self, *, can_filter: bool) -> Step:
        self._position += 1
        if can_filter and re.compile(_FILTER).match(self._text, self._position):
            return (self._filter(),)
        selectors: list[Selector] = []
        end = ","
        while end == ",":
            found = re.compile(_SELECTOR).match(self._text, self._position)
            if found is None:
                raise self._not_a_selector()
            self._position = found.end()
            selectors.append(_selector(found))
            end = found["end"]
        return selectors

    def _not_a_selector(self) -> JsonPathError:
        if "]" not in self._text[self._position :]:
            return JsonPathError(f'"]" is missing in {quote(self._given)}')
        if bare := re.compile(_BARE_NAME).match(self._text, self._position):
            return self._error(f"{quote(bare[1])} in brackets must be quoted")
        return self._unexpected()

    def _filter(self) -> Selector:
        self._take(_FILTER)
        left = self._operand()
        operator, right = "", left
        if re.compile(_OPERATOR).match(self._text, self._position):
            operator = self._take(_OPERATOR)[1]
            right = self._operand()
        self._take(_FILTER_END)
        return partial(_matching, left, operator, right)

    def _operand(self) -> Selector:
        if self._next() in ("$", "@", "."):
            return self._read(at_top=False, is_operand=True)
        is_text = self._next() in ("'", '"')
        value = (
            _unquoted(self._take(_QUOTED)[0]) if is_text else _constant(self._take(_CONSTANT)[0])
        )
        return lambda *_: (value,)

    def _next(self) -> str:
        return self._text[self._position : self._position + 1]

    def _take(self, pattern: str) -> re.Match[str]:
        found = re.compile(pattern).match(self._text, self._position)
        if found is None:
            raise self._unexpected()
        self._position = found.end()
        return found

    def _unexpected(self) -> JsonPathError:
        rest = self._text[self._position :]
        return self._error(f"{quote(rest)} is not expected" if rest else "it ends too early")

    def _error(self, reason: str) -> JsonPathError:
        hint = _FILTER_HINT if "?" in self._text else None
        return JsonPathError(f"{quote(self._given)} is not a JSONPath: {reason}", hint=hint)


def _unquoted(text: str) -> str:
    return re.sub(r"(?s)\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), text[1:-1])


def _constant(text: str) -> bool | int | float:
    if text in ("true", "false"):
        return text == "true"
    return float(text) if "." in text else int(text)


def _selector(found: re.Match[str]) -> Selector:
    if found["all"]:
        return _children
    if found["text"]:
        return partial(_quoted_member, _unquoted(found["text"]))
    bounds = [int(bound) if bound else None for bound in found["bounds"].split(":")]
    if len(bounds) == 1:
        index = int(found["bounds"])
        return partial(_elements, slice(index, index + 1 or None))
    if bounds[2:] == [0]:
        raise JsonPathError(f"the step of [{found['bounds']}] is 0")
    return partial(_elements, slice(*bounds))


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
        elif part.startswith(("'", '"')):
            if not re.fullmatch(_QUOTED, part):
                raise JsonPathError(f"{quote(part)} is not a quoted text")
            nodes.append(partial(_text, _unquoted(part)))
        elif re.fullmatch(_CONSTANT, part):
            nodes.append(partial(_text, compact_json(_constant(part))))
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
