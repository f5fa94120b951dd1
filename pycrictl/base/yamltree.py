"""JSON and YAML text as trees with line numbers. Pure.

All YAML that this program accepts is read here. JSON is read as YAML, as JSON libraries give no
positions, but tabs and surrogate escapes, which YAML lacks, are replaced first. Reading any text
takes time and memory in proportion to its length: aliases are refused, and nesting has a limit.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

import yaml

from pycrictl.base.units import escape, parse_int

NodeType = Literal["mapping", "list", "string", "number", "boolean", "null"]
Scalar = str | int | float | bool | None

MAX_NESTING: Final = 64
UNREAD: Final = "only its first document is used; another begins in line {}"

_STRING_TAGS: Final = ("!", "tag:yaml.org,2002:str")
# Values that YAML 1.1 allows without quotes, as crictl's parser reads them.
_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE: Final = frozenset("true True TRUE yes Yes YES on On ON".split())
_FALSE: Final = frozenset("false False FALSE no No NO off Off OFF".split())
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_ONLY_IN_JSON: Final = re.compile(r"\t|\\u[dD][89abAB]..\\u[dD][c-fC-F]..")


@dataclass(slots=True)
class Node:
    """A value of a document.

    Attributes:
        type: its JSON type.
        line: where it begins, counted from 1.
        text: a scalar as written, but without quotes and escapes.
        value: a scalar's value; integers have any size.
        items: a list's items.
        members: a mapping's members, in the document's order and with repeated keys.
        next_line: where another document begins after this one, which ``parse`` leaves unread;
            0 if none does.
    """

    type: NodeType
    line: int
    text: str = ""
    value: Scalar = None
    items: list[Node] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    next_line: int = 0

    @property
    def data(self) -> Any:
        """The value as dictionaries, lists and scalars; a repeated key has its last value."""
        if self.type == "mapping":
            return {member.key: member.node.data for member in self.members}
        return [item.data for item in self.items] if self.type == "list" else self.value


class Member(NamedTuple):
    key: str
    line: int
    node: Node


class Problem(ValueError):
    """A document is invalid.

    Attributes:
        line: where, counted from 1.
        hint: advice for the user, or None.
    """

    def __init__(self, message: str, line: int, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.line = line
        self.hint = hint


def parse(text: str) -> Node:
    """Return the tree of the first document, JSON or YAML; an empty one is null.

    Keys have at most 1,024 characters as written, in JSON too.

    Raises:
        Problem: neither JSON nor YAML; an alias, which could unfold to any size; or nested deeper
            than MAX_NESTING levels.
    """
    is_json = text.lstrip()[:1] in ("{", "[")
    source = _ONLY_IN_JSON.sub(_in_yaml, text) if is_json else text
    try:
        events = yaml.parse(source, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        return _first(events)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, reason = mark.line + 1 if mark else 1, error.problem or "unreadable"
    except (yaml.YAMLError, UnicodeEncodeError) as error:  # a character not allowed in YAML
        before = source.encode(errors="replace")[: getattr(error, "position", 0)]
        line, reason = before.count(b"\n") + 1, str(error).partition("\n")[0]
    # The error in a truncated document is on its last line, not on the one after it.
    last_line = max(len(source.rstrip().splitlines()), 1)
    language = "JSON" if is_json else "YAML"
    raise Problem(f"it is not {language}: {escape(reason)}", min(line, last_line))


def _in_yaml(match: re.Match[str]) -> str:
    if match[0] == "\t":
        return " "
    character = json.loads(f'"{match[0]}"')
    return f"\\U{ord(character):08x}"


def _type(value: Scalar) -> NodeType:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case _:
            return "number"


def _number(text: str) -> int | float:
    # Above 4300 digits Python raises an error of its own; nothing needs so many.
    if len(text) <= 40 and text.lstrip("-").isdigit():
        return int(text)
    return float(text)


def _first(events: Iterator[yaml.Event]) -> Node:
    """Return the first document, with the line of the next one that is not empty."""
    nodes = (event for event in events if isinstance(event, yaml.NodeEvent))
    if (event := next(nodes, None)) is None:
        return Node("null", 1)
    root = _node(event, events, 1)
    for event in nodes:
        if not isinstance(event, yaml.ScalarEvent) or event.value:
            root.next_line = _line(event)
            break
    return root


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 1


def _node(event: yaml.Event, events: Iterator[yaml.Event], depth: int) -> Node:
    """Build the node that an event begins, and consume the events up to its end."""
    line = _line(event)
    if isinstance(event, yaml.ScalarEvent):
        return _scalar(event, line)
    if not isinstance(event, yaml.CollectionStartEvent):
        raise Problem("aliases are not supported", line)
    if depth > MAX_NESTING:
        raise Problem("it is nested too deeply", line)
    is_mapping = isinstance(event, yaml.MappingStartEvent)
    if event.tag not in (None, "!", f"tag:yaml.org,2002:{'map' if is_mapping else 'seq'}"):
        raise Problem(f'the tag "{escape(event.tag)}" is not supported', line)
    node = Node("mapping" if is_mapping else "list", line)
    for inner in events:
        if isinstance(inner, yaml.CollectionEndEvent):
            break
        if not is_mapping:
            node.items.append(_node(inner, events, depth + 1))
        elif isinstance(inner, yaml.CollectionStartEvent):
            raise Problem("a key is a list or a mapping", _line(inner))
        else:
            key = _node(inner, events, depth)
            value = _node(next(events), events, depth + 1)
            node.members.append(Member(key.text, key.line, value))
    return node


def _scalar(event: yaml.ScalarEvent, line: int) -> Node:
    text: str = event.value
    if event.implicit[0]:
        value = _plain(text)
    elif event.implicit[1] or event.tag in _STRING_TAGS:
        value = text
    else:
        raise Problem(f'the tag "{escape(event.tag or "")}" is not supported', line)
    return Node(_type(value), line, text, value)


def _plain(text: str) -> Scalar:
    if text in _NULLS:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if text[0] not in "+-.0123456789":
        return text
    if text.lower().lstrip("+-") in (".inf", ".nan"):
        return math.nan if "n" == text[-1].lower() else math.inf
    try:
        return parse_int(text)
    except ValueError:
        return _number(text) if _FLOAT.fullmatch(text) else text
