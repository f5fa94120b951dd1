"""kubectl's JSONPath on documents: single paths, and templates around them. Pure.

A *path* is ``.metadata.name``, ``$.items[?(@.state=="X")].id`` or ``{.id}``, in which a name may
hold any character but ``.,[]${}@`` and spaces; a backslash takes one of these as it is. A
*template* is text with paths in braces, and ``{range PATH}…{end}`` around what is repeated for
each match. What the data lacks yields nothing.

The queries themselves are those of RFC 9535, by a library; kubectl's spelling is put into theirs.
Regular expressions are refused: some take forever on short texts, and kubectl has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from pycrictl.errors import UsageError
from pycrictl.show import jsontext
from pycrictl.units import escape, quote

if TYPE_CHECKING:
    from jsonpath import CompoundJSONPath, JSONPath, JSONPathEnvironment

MAX_NESTING: Final = 50
"""Levels of ``range`` in a template."""

_NAME_ENDS: Final = frozenset(".,[]${}@ ()=<>!&|\t\n")
_QUOTES: Final = "\"'"
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r"}
_RANGE: Final = re.compile(r"range(?=[\s.$@\[]|$)")
_CONSTANT: Final = re.compile(r"true|false|[+-]?[0-9]{1,15}(?:\.[0-9]{1,15})?")
_EXPRESSION_FUNCTIONS: Final = ("match", "search")


class JsonPathError(UsageError):
    """A path or a template is invalid."""

    reference = "jsonpath"


class Path:
    """One query.

    Attributes:
        is_from_root: whether it begins with ``$``, in a template the whole document.

    Raises:
        JsonPathError: it is no path.
    """

    def __init__(self, text: str, *, aliases: Mapping[str, str] | None = None) -> None:
        """Reads a path; without its leading dot, or in braces, it is one as well.

        Args:
            text: the path.
            aliases: other names of keys at the top of the document.
        """
        inner = text.strip()
        if inner.startswith("{") and inner.endswith("}"):
            inner = inner[1:-1].strip()
        if not inner:
            raise _no_path(text)
        self.is_from_root = inner.startswith("$")
        if inner[0] not in "$@.[":
            inner = f".{inner}"
        try:
            query, end = _rewritten(inner, 1 if inner[0] in "$@" else 0, aliases or {})
        except RecursionError:
            raise JsonPathError(f"{quote(text)} is not a JSONPath: too many brackets") from None
        if end != len(inner):
            raise JsonPathError(
                f"{quote(text)} is not a JSONPath: {quote(inner[end:])} is not expected"
            )
        self._query = _compiled(f"${query}", text)

    def find(self, document: Any) -> list[Any]:
        """All values that the path leads to."""
        import jsonpath

        try:
            return list(self._query.findall(document))
        except (jsonpath.JSONPathError, RecursionError) as exc:
            raise JsonPathError(f"the JSONPath cannot be evaluated: {_reason(exc)}") from None


@dataclass(frozen=True, slots=True)
class _Values:
    path: Path


@dataclass(frozen=True, slots=True)
class _Range:
    path: Path
    body: Sequence[_Node]


_Node = str | _Values | _Range


class Template:
    """A template that was parsed.

    Raises:
        JsonPathError: a path in it is invalid, or a brace or an ``end`` is missing.
    """

    def __init__(self, text: str, *, aliases: Mapping[str, str] | None = None) -> None:
        """Reads a template; one without braces is a path."""
        if not text.strip():
            raise _no_path(text)
        parts = _parts(text if "{" in text else f"{{{text}}}")
        self._nodes, ended = _parsed(parts, aliases or {}, 0)
        if ended:
            raise JsonPathError(f"{{end}} without {{range}} in {quote(text)}")

    def render(self, document: Any) -> str:
        """The text that the template makes; values in it can neither break lines nor steer."""
        return "".join(_rendered(self._nodes, document, document))


def _no_path(text: str) -> JsonPathError:
    return JsonPathError(f"{quote(text)} is not a JSONPath: it is empty")


def value_text(value: Any) -> str:
    """A value as text on one line: strings as they are, objects and lists as compact JSON."""
    return escape(value if isinstance(value, str) else jsontext.compact_json(value))


def _rendered(nodes: Sequence[_Node], root: Any, current: Any) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, str):
            yield node
            continue
        found = node.path.find(root if node.path.is_from_root else current)
        if isinstance(node, _Values):
            yield " ".join(map(value_text, found))
            continue
        for item in found:
            yield from _rendered(node.body, root, item)


def _parsed(
    parts: Iterator[tuple[str, bool]], aliases: Mapping[str, str], depth: int
) -> tuple[list[_Node], bool]:
    """The nodes up to an ``{end}`` or the end of the text, and which of both it was."""
    nodes: list[_Node] = []
    for part, is_action in parts:
        action = part.strip()
        if not is_action:
            nodes.append(part)
        elif action == "end":
            return nodes, True
        elif action[:1] and action[0] in _QUOTES:
            nodes.append(_unquoted(action))
        elif _CONSTANT.fullmatch(action):
            nodes.append(_constant_text(action))
        elif _RANGE.match(action):
            if depth == MAX_NESTING:
                raise JsonPathError("{range} is nested too deeply")
            path = Path(action[len("range") :], aliases={} if depth else aliases)
            body, ended = _parsed(parts, aliases, depth + 1)
            if not ended:
                raise JsonPathError("{range} without {end}")
            nodes.append(_Range(path, body))
        else:
            is_top = not depth or action.startswith("$")
            nodes.append(_Values(Path(action or "@", aliases=aliases if is_top else {})))
    return nodes, False


def _constant_text(action: str) -> str:
    if action in ("true", "false"):
        return action
    return jsontext.number_text(float(action) if "." in action else int(action))


def _parts(text: str) -> Iterator[tuple[str, bool]]:
    """Text outside of braces and what stands in them, each with whether it is the latter."""
    position = 0
    while position < len(text):
        start = text.find("{", position)
        if start != position:
            yield text[position : start if start >= 0 else len(text)], False
        if start < 0:
            return
        end = _end_of(text, start + 1, "}")
        yield text[start + 1 : end], True
        position = end + 1


def _end_of(text: str, start: int, closing: str) -> int:
    """The index of ``closing``, not counting what is in quotes."""
    for position, char in _outside_quotes(text, start):
        if char == closing:
            return position
    raise JsonPathError(f"{quote(closing)} is missing in {quote(text)}")


def _outside_quotes(text: str, start: int) -> Iterator[tuple[int, str]]:
    """The characters from ``start`` on that can mean something: not quoted, and not escaped."""
    opened = ""
    position = start
    while position < len(text):
        char = text[position]
        if char == "\\":
            position += 1
        elif opened:
            opened = "" if char == opened else opened
        elif char in _QUOTES:
            opened = char
        else:
            yield position, char
        position += 1


def _unquoted(action: str) -> str:
    quotes, position = action[0], 1
    text: list[str] = []
    while position < len(action):
        char = action[position]
        if char == quotes:
            if position + 1 != len(action):
                break
            return "".join(text)
        if char == "\\":
            position += 1
            char = action[position : position + 1]
            char = _ESCAPES.get(char, char)
        text.append(char)
        position += 1
    raise JsonPathError(f"{quote(action)} is not a text in quotes")


def _rewritten(text: str, position: int, aliases: Mapping[str, str]) -> tuple[str, int]:
    """The segments from ``position`` on in RFC 9535's spelling, and where they end."""
    segments: list[str] = []
    while position < len(text):
        char = text[position]
        if char == "[":
            end = _bracket_end(text, position)
            segments.append(f"[{_bracket(text[position + 1 : end])}]")
            position = end + 1
        elif char == ".":
            position += 1
            is_deep = text[position : position + 1] == "."
            position += is_deep
            if is_deep:
                segments.append("..")
                if text[position : position + 1] == "[":
                    continue
            name, position = _name(text, position)
            if name == "*":
                segments.append("[*]")
            elif name:
                segments.append(f"[{_key(aliases.get(name, name) if not segments else name)}]")
            elif is_deep:
                raise JsonPathError(f"{quote(text)} is not a JSONPath: a name is missing")
        else:
            break
    return "".join(segments), position


def _name(text: str, position: int) -> tuple[str, int]:
    chars = []
    while position < len(text):
        char = text[position]
        if char == "\\" and position + 1 < len(text):
            position += 1
            char = text[position]
        elif char in _NAME_ENDS:
            break
        chars.append(char)
        position += 1
    return "".join(chars), position


def _key(name: str) -> str:
    """A name in quotes, as a JSON string."""
    return jsontext.compact_json(name)


def _bracket_end(text: str, start: int) -> int:
    depth = 0
    for position, char in _outside_quotes(text, start):
        if char in "[]":
            depth += 1 if char == "[" else -1
            if not depth:
                return position
    raise JsonPathError(f'"]" is missing in {quote(text)}')


def _bracket(inner: str) -> str:
    """What stands in brackets; the paths of a filter are rewritten as well."""
    if not inner.lstrip().startswith("?"):
        return inner
    parts, position, opened = [], 0, ""
    while position < len(inner):
        char = inner[position]
        position += 1
        parts.append(char)
        if opened and char == "\\":
            parts.append(inner[position : position + 1])
            position += 1
        elif opened:
            opened = "" if char == opened else opened
        elif char in _QUOTES:
            opened = char
        elif char in "@$":
            query, position = _rewritten(inner, position, {})
            parts.append(query)
    return "".join(parts)


def _compiled(query: str, text: str) -> JSONPath | CompoundJSONPath:
    import jsonpath

    try:
        _refuse_unsupported(query, text)
        return _environment().compile(query)
    except (jsonpath.JSONPathError, RecursionError) as exc:
        raise JsonPathError(f"{quote(text)} is not a JSONPath: {_reason(exc)}") from None


def _refuse_unsupported(query: str, text: str) -> None:
    """Refuses regular expressions, and names in brackets that are not in quotes."""
    from jsonpath import token as kinds

    previous = ""
    for token in _environment().lexer.tokenize(query):
        if token.kind == kinds.TOKEN_RE:
            raise _no_expressions(text, "=~")
        if token.kind == kinds.TOKEN_FUNCTION and token.value in _EXPRESSION_FUNCTIONS:
            raise _no_expressions(text, f"{token.value}()")
        begins_selector = previous in (kinds.TOKEN_LBRACKET, kinds.TOKEN_COMMA)
        if token.kind == kinds.TOKEN_NAME and begins_selector:
            raise JsonPathError(
                f"{quote(text)} is not a JSONPath: {quote(token.value)} in brackets wants quotes"
            )
        if token.kind != kinds.TOKEN_WHITESPACE:
            previous = token.kind


def _no_expressions(text: str, name: str) -> JsonPathError:
    return JsonPathError(
        f"{quote(text)} is not supported: {name} takes a regular expression",
        hint="compare whole values with == or !=",
    )


@cache
def _environment() -> JSONPathEnvironment:
    from jsonpath import JSONPathEnvironment

    return JSONPathEnvironment()


def _reason(exc: Exception) -> str:
    return escape(str(exc).partition("\n")[0])
