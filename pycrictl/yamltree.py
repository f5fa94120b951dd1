"""JSON and YAML text as trees that remember their lines. Pure.

All YAML that this program takes is read here. JSON is read as YAML, as JSON libraries give no
positions, but the tabs and surrogate escapes that YAML lacks are replaced before. Whatever a text
may hold, reading it takes time and memory in proportion to its length: there are no aliases, and
nesting has a limit.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

import yaml

from pycrictl.units import escape, parse_int

NodeType = Literal["mapping", "list", "string", "number", "boolean", "null"]
Scalar = str | int | float | bool | None

MAX_NESTING: Final = 64

_STRING_TAGS: Final = ("!", "tag:yaml.org,2002:str")
# What a YAML 1.1 document may write without quotes, as crictl's parser reads it.
_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE: Final = frozenset("true True TRUE yes Yes YES on On ON".split())
_FALSE: Final = frozenset("false False FALSE no No NO off Off OFF".split())
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_ONLY_IN_JSON: Final = re.compile(r"\t|\\u[dD][89abAB]..\\u[dD][c-fC-F]..")


@dataclass(slots=True)
class Node:
    """A value of a document.

    Attributes:
        type: which of JSON's types it has.
        line: where it begins, counted from 1.
        text: of a scalar, as it is written, but without quotes and escapes.
        value: of a scalar; integers have any size.
        items: of a list.
        members: of a mapping, in the document's order and with repeated keys.
    """

    type: NodeType
    line: int
    text: str = ""
    value: Scalar = None
    items: list[Node] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)

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
    """A document is not what it should be.

    Attributes:
        line: where, counted from 1.
        hint: what may have been meant, or None.
    """

    def __init__(self, message: str, line: int, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.line = line
        self.hint = hint


def parse(text: str) -> Node:
    """Return the tree of a document, JSON or YAML; an empty one is null.

    Keys have at most 1,024 characters as they are written, in JSON too.

    Raises:
        Problem: neither JSON nor YAML; more than one document; an alias, which could unfold to any
            size; or nested deeper than MAX_NESTING levels.
    """
    is_json = text.lstrip()[:1] in ("{", "[")
    return _YamlReader(_ONLY_IN_JSON.sub(_in_yaml, text) if is_json else text, is_json).read()


def _in_yaml(found: re.Match[str]) -> str:
    if found[0] == "\t":
        return " "
    character = json.loads(f'"{found[0]}"')
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
    # Python refuses more than 4300 digits in its own words; nothing takes so many.
    if len(text) <= 40 and text.lstrip("-").isdigit():
        return int(text)
    return float(text)


class _YamlReader:
    def __init__(self, text: str, is_json: bool) -> None:
        self._text = text
        self._is_json = is_json
        self._root: Node | None = None
        self._open: list[Node] = []  # lists and mappings whose end has not come yet
        self._keys: list[tuple[str, int] | None] = []  # of each of these, the key without a value

    def read(self) -> Node:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        try:
            for event in yaml.parse(self._text, Loader=loader):
                self._take(event)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = mark.line + 1 if mark else 1
            raise self._problem(error.problem or "unreadable", line) from None
        except (yaml.YAMLError, UnicodeEncodeError) as error:  # a character that YAML lacks
            before = self._text.encode(errors="replace")[: getattr(error, "position", 0)]
            reason = str(error).partition("\n")[0]
            raise self._problem(reason, before.count(b"\n") + 1) from None
        return self._root or Node("null", 1)

    def _problem(self, reason: str, line: int) -> Problem:
        # What breaks off does so on its last line, not on the one that would follow.
        last_line = max(len(self._text.rstrip().splitlines()), 1)
        language = "JSON" if self._is_json else "YAML"
        return Problem(f"it is not {language}: {escape(reason)}", min(line, last_line))

    def _take(self, event: yaml.Event) -> None:
        line = event.start_mark.line + 1 if event.start_mark else 1
        match event:
            case yaml.DocumentStartEvent() if self._root is not None:
                raise Problem("a second document begins", line)
            case yaml.AliasEvent():
                raise Problem("aliases are not supported", line)
            case yaml.CollectionStartEvent():
                self._begin(event, line)
            case yaml.CollectionEndEvent():
                self._keys.pop()
                self._add(self._open.pop())
            case yaml.ScalarEvent():
                self._scalar(event, line)

    def _begin(self, event: yaml.CollectionStartEvent, line: int) -> None:
        is_mapping = isinstance(event, yaml.MappingStartEvent)
        expected = f"tag:yaml.org,2002:{'map' if is_mapping else 'seq'}"
        if event.tag not in (None, "!", expected):
            raise Problem(f'the tag "{escape(event.tag)}" is not supported', line)
        if len(self._open) >= MAX_NESTING:
            raise Problem("it is nested too deeply", line)
        if self._is_at_key():
            raise Problem("a key is a list or a mapping", line)
        self._open.append(Node("mapping" if is_mapping else "list", line))
        self._keys.append(None)

    def _scalar(self, event: yaml.ScalarEvent, line: int) -> None:
        text: str = event.value
        if self._is_at_key():
            self._keys[-1] = (text, line)
            return
        if event.implicit[0]:
            value = _plain(text)
        elif event.implicit[1] or event.tag in _STRING_TAGS:
            value = text
        else:
            raise Problem(f'the tag "{escape(event.tag or "")}" is not supported', line)
        self._add(Node(_type(value), line, text, value))

    def _is_at_key(self) -> bool:
        return bool(self._open) and self._open[-1].type == "mapping" and self._keys[-1] is None

    def _add(self, node: Node) -> None:
        if not self._open:
            self._root = node
        elif key := self._keys[-1]:
            self._open[-1].members.append(Member(*key, node))
            self._keys[-1] = None
        else:
            self._open[-1].items.append(node)


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
