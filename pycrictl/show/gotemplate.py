"""Go templates, as ``--output go-template`` takes them. Pure.

What administrators write works as in Go's ``text/template``: fields, ``if``, ``else if``,
``range``, ``with``, variables, pipelines, parentheses, trimming of white space, and the functions
of ``gofunctions``. A key that the data lacks is an error. Comments, ``break``, ``continue``,
``define``, ``template``, ``block`` and ``call`` are refused. Numbers are numbers here: crictl keeps
them as text, so that ``{{if .status.exitCode}}`` is always true there.

The parser makes functions of the text, which take the variables and the current value (``dot``).
A variable is known by its place in the list of those that are visible where it stands.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple

from pycrictl.errors import UsageError
from pycrictl.show.gofunctions import DECIDING, FUNCTIONS, plain
from pycrictl.units import parse_int, quote

MAX_DEPTH: Final = 100
"""Blocks and parentheses inside one another."""

UNSUPPORTED: Final = ("define", "template", "block", "call", "break", "continue")
BLOCKS: Final = ("if", "with", "range")
KEYWORDS: Final = (*BLOCKS, "else", "end")
CONSTANTS: Final = {"true": True, "false": False, "nil": None}
KINDS: Final = {
    type(None): "null",
    str: "a string",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    list: "a list",
}

_SPACES: Final = " \t\r\n"
_WORD: Final = re.compile(
    rf"(?P<space>[{_SPACES}]+)"
    r"|(?P<number>[+-]?\.?[0-9](?:[eE][+-]|[\w.])*)"  # a sign belongs to the number that follows it
    r"|(?P<field>\.[^\W\d]\w*)|(?P<dot>\.)|(?P<variable>\$\w*)|(?P<name>[^\W\d]\w*)"
    r'|(?P<string>"(?:[^"\\\n]|\\.)*"|`[^`]*`)|(?P<operator>:=|[=|(),])'
)
_LEFT: Final = re.compile(rf"\{{\{{(-(?=[{_SPACES}]))?")
_RIGHT: Final = re.compile(rf"(?:[{_SPACES}]+-)?}}}}")
_DECLARED: Final = re.compile(r"(\$\w+)\s*(?:,\s*(\$\w+)\s*)?(:?=)")
_NO_ESCAPE: Final = re.compile(r'(?<!\\)(?:\\\\)*\\[^abfnrtvxuU0-7\\"]')


class TemplateError(UsageError):
    """A template is malformed, or does not fit its data; the message says where."""

    reference: ClassVar[str] = "template"


class Variables(dict[int, Any]):
    def __init__(self) -> None:
        self.output: list[str] = []


Operand = Callable[[Variables, Any], Any]
Command = Callable[[Variables, Any, list[Any]], Any]
"""Takes the value of the command before it as well, if there is one."""

Node = Callable[[Variables, Any], None]
Nodes = Sequence[Node]
At = Callable[[str], TemplateError]
"""Makes an error of a place in the template."""


class GoTemplate:
    def __init__(self, text: str) -> None:
        self._nodes = _Parser(text).template()

    def render(self, data: Any) -> str:
        variables = Variables()
        variables[0] = data
        _walk(self._nodes, variables, data)
        return "".join(variables.output)


class _Token(NamedTuple):
    kind: str
    text: str
    position: int


class _Pipeline(NamedTuple):
    at: At
    places: Sequence[int]
    value: Operand


class _Parser:
    """One pass over the words, which is always one word ahead."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.words = self.tokens()
        self.word = next(self.words)
        self.depth = 0
        self.variables = ["$"]

    def template(self) -> Nodes:
        nodes, end = self.nodes()
        if end.kind != "end":
            raise self.error(end.position, f"unexpected {{{{{end.text}}}}}")
        return nodes

    def error(self, position: int, message: str, *, hint: str | None = None) -> TemplateError:
        return TemplateError(f"template: :{self.line(position)}: {message}", hint=hint)

    def at(self, position: int, source: str) -> At:
        column = position - self.text.rfind("\n", 0, position) - 1
        place = f":{self.line(position)}:{column}: at <{source}>"
        return lambda message: TemplateError(f"template: {place}: {message}")

    def line(self, position: int) -> int:
        return self.text.count("\n", 0, position) + 1

    def unexpected(self, word: _Token, where: str) -> TemplateError:
        text = quote(word.text) if word.kind != "right" else "end of the action"
        return self.error(word.position, f"unexpected {text} in {where}")

    def tokens(self) -> Iterator[_Token]:
        """Yield the words. White space in actions is kept: it separates arguments."""
        text, position, trims = self.text, 0, False
        while True:
            left = _LEFT.search(text, position)
            copied = text[position : left.start() if left else None]
            if trims:
                copied = copied.lstrip(_SPACES)
            if left and left[1]:
                copied = copied.rstrip(_SPACES)
            if copied:
                yield _Token("text", copied, position)
            if not left:
                yield _Token("end", "", len(text))
                return
            yield _Token("left", left[0], left.start())
            position = left.end()
            while not (right := _RIGHT.match(text, position)):
                if position == len(text):
                    raise self.error(left.end(), "unclosed action")
                word = _WORD.match(text, position)
                if word is None:
                    raise self.no_word(position)
                yield _Token(word.lastgroup or "", word[0], position)
                position = word.end()
            yield _Token("right", right[0], position)
            position = right.end()
            trims = text.startswith("-}}", position - 3)

    def no_word(self, position: int) -> TemplateError:
        char = self.text[position]
        if char in '"`':
            return self.error(position, "unclosed string")
        hint = 'keys with dashes are read so: {{index .labels "a-key"}}' if char == "-" else None
        return self.error(position, f"unexpected {quote(char)} in an action", hint=hint)

    def take(self) -> _Token:
        word = self.word
        if word.kind != "end":
            self.word = next(self.words)
        return word

    def skip_space(self) -> _Token:
        while self.word.kind == "space":
            self.take()
        return self.word

    def is_operator(self, text: str) -> bool:
        return self.word.kind == "operator" and self.word.text == text

    def close(self, what: str) -> None:
        word = self.skip_space()
        if word.kind != "right":
            raise self.unexpected(word, what)
        self.take()

    def deeper(self, word: _Token) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(word.position, "nested too deeply")

    # Blocks

    def nodes(self) -> tuple[Nodes, _Token]:
        """Read up to an ``end``, an ``else`` or the end of the template, and take that word."""
        self.deeper(self.word)
        known = len(self.variables)
        found: list[Node] = []
        while True:
            word = self.take()
            if word.kind == "end":
                break
            if word.kind == "text":
                found.append(partial(_write, word.text))
                continue
            first = self.skip_space()
            if first.kind == "name" and first.text in ("end", "else"):
                word = self.take()
                if word.text == "end":
                    self.close("{{end}}")
                break
            found.append(self.action(first))
        self.depth -= 1
        del self.variables[known:]
        return found, word

    def action(self, first: _Token) -> Node:
        if first.kind == "name" and first.text in BLOCKS:
            return self.branch(self.take())
        if first.kind == "name" and first.text in UNSUPPORTED:
            raise self.error(first.position, f"{{{{{first.text}}}}} is not supported")
        pipeline = self.pipeline("the action", max_variables=1)
        self.close("the action")
        return partial(_act, pipeline)

    def branch(self, keyword: _Token) -> Node:
        known = len(self.variables)
        pipeline = self.pipeline(keyword.text, max_variables=1 + (keyword.text == "range"))
        self.close(keyword.text)
        body, end = self.nodes()
        otherwise: Nodes = ()
        if end.text == "else":
            otherwise, end = self.otherwise(keyword)
        if end.kind == "end":
            raise self.error(keyword.position, f"{{{{{keyword.text}}}}} without {{{{end}}}}")
        del self.variables[known:]
        return partial(_branch, keyword.text, pipeline, body, otherwise)

    def otherwise(self, keyword: _Token) -> tuple[Nodes, _Token]:
        word = self.skip_space()
        if word.kind == "name" and word.text == keyword.text and keyword.text != "range":
            # One {{end}} closes the whole chain.
            self.deeper(word)
            inner = self.branch(self.take())
            self.depth -= 1
            return (inner,), _Token("name", "end", word.position)
        self.close("{{else}}")
        nodes, end = self.nodes()
        if end.text == "else":
            raise self.error(end.position, "a second {{else}}")
        return nodes, end

    def pipeline(self, where: str, *, max_variables: int) -> _Pipeline:
        start = self.skip_space()
        self.deeper(start)
        names, declares = self.declarations(max_variables)
        commands = [self.command(where)]
        while self.is_operator("|"):
            self.take()
            commands.append(self.command(where, is_first=False))
        self.depth -= 1
        if declares:
            self.variables += names
        places = [self.place(name) for name in names]
        at = self.at(start.position, self.text[start.position : self.word.position].rstrip())
        return _Pipeline(at, places, partial(_piped, commands, places))

    def declarations(self, max_variables: int) -> tuple[Sequence[str], bool]:
        """Read ``$a :=``, ``$a =`` or ``$a, $b :=`` at the start of a pipeline, if it is there."""
        start = self.word
        match = _DECLARED.match(self.text, start.position)
        if start.kind != "variable" or not match:
            return (), False
        names = [name for name in match.group(1, 2) if name]
        if len(names) > max_variables:
            raise self.error(start.position, "too many variables are set here")
        declares = match[3] == ":="
        for name in names:
            if not declares and name not in self.variables:
                raise self.error(start.position, f"undefined variable {name}")
        while self.word.position < match.end():
            self.take()
        return names, declares

    def place(self, name: str) -> int:
        return len(self.variables) - 1 - self.variables[::-1].index(name)

    def command(self, where: str, *, is_first: bool = True) -> Command:
        start = self.skip_space()
        is_function = start.kind == "name" and start.text not in (*CONSTANTS, *KEYWORDS)
        if is_function:
            self.take()
        operands: list[Operand] = []
        while self.skip_space().kind not in ("right", "end"):
            if self.is_operator(")") or self.is_operator("|"):
                break
            operands.append(self.operand(where))
            is_parted = self.word.kind in ("space", "right")
            if not is_parted and not self.is_operator(")") and not self.is_operator("|"):
                raise self.unexpected(self.word, where)
        if is_function:
            source = self.text[start.position : self.word.position].rstrip()
            return self.called(start, self.at(start.position, source), operands, is_first)
        if not operands:
            raise self.error(start.position, f"missing value in {where}")
        if not is_first:
            raise self.error(start.position, f"only a function can follow | in {where}")
        if len(operands) > 1:
            raise self.error(start.position, "only functions take arguments")
        return lambda variables, dot, _: operands[0](variables, dot)

    def called(self, name: _Token, at: At, arguments: Sequence[Operand], is_first: bool) -> Command:
        count = len(arguments) + (not is_first)
        function, least, most = FUNCTIONS.get(name.text, (None, 1, None))
        if function is None and name.text not in DECIDING:
            raise self.error(name.position, f'there is no function "{name.text}"')
        if count < least or (most is not None and count > most):
            limit = f"{least}" if least == most else f"{least} or more"
            raise at(f"{name.text} takes {limit} arguments, not {count}")
        if function is None:
            return partial(_decide, DECIDING[name.text], arguments)
        return partial(_call, name.text, at, arguments)

    def operand(self, where: str) -> Operand:
        start = self.word
        is_of_dot = start.kind == "field"
        operand: Operand = (lambda _, dot: dot) if is_of_dot else self.term(where)
        fields: list[_Token] = []
        while self.word.kind == "field":
            fields.append(self.take())
        if not fields:
            return operand
        if start.kind in ("string", "number", "name"):
            raise self.error(start.position, f"{start.text} has no fields")
        end = fields[-1].position + len(fields[-1].text)
        # Of several fields Go names the place of the second, and of a variable's that of the first.
        position = fields[1 if is_of_dot and len(fields) > 1 else 0].position
        at = self.at(position, self.text[start.position : end])
        return partial(_field, operand, [field.text[1:] for field in fields], at)

    def term(self, where: str) -> Operand:
        word = self.take()
        match word.kind:
            case "dot":
                return lambda _, dot: dot
            case "variable":
                if word.text not in self.variables:
                    raise self.error(word.position, f"undefined variable {word.text}")
                place = self.place(word.text)
                return lambda variables, _: variables[place]
            case "name" if word.text in CONSTANTS:
                constant = CONSTANTS[word.text]
                return lambda *_: constant
            case "string" | "number":
                value = self.constant(word)
                return lambda *_: value
            case "operator" if word.text == "(":
                pipeline = self.pipeline("parentheses", max_variables=0)
                if not self.is_operator(")"):
                    raise self.error(word.position, "unclosed parenthesis")
                self.take()
                return pipeline.value
        raise self.unexpected(word, where)

    def constant(self, word: _Token) -> Any:
        if word.text[0] == "`":
            return word.text[1:-1].replace("\r", "")
        try:
            if word.kind == "number":
                return _number(word.text)
            if _NO_ESCAPE.search(word.text):
                raise ValueError("unknown escape")
            text: str = ast.literal_eval(word.text)  # Go's escapes are among Python's
            text.encode()  # half of a surrogate pair is not a character
            return text
        except (ValueError, SyntaxError):
            raise self.error(word.position, f"{quote(word.text)} is not valid") from None


def _number(text: str) -> int | float:
    try:
        return parse_int(text)
    except ValueError:
        if "0x" in text.lower() or not any(char in text for char in ".eE"):
            raise
        number = float(text)
        if not math.isfinite(number):
            raise
        return number


# What is made of the words


def _walk(nodes: Nodes, variables: Variables, dot: Any) -> None:
    for node in nodes:
        node(variables, dot)


def _write(text: str, variables: Variables, _: Any) -> None:
    variables.output.append(text)


def _act(pipeline: _Pipeline, variables: Variables, dot: Any) -> None:
    value = pipeline.value(variables, dot)
    if not pipeline.places:
        variables.output.append(plain(value))


def _branch(
    keyword: str,
    pipeline: _Pipeline,
    body: Nodes,
    otherwise: Nodes,
    variables: Variables,
    dot: Any,
) -> None:
    # As in Go, all variables of a loop hold the whole value in {{else}}.
    value = pipeline.value(variables, dot)
    if keyword != "range":
        inner = dot if keyword == "if" else value
        _walk(body if value else otherwise, variables, inner if value else dot)
        return
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = [(key, value[key]) for key in sorted(value)]
    elif isinstance(value, list):
        items = list(enumerate(value))
    elif value is not None:
        raise pipeline.at(f"{KINDS[type(value)]} cannot be iterated over")
    for item in items:
        # One variable gets the item, two get its key or place before it.
        variables.update(zip(pipeline.places, item[-len(pipeline.places) :], strict=False))
        _walk(body, variables, item[1])
    if not items:
        _walk(otherwise, variables, dot)


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
    """Return the first value with this truth; those after it may not even have a value."""
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
            raise at(f"{KINDS[type(value)]} has no field {quote(name)}")
        if name not in value:
            raise at(f"there is no key {quote(name)}")
        value = value[name]
    return value
