"""A single path: from its text to selectors. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from pycrictl.show.jsonpath import evaluation
from pycrictl.show.jsonpath.evaluation import JsonPathError, Search, Selector, Step
from pycrictl.units import quote

_FILTER_HINT: Final = (
    "a filter is [?(PATH)] or [?(PATH == VALUE)], also with != < <= > >=; text is in quotes"
)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r"}

QUOTED: Final = r"""(?s:'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+\")"""
"""Matches a text in quotes; like all expressions here, it never tries a character twice."""

CONSTANT: Final = re.compile(r"true|false|[+-]?[0-9]{1,15}(?:\.[0-9]{1,15})?")
"""Matches a constant without quotes."""

_INTEGER: Final = r"-?[0-9]{1,15}"
_TEXT: Final = re.compile(QUOTED)
_NAME: Final = re.compile(r"(?s:[^.,\[\]${}@ ()=<>!&|\t\n\\]|\\.)*+")
_BARE_NAME: Final = re.compile(r"\s*([^\W\d][^\s,\]]*)\s*[,\]]")
_SELECTOR: Final = re.compile(
    rf"\s*(?:(?P<all>\*)|(?P<text>{QUOTED})|"
    rf"(?P<bounds>(?:{_INTEGER})?(?::(?:{_INTEGER})?){{1,2}}|{_INTEGER}))\s*(?P<end>[,\]])"
)
_FILTER: Final = re.compile(r"\s*\?\(\s*")
_OPERATOR: Final = re.compile(r"\s*([=!<>]=|[<>])\s*")
_FILTER_END: Final = re.compile(r"\s*\)\s*\]")


class JsonPath:
    def __init__(
        self, text: str, *, aliases: Mapping[str, str] | None = None, at_top: bool = True
    ) -> None:
        """Read a path; without its leading dot, or in braces, it is one as well.

        Args:
            text: the path.
            aliases: other names of keys at the top of the document.
            at_top: whether the path starts there, also without ``$``.
        """
        inner = text.strip()
        if inner.startswith("{") and inner.endswith("}"):
            inner = inner[1:-1].strip()
        if not inner:
            raise JsonPathError(f"{quote(text)} is not a JSONPath: it is empty")
        reader = _Reader(text, inner if inner[0] in "$@.[" else f".{inner}", aliases or {})
        self._query = reader.whole(at_top=at_top)

    def find(self, document: Any, search: Search | None = None) -> Sequence[Any]:
        return self._query(document, search or Search(document))


def unquoted(text: str) -> str:
    return re.sub(r"(?s)\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), text[1:-1])


def constant(text: str) -> bool | int | float:
    if text in ("true", "false"):
        return text == "true"
    return float(text) if "." in text else int(text)


class _Reader:
    def __init__(self, given: str, text: str, aliases: Mapping[str, str]) -> None:
        self._given = given
        self._text = text
        self._aliases = aliases
        self._position = 0

    def whole(self, *, at_top: bool) -> Selector:
        query = self._query(at_top=at_top)
        if self._position < len(self._text):
            raise self._unexpected()
        return query

    def _query(self, *, at_top: bool, is_operand: bool = False) -> Selector:
        """Read a path up to where it ends; one in a filter cannot hold another filter."""
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
                steps.append((evaluation.containers,))
                if self._next() == "[":
                    continue
            name = self._take(_NAME)[0]
            if name == "*":
                steps.append((evaluation.children,))
            elif name:
                name = re.sub(r"(?s)\\(.)", r"\1", name)
                steps.append(
                    (partial(evaluation.member, name if steps else aliases.get(name, name)),)
                )
            elif is_deep:
                raise self._error("a name is missing")
        return partial(evaluation.from_top if is_absolute else evaluation.from_here, steps)

    def _bracket(self, *, can_filter: bool) -> Step:
        self._position += 1
        if can_filter and _FILTER.match(self._text, self._position):
            return (self._filter(),)
        selectors: list[Selector] = []
        end = ","
        while end == ",":
            found = _SELECTOR.match(self._text, self._position)
            if found is None:
                raise self._not_a_selector()
            self._position = found.end()
            selectors.append(_selector(found))
            end = found["end"]
        return selectors

    def _not_a_selector(self) -> JsonPathError:
        if "]" not in self._text[self._position :]:
            return JsonPathError(f'"]" is missing in {quote(self._given)}')
        if bare := _BARE_NAME.match(self._text, self._position):
            return self._error(f"{quote(bare[1])} in brackets must be quoted")
        return self._unexpected()

    def _filter(self) -> Selector:
        self._take(_FILTER)
        left = self._operand()
        operator, right = "", left
        if _OPERATOR.match(self._text, self._position):
            operator = self._take(_OPERATOR)[1]
            right = self._operand()
        self._take(_FILTER_END)
        return partial(evaluation.matching, left, operator, right)

    def _operand(self) -> Selector:
        if self._next() in ("$", "@", "."):
            return self._query(at_top=False, is_operand=True)
        if self._next() in ("'", '"'):
            return partial(evaluation.constant, unquoted(self._take(_TEXT)[0]))
        return partial(evaluation.constant, constant(self._take(CONSTANT)[0]))

    def _next(self) -> str:
        return self._text[self._position : self._position + 1]

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str]:
        found = pattern.match(self._text, self._position)
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


def _selector(found: re.Match[str]) -> Selector:
    if found["all"]:
        return evaluation.children
    if found["text"]:
        return partial(evaluation.quoted_member, unquoted(found["text"]))
    bounds = [int(bound) if bound else None for bound in found["bounds"].split(":")]
    if len(bounds) == 1:
        index = int(found["bounds"])
        return partial(evaluation.elements, slice(index, index + 1 or None))
    if bounds[2:] == [0]:
        raise JsonPathError(f"the step of [{found['bounds']}] is 0")
    return partial(evaluation.elements, slice(*bounds))
