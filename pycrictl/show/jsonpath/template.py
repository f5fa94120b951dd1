"""Text with paths in braces, and what is repeated for each match. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pycrictl.show import jsontext
from pycrictl.show.jsonpath.evaluation import JsonPathError, Search
from pycrictl.show.jsonpath.path import CONSTANT, QUOTED, JsonPath, constant, unquoted
from pycrictl.units import escape, quote

MAX_NESTING: Final = 50
"""Levels of ``range`` in a template."""

_ACTION: Final = re.compile(rf"\{{((?s:{QUOTED}|\\.|[^}}'\"\\])*+)\}}")
_RANGE: Final = re.compile(r"range(?=[\s.$@\[]|$)")


class Template:
    def __init__(self, text: str, *, aliases: Mapping[str, str] | None = None) -> None:
        """Read a template; one without braces is a path."""
        nodes, ended = _parsed(_parts(text), aliases or {}, 0)
        self._nodes = nodes if "{" in text else [JsonPath(text, aliases=aliases)]
        if ended:
            raise JsonPathError(f"{{end}} without {{range}} in {quote(text)}")

    def render(self, document: Any) -> str:
        """Return the text that the template makes; no value breaks a line or steers a terminal."""
        return "".join(_rendered(self._nodes, document, Search(document)))


def value_text(value: Any) -> str:
    """Return a value on one line: strings as they are, objects and lists as compact JSON."""
    return escape(value if isinstance(value, str) else jsontext.compact_json(value))


@dataclass(frozen=True, slots=True)
class _Range:
    path: JsonPath
    body: Sequence[_Node]


_Node = str | JsonPath | _Range


def _rendered(nodes: Sequence[_Node], current: Any, search: Search) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, str):
            yield node
        elif isinstance(node, JsonPath):
            yield " ".join(map(value_text, node.find(current, search)))
        else:
            for item in node.path.find(current, search):
                yield from _rendered(node.body, item, search)


def _parts(text: str) -> Iterator[tuple[str, bool]]:
    """Split a template into text and what stands in braces, each with whether it is the latter."""
    position = 0
    while (start := text.find("{", position)) >= 0:
        if start > position:
            yield text[position:start], False
        action = _ACTION.match(text, start)
        if action is None:
            raise JsonPathError(f'"}}" is missing in {quote(text)}')
        yield action[1].strip(), True
        position = action.end()
    if position < len(text):
        yield text[position:], False


def _parsed(
    parts: Iterator[tuple[str, bool]], aliases: Mapping[str, str], depth: int
) -> tuple[list[_Node], bool]:
    """Return the nodes up to an ``{end}`` or the end of the text, and whether it was the former."""
    nodes: list[_Node] = []
    for part, is_action in parts:
        if not is_action:
            nodes.append(part)
        elif part == "end":
            return nodes, True
        elif part.startswith(("'", '"')):
            if not re.fullmatch(QUOTED, part):
                raise JsonPathError(f"{quote(part)} is not a quoted text")
            nodes.append(unquoted(part))
        elif CONSTANT.fullmatch(part):
            nodes.append(jsontext.compact_json(constant(part)))
        elif _RANGE.match(part):
            if depth == MAX_NESTING:
                raise JsonPathError("{range} is nested too deeply")
            path = JsonPath(part[len("range") :], aliases=aliases, at_top=not depth)
            body, ended = _parsed(parts, aliases, depth + 1)
            if not ended:
                raise JsonPathError("{range} without {end}")
            nodes.append(_Range(path, body))
        else:
            nodes.append(JsonPath(part or "@", aliases=aliases, at_top=not depth))
    return nodes, False
