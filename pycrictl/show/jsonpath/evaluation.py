"""What a JSONPath leads to: selectors take a value to others, steps are unions of them. Pure."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from pycrictl.errors import UsageError

MAX_VISITS: Final = 10_000_000
"""Values that one evaluation may look at; a few ``..`` in a row could visit any number."""

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


class Search:
    """One evaluation: the document that ``$`` stands for, and what it may still cost."""

    def __init__(self, document: Any) -> None:
        self.document = document
        self._visits_left = MAX_VISITS

    def follow(self, steps: Sequence[Step], start: Any) -> Sequence[Any]:
        values = [start]
        for step in steps:
            found: list[Any] = []
            for select in step:
                for value in values:
                    selected = select(value, self)
                    found += selected
                    self._visits_left -= 1 + len(selected)
                    if self._visits_left < 0:
                        raise JsonPathError("the JSONPath leads to too many values")
            values = found
        return values


Selector = Callable[[Any, Search], Sequence[Any]]
Step = Sequence[Selector]


def from_top(steps: Sequence[Step], _: Any, search: Search) -> Sequence[Any]:
    return search.follow(steps, search.document)


def from_here(steps: Sequence[Step], value: Any, search: Search) -> Sequence[Any]:
    return search.follow(steps, value)


def constant(value: Any, *_: Any) -> Sequence[Any]:
    return (value,)


def children(value: Any, _: Search) -> Sequence[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else ()


def containers(value: Any, search: Search) -> Sequence[Any]:
    """Return a value and the lists and objects in it, from the top down."""
    found, todo = [], [value]
    while todo:
        found.append(todo.pop())
        inner = reversed(children(found[-1], search))
        todo += [each for each in inner if isinstance(each, dict | list)]
    return found


def member(name: str, value: Any, _: Search) -> Sequence[Any]:
    return (value[name],) if isinstance(value, dict) and name in value else ()


def quoted_member(name: str, value: Any, search: Search) -> Sequence[Any]:
    """Return the value of a key, or what the path leads to that its dots make."""
    if found := member(name, value, search):
        return found
    return search.follow([(partial(member, part),) for part in name.split(".")], value)


def elements(bounds: slice, value: Any, _: Search) -> Sequence[Any]:
    return value[bounds] if isinstance(value, list) else ()


def matching(
    left: Selector, operator: str, right: Selector, value: Any, search: Search
) -> Sequence[Any]:
    """Return what in a list or an object meets a condition.

    Both sides must have a value. Without an operator that is all.

    Raises:
        JsonPathError: a side of a comparison has several values.
    """
    found = []
    for each in children(value, search):
        lefts, rights = left(each, search), right(each, search)
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
    """Return what decides which values compare: all numbers are of one kind."""
    return float if type(value) is int else type(value)
