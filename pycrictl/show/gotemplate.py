"""Go templates for ``--output go-template``. Pure.

Go's ``text/template`` without ``define``, ``template``, ``block``, ``call`` and complex numbers.
A missing key is an error. In crictl, numbers in the data are text, which makes
``{{if .status.exitCode}}`` always true; here they are also numbers.

The parser turns the text into functions of the variables and the current value (``dot``). A
variable is identified by its index in the list of variables visible at that point.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from pycrictl.base.errors import UsageError
from pycrictl.base.units import parse_int, quote
from pycrictl.show.datatext import compact_json
from pycrictl.show.gofunctions import DECIDING, FUNCTIONS, Number, kind_of, plain

BLOCKS: Final = ("if", "with", "range")
JUMPS: Final = ("break", "continue")
KEYWORDS: Final = (*BLOCKS, *JUMPS, "else", "end")
CONSTANTS: Final = {"true": True, "false": False, "nil": None}
LONGEST_RANGE: Final = 1_000_000
"""The limit of a ``range`` over a number: a typing error must not run for hours."""

_TOO_DEEP: Final = "template: :1: nested too deeply"
_SPACES: Final = " \t\r\n"
_FIELDS: Final = r"(?:\.[^\W\d]\w*)"
_WORD: Final = (
    rf"[{_SPACES}]*(?:"
    r"(?P<number>[+-]?\.?[0-9](?:[eEpP][+-]|[\w.])*)"  # a sign belongs to the next number
    rf"|(?P<path>\$\w*{_FIELDS}*|{_FIELDS}+|\.)|(?P<name>[^\W\d]\w*)|(?P<close>\){_FIELDS}*)"
    r"""|(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)+'|`[^`]*`)|(?P<operator>:=|[=|(,]))"""
)
_COMMENT: Final = rf"(?s)[{_SPACES}]*/\*.*?\*/"
_ESCAPE: Final = r"""\\(?:[abfnrtv\\'"]|[0-7]{3}|x[\da-fA-F]{2}|u[\da-fA-F]{4}|U[\da-fA-F]{8})"""
_LEFT: Final = rf"\{{\{{(-(?=[{_SPACES}]))?"
_RIGHT: Final = rf"(?:[{_SPACES}]+(-))?[{_SPACES}]*}}}}"
_DECLARED: Final = r"(\$\w+)\s*(?:,\s*(\$\w+)\s*)?(:?=)"


class TemplateError(UsageError):
    """A template is malformed, or does not fit its data; the message says where."""


class Variables(dict[int, Any]):
    def __init__(self) -> None:
        self.output: list[str] = []


Operand = Callable[[Variables, Any], Any]
Command = Callable[[Variables, Any, list[Any]], Any]
"""The list has the value of the preceding command in the pipeline, if there is one."""

Node = Callable[[Variables, Any], str | None]
"""Writes its output; returns ``break`` or ``continue`` if the enclosing loop has to do that."""

Nodes = Sequence[Node]
At = Callable[[str], TemplateError]
"""Returns an error for a line of the template."""


class GoTemplate:
    def __init__(self, text: str) -> None:
        parser = _Parser(text)
        try:
            self._nodes, end = parser.nodes()
        except RecursionError:
            raise TemplateError(_TOO_DEEP) from None
        if end.text:
            raise parser.error(end.position, f"unexpected {{{{{end.text}}}}}")

    def render(self, data: Any) -> str:
        variables = Variables()
        try:
            data = json.loads(compact_json(data), parse_int=Number, parse_float=Number)
            variables[0] = data
            _walk(self._nodes, variables, data)
        except RecursionError:
            raise TemplateError(_TOO_DEEP) from None
        return "".join(variables.output)


class _Word(NamedTuple):
    kind: str
    text: str
    position: int


class _Pipeline(NamedTuple):
    at: At
    places: Sequence[int]
    value: Operand


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.pieces = self.split()
        self.words: list[_Word] = []  # rest of the current action, in reverse order
        self.variables = ["$"]
        self.loops = 0

    @property
    def next(self) -> _Word:
        return self.words[-1]

    def error(self, position: int, message: str, *, hint: str | None = None) -> TemplateError:
        line = self.text.count("\n", 0, position) + 1
        return TemplateError(f"template: :{line}: {message}", hint=hint)

    def unexpected(self, word: _Word, where: str) -> TemplateError:
        text = quote(word.text) if word.text else "end of the action"
        return self.error(word.position, f"unexpected {text} in {where}")

    def close(self, where: str) -> None:
        if self.next.text:
            raise self.unexpected(self.next, where)

    # Text and actions

    def split(self) -> Iterator[str | list[_Word]]:
        """Yield texts, and for each action a list: an empty end word, then its words in reverse.

        Comments yield nothing.
        """
        text, position, trims = self.text, 0, False
        while True:
            left = re.compile(_LEFT).search(text, position)
            copied = text[position : left.start() if left else None]
            copied = copied.lstrip(_SPACES) if trims else copied
            yield copied.rstrip(_SPACES) if left and left[1] else copied
            if not left:
                return
            comment = re.compile(_COMMENT).match(text, left.end())
            words, position = [], (comment or left).end()
            while not (right := re.compile(_RIGHT).match(text, position)):
                word = re.compile(_WORD).match(text, position)
                if word is None:
                    raise self.syntax_error(position, left.end())
                kind = word.lastgroup or ""
                words.append(_Word(kind, word[kind], word.start(kind)))
                position = word.end()
            if words or not comment:
                yield [_Word("end", "", position), *reversed(words)]
            position, trims = right.end(), right[1] is not None

    def syntax_error(self, position: int, start: int) -> TemplateError:
        rest = self.text[position:].lstrip(_SPACES)
        if not rest:
            return self.error(start, "unclosed action")
        if rest[0] in "\"`'":
            return self.error(position, "unclosed string")
        hint = 'for a key with dashes: {{index .labels "a-key"}}' if rest[0] == "-" else None
        return self.error(position, f"unexpected {quote(rest[0])} in an action", hint=hint)

    # Blocks

    def nodes(self) -> tuple[Nodes, _Word]:
        """Parse up to an ``end``, an ``else`` or the end of the text; also return that word."""
        known = len(self.variables)
        parsed: list[Node] = []
        end = _Word("end", "", len(self.text))
        for piece in self.pieces:
            if isinstance(piece, str):
                parsed.append(partial(_write, piece))
                continue
            self.words = piece
            if self.next.text in ("end", "else"):
                end = self.words.pop()
                if end.text == "end":
                    self.close("{{end}}")
                break
            parsed.append(self.action())
        del self.variables[known:]
        return parsed, end

    def action(self) -> Node:
        if self.next.text in BLOCKS:
            return self.branch(self.words.pop())
        if self.next.text in JUMPS:
            jump = self.words.pop()
            self.close(jump.text)
            if not self.loops:
                raise self.error(jump.position, f"{{{{{jump.text}}}}} outside {{{{range}}}}")
            return lambda *_: jump.text
        pipeline = self.pipeline("the action", max_variables=1)
        self.close("the action")
        return partial(_act, pipeline)

    def branch(self, keyword: _Word) -> Node:
        known = len(self.variables)
        pipeline = self.pipeline(keyword.text, max_variables=1 + (keyword.text == "range"))
        self.close(keyword.text)
        self.loops += keyword.text == "range"
        body, end = self.nodes()
        self.loops -= keyword.text == "range"
        otherwise: Nodes = ()
        if end.text == "else" and self.next.text == keyword.text != "range":
            otherwise = (self.branch(self.words.pop()),)  # one {{end}} closes the whole chain
        elif end.text == "else":
            self.close("{{else}}")
            otherwise, end = self.nodes()
            if end.text == "else":
                raise self.error(end.position, "a second {{else}}")
        if not end.text:
            raise self.error(keyword.position, f"{{{{{keyword.text}}}}} without {{{{end}}}}")
        del self.variables[known:]
        return partial(_branch, keyword.text, pipeline, body, otherwise)

    # Pipelines

    def pipeline(self, where: str, *, max_variables: int) -> _Pipeline:
        start = self.next.position
        names, declares = self.declarations(max_variables)
        commands = [self.command(where, is_first=True)]
        while self.next.text == "|":
            self.words.pop()
            commands.append(self.command(where, is_first=False))
        if declares:
            self.variables += names
        places = [self.place(name) for name in names]
        return _Pipeline(partial(self.error, start), places, partial(_piped, commands, places))

    def declarations(self, max_variables: int) -> tuple[Sequence[str], bool]:
        """Parse ``$a :=``, ``$a =`` or ``$a, $b :=``, if present, at the start of a pipeline."""
        start = self.next.position
        match = re.compile(_DECLARED).match(self.text, start)
        if not match:
            return (), False
        names = [name for name in match.group(1, 2) if name]
        if len(names) > max_variables:
            raise self.error(start, "too many variables are set here")
        declares = match[3] == ":="
        for name in names:
            if not declares and name not in self.variables:
                raise self.error(start, f"undefined variable {name}")
        while self.next.position < match.end():
            self.words.pop()
        return names, declares

    def place(self, name: str) -> int:
        return len(self.variables) - 1 - self.variables[::-1].index(name)

    def command(self, where: str, *, is_first: bool) -> Command:
        start = self.next
        is_function = start.kind == "name" and start.text not in (*CONSTANTS, *KEYWORDS)
        if is_function:
            self.words.pop()
        operands: list[Operand] = []
        while self.next.kind not in ("end", "close") and self.next.text != "|":
            operands.append(self.operand(where))
        if is_function:
            return self.called(start, operands, is_first)
        if not operands:
            raise self.error(start.position, f"missing value in {where}")
        if not is_first:
            raise self.error(start.position, f"only a function can follow | in {where}")
        if len(operands) > 1:
            raise self.error(start.position, "only functions take arguments")
        return lambda variables, dot, _: operands[0](variables, dot)

    def called(self, name: _Word, arguments: Sequence[Operand], is_first: bool) -> Command:
        at = partial(self.error, name.position)
        count = len(arguments) + (not is_first)
        function, least, most = FUNCTIONS.get(name.text, (None, 1, None))
        if function is None and name.text not in DECIDING:
            raise at(f'there is no function "{name.text}"')
        if count < least or (most is not None and count > most):
            limit = f"{least}" if least == most else f"{least} or more"
            raise at(f"{name.text} takes {limit} arguments, not {count}")
        if function is None:
            return partial(_decide, DECIDING[name.text], arguments)
        return partial(_call, name.text, at, arguments)

    def operand(self, where: str) -> Operand:
        word = start = self.words.pop()
        operand: Operand = lambda _, dot: dot  # noqa: E731 - the usual case
        if word.text == "(":
            operand = self.pipeline("parentheses", max_variables=0).value
            word = self.words.pop()
            if word.kind != "close":
                raise self.error(start.position, "unclosed parenthesis")
        elif word.kind in ("string", "number") or word.text in CONSTANTS:
            value = self.constant(word)
            return lambda *_: value
        elif word.kind != "path":
            raise self.unexpected(word, where)
        head, *names = word.text.split(".")
        if head.startswith("$"):
            if head not in self.variables:
                raise self.error(word.position, f"undefined variable {head}")
            place = self.place(head)
            operand = lambda variables, _: variables[place]  # noqa: E731 - as above
        if word.text == "." or not names:
            return operand
        return partial(_field, operand, names, partial(self.error, word.position))

    def constant(self, word: _Word) -> Any:
        if word.kind == "name":
            return CONSTANTS[word.text]
        if word.text[0] == "`":
            return word.text[1:-1].replace("\r", "")
        try:
            if word.kind == "string" and "\\" not in re.sub(_ESCAPE, "", word.text):
                # Allowed in Go's strings, but not in Python's.
                text = ast.literal_eval(word.text.replace("\r", "\\r").replace("\0", "\\x00"))
                return ord(text) if word.text[0] == "'" else text
            with suppress(ValueError):
                return parse_int(word.text)
            number = (float.fromhex if "x" in word.text else float)(word.text.replace("_", ""))
        except (ValueError, TypeError, OverflowError):
            number = math.inf
        if math.isinf(number):
            raise self.error(word.position, f"{quote(word.text)} is not valid")
        return number


# Evaluation


def _walk(nodes: Nodes, variables: Variables, dot: Any) -> str | None:
    return next(filter(None, (node(variables, dot) for node in nodes)), None)


def _write(text: str, variables: Variables, _: Any) -> None:
    variables.output.append(text)


def _act(pipeline: _Pipeline, variables: Variables, dot: Any) -> None:
    value = pipeline.value(variables, dot)
    if not pipeline.places:
        variables.output.append(plain(value))


def _branch(
    keyword: str, pipeline: _Pipeline, body: Nodes, otherwise: Nodes, variables: Variables, dot: Any
) -> str | None:
    # As in Go, all variables of a loop hold the whole value in {{else}}.
    value = pipeline.value(variables, dot)
    if keyword != "range":
        inner = dot if keyword == "if" else value
        return _walk(body if value else otherwise, variables, inner if value else dot)
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        items = ((key, value[key]) for key in sorted(value))
    elif isinstance(value, list):
        items = enumerate(value)
    elif type(value) is int and len(pipeline.places) < 2 and value <= LONGEST_RANGE:
        items = ((number, number) for number in range(value))
    elif value is not None:
        raise pipeline.at(f"{kind_of(value)} cannot be iterated over")
    item = None
    for item in items:
        # A single variable gets the item; of two, the first gets its key or index.
        variables.update(zip(pipeline.places, item[-len(pipeline.places) :], strict=False))
        if _walk(body, variables, item[1]) == "break":
            break
    return None if item else _walk(otherwise, variables, dot)


def _piped(
    commands: Sequence[Command], places: Sequence[int], variables: Variables, dot: Any
) -> Any:
    last: list[Any] = []
    for command in commands:
        last = [command(variables, dot, last)]
    for place in places:
        variables[place] = last[0]
    return last[0]


def _call(
    name: str, at: At, arguments: Sequence[Operand], variables: Variables, dot: Any, last: list[Any]
) -> Any:
    values = [argument(variables, dot) for argument in arguments] + last
    try:
        return FUNCTIONS[name][0](*values)
    except (ValueError, OverflowError) as exc:
        raise at(f"{name}: {exc}") from None


def _decide(
    decides: bool, arguments: Sequence[Operand], variables: Variables, dot: Any, last: list[Any]
) -> Any:
    """Return the first value with this truth; arguments after it are not evaluated."""
    value: Any = None
    for argument in arguments:
        value = argument(variables, dot)
        if bool(value) is decides:
            return value
    return last[0] if last else value


def _field(operand: Operand, names: Sequence[str], at: At, variables: Variables, dot: Any) -> Any:
    value = operand(variables, dot)
    for name in names:
        if not isinstance(value, dict):
            raise at(f"{kind_of(value)} has no field {quote(name)}")
        if name not in value:
            raise at(f"there is no key {quote(name)}")
        value = value[name]
    return value
