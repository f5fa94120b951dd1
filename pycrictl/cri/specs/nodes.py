"""JSON and YAML text as trees that remember their lines. Pure.

The two formats are read on their own: YAML libraries refuse or misread some JSON (surrogate
escapes, numbers such as ``1e3``, tabs), and JSON libraries tell no positions. Whatever a text may
hold, reading it takes time and memory in proportion to its length.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import yaml

from pycrictl.units import escape, parse_int

Kind = Literal["mapping", "list", "string", "number", "boolean", "null"]

MAX_NESTING: Final = 64

_STRING_TAGS: Final = ("!", "tag:yaml.org,2002:str")
# What a YAML 1.1 document may write without quotes, as crictl's parser reads it.
_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE: Final = frozenset("true True TRUE yes Yes YES on On ON".split())
_FALSE: Final = frozenset("false False FALSE no No NO off Off OFF".split())
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_JSON_SPACE: Final = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True, slots=True)
class Node:
    """A value of a document.

    Attributes:
        kind: which of JSON's types it has.
        line: where it begins, counted from 1.
        value: of a scalar; integers have any size.
        items: of a list.
        entries: of a mapping, in the document's order and with repeated keys.
    """

    kind: Kind
    line: int
    value: str | int | float | bool | None = None
    items: tuple[Node, ...] = ()
    entries: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """A key of a mapping, the line it stands on, and its value."""

    key: str
    line: int
    node: Node


class SyntaxProblem(ValueError):
    """The text is neither JSON nor YAML.

    Attributes:
        line: where, counted from 1.
    """

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


class _NotYaml(SyntaxProblem):
    """YAML's parser refused the text."""


def parse(text: str) -> Node:
    """The tree of a document.

    Raises:
        SyntaxProblem: neither JSON nor YAML; more than one document; an alias, which could unfold
            to any size; or nested deeper than MAX_NESTING levels.
    """
    try:
        json.loads(text, parse_int=str, parse_float=str, parse_constant=_refuse_constant)
    except RecursionError:
        raise SyntaxProblem("it is nested too deep", 1) from None
    except ValueError as error:
        # What breaks off does so on its last line, not on the one that would follow.
        last_line = max(len(text.rstrip().splitlines()), 1)
        try:
            return _YamlReader().read(text)
        except _NotYaml as problem:
            # YAML's parser has little to say of a text that is meant to be JSON.
            if isinstance(error, json.JSONDecodeError) and text.lstrip()[:1] in ("{", "["):
                reason = error.msg[:1].lower() + error.msg[1:]
                line = min(error.lineno, last_line)
                raise SyntaxProblem(f"it is not JSON: {reason}", line) from None
            problem.line = min(problem.line, last_line)
            raise
    return _JsonReader(text).node(1)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


class _JsonReader:
    """Builds the nodes of a text that is known to be JSON."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._line = 1
        decoder = json.JSONDecoder(parse_int=_number, parse_float=_number)
        self._decode = decoder.raw_decode

    def node(self, depth: int) -> Node:
        if depth > MAX_NESTING:
            raise SyntaxProblem("it is nested too deep", self._line)
        first = self._peek()
        line = self._line
        if first == "{":
            entries: list[Entry] = []
            self._position += 1
            while self._peek() != "}":
                self._skip(",")
                key_line = self._line
                key = self._scalar()
                self._skip(":")
                entries.append(Entry(str(key), key_line, self.node(depth + 1)))
            self._position += 1
            return Node("mapping", line, entries=tuple(entries))
        if first == "[":
            items: list[Node] = []
            self._position += 1
            while self._peek() != "]":
                self._skip(",")
                items.append(self.node(depth + 1))
            self._position += 1
            return Node("list", line, items=tuple(items))
        value = self._scalar()
        return Node(_kind(value), line, value)

    def _peek(self) -> str:
        """The next character that is no space; counts the lines up to it."""
        match = _JSON_SPACE.match(self._text, self._position)
        end = match.end() if match else self._position
        self._line += self._text.count("\n", self._position, end)
        self._position = end
        return self._text[end]

    def _skip(self, sign: str) -> None:
        if self._peek() == sign:
            self._position += 1
            self._peek()

    def _scalar(self) -> str | int | float | bool | None:
        value: str | int | float | bool | None
        value, self._position = self._decode(self._text, self._position)
        return value


def _kind(value: str | float | bool | None) -> Kind:
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


@dataclass(slots=True)
class _Open:
    """A list or mapping whose end has not come yet."""

    kind: Literal["mapping", "list"]
    line: int
    items: list[Node]
    entries: list[Entry]
    key: tuple[str, int] | None = None

    def closed(self) -> Node:
        return Node(self.kind, self.line, items=tuple(self.items), entries=tuple(self.entries))


class _YamlReader:
    """Builds the nodes of a YAML document from parser events."""

    def __init__(self) -> None:
        self._open: list[_Open] = []
        self._root: Node | None = None

    def read(self, text: str) -> Node:
        try:
            for event in self._events(text):
                self._take(event)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            reason = escape(error.problem or "unreadable")
            line = mark.line + 1 if mark else 1
            raise _NotYaml(f"it is not YAML: {reason}", line) from None
        except yaml.YAMLError as error:
            reason = escape(str(error).partition("\n")[0])
            raise _NotYaml(f"it is not YAML: {reason}", 1) from None
        return self._root or Node("null", 1)

    @staticmethod
    def _events(text: str) -> Iterator[yaml.Event]:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        return yaml.parse(text, Loader=loader)

    def _take(self, event: yaml.Event) -> None:
        line = event.start_mark.line + 1 if event.start_mark else 1
        match event:
            case yaml.DocumentStartEvent() if self._root is not None:
                raise SyntaxProblem("a second document begins", line)
            case yaml.AliasEvent():
                raise SyntaxProblem("aliases are not supported", line)
            case yaml.CollectionStartEvent():
                self._begin(event, line)
            case yaml.CollectionEndEvent():
                self._add(self._open.pop().closed())
            case yaml.ScalarEvent():
                self._scalar(event, line)

    def _begin(self, event: yaml.CollectionStartEvent, line: int) -> None:
        is_mapping = isinstance(event, yaml.MappingStartEvent)
        expected = f"tag:yaml.org,2002:{'map' if is_mapping else 'seq'}"
        if event.tag not in (None, "!", expected):
            raise SyntaxProblem(f'the tag "{escape(event.tag)}" is not supported', line)
        if len(self._open) >= MAX_NESTING:
            raise SyntaxProblem("it is nested too deep", line)
        parent = self._open[-1] if self._open else None
        if parent is not None and parent.kind == "mapping" and parent.key is None:
            raise SyntaxProblem("a key is a list or a mapping", line)
        self._open.append(_Open("mapping" if is_mapping else "list", line, [], []))

    def _scalar(self, event: yaml.ScalarEvent, line: int) -> None:
        text: str = event.value
        parent = self._open[-1] if self._open else None
        if parent is not None and parent.kind == "mapping" and parent.key is None:
            parent.key = (text, line)
            return
        if event.implicit[0]:
            value = _plain(text)
        elif event.implicit[1] or event.tag in _STRING_TAGS:
            value = text
        else:
            raise SyntaxProblem(f'the tag "{escape(event.tag or "")}" is not supported', line)
        self._add(Node(_kind(value), line, value))

    def _add(self, node: Node) -> None:
        if not self._open:
            self._root = node
            return
        parent = self._open[-1]
        if parent.kind == "list":
            parent.items.append(node)
        elif parent.key is not None:
            key, line = parent.key
            parent.entries.append(Entry(key, line, node))
            parent.key = None


def _plain(text: str) -> str | int | float | bool | None:
    """The value of a YAML scalar without quotes."""
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
