"""From the tokens of a template to nodes."""

from __future__ import annotations

import math
import re
from typing import Any, Final

from pycrictl.show.gotemplate.functions import DECIDING, FUNCTIONS
from pycrictl.show.gotemplate.lexer import TemplateSource, Token, TokenKind, tokens
from pycrictl.show.gotemplate.nodes import (
    Action,
    Branch,
    CommandNode,
    Dot,
    Fields,
    Function,
    Jump,
    Literal,
    Node,
    Operand,
    Pipeline,
    Text,
    Variable,
)
from pycrictl.units import parse_int, quote

MAX_DEPTH: Final = 100
"""Blocks and parentheses inside one another."""

BLOCKS: Final = ("if", "with", "range")
JUMPS: Final = ("break", "continue")
UNSUPPORTED: Final = ("define", "template", "block", "call")
KEYWORDS: Final = (*BLOCKS, *JUMPS, *UNSUPPORTED[:3], "else", "end")
CONSTANTS: Final = {"true": True, "false": False, "nil": None}

_ESCAPE: Final = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})|(.))", re.DOTALL
)
_SIMPLE_ESCAPES: Final = {
    char: "\a\b\f\n\r\t\v\\\"'"[place] for place, char in enumerate("abfnrtv\\\"'")
}


def parse(text: str) -> tuple[Node, ...]:
    return _Parser(TemplateSource(text)).template()


class _Parser:
    """One pass over the words, which is always one word ahead."""

    def __init__(self, source: TemplateSource) -> None:
        self.source = source
        self.words = tokens(source)
        self.word = next(self.words)
        self.depth = 0
        self.loops = 0
        self.variables = ["$"]

    def template(self) -> tuple[Node, ...]:
        nodes, end = self.nodes()
        if end.kind is not TokenKind.END:
            raise self.source.error(end.position, f"unexpected {{{{{end.text}}}}}")
        return nodes

    # Words

    def take(self) -> Token:
        word = self.word
        if word.kind is not TokenKind.END:
            self.word = next(self.words)
        return word

    def skip_space(self) -> Token:
        """Return the next word that is not a space, without taking it."""
        while self.word.kind is TokenKind.SPACE:
            self.take()
        return self.word

    def is_operator(self, text: str) -> bool:
        return self.word.kind is TokenKind.OPERATOR and self.word.text == text

    def close(self, what: str) -> None:
        word = self.skip_space()
        if word.kind is not TokenKind.RIGHT:
            raise self.unexpected(word, what)
        self.take()

    def unexpected(self, word: Token, where: str) -> Exception:
        text = quote(word.text) if word.kind is not TokenKind.RIGHT else "end of the action"
        return self.source.error(word.position, f"unexpected {text} in {where}")

    # Blocks

    def nodes(self) -> tuple[tuple[Node, ...], Token]:
        """Read up to an ``end``, an ``else`` or the end of the template, and take that word."""
        self.deeper(self.word)
        found: list[Node] = []
        while True:
            word = self.take()
            if word.kind is TokenKind.END:
                break
            if word.kind is TokenKind.TEXT:
                found.append(Text(word.text))
                continue
            first = self.skip_space()
            if first.kind is TokenKind.NAME and first.text in ("end", "else"):
                word = self.take()
                if word.text == "end":
                    self.close("{{end}}")
                break
            found.append(self.action(first))
        self.depth -= 1
        return tuple(found), word

    def action(self, first: Token) -> Node:
        if first.kind is not TokenKind.NAME or first.text not in KEYWORDS:
            pipeline = self.pipeline("the action", max_variables=1)
            self.close("the action")
            return Action(pipeline)
        self.take()
        if first.text in UNSUPPORTED:
            raise self.source.error(first.position, f"{{{{{first.text}}}}} is not supported")
        if first.text in BLOCKS:
            return self.branch(first)
        if not self.loops:
            raise self.source.error(
                first.position, f"{{{{{first.text}}}}} outside of {{{{range}}}}"
            )
        self.close(f"{{{{{first.text}}}}}")
        return Jump(first.text)

    def branch(self, keyword: Token) -> Branch:
        known = len(self.variables)
        is_loop = keyword.text == "range"
        pipeline = self.pipeline(keyword.text, max_variables=2 if is_loop else 1)
        self.close(keyword.text)
        in_branch = len(self.variables)
        self.loops += is_loop
        body, end = self.nodes()
        self.loops -= is_loop
        del self.variables[in_branch:]
        otherwise: tuple[Node, ...] = ()
        if end.text == "else":
            otherwise, end = self.otherwise(keyword)
        if end.kind is TokenKind.END:
            raise self.source.error(keyword.position, f"{{{{{keyword.text}}}}} without {{{{end}}}}")
        del self.variables[known:]
        return Branch(keyword.text, pipeline, body, otherwise)

    def otherwise(self, keyword: Token) -> tuple[tuple[Node, ...], Token]:
        """Read what follows the word ``else``, and the word that ends it."""
        word = self.skip_space()
        if word.kind is TokenKind.NAME and word.text == keyword.text and keyword.text != "range":
            # One {{end}} closes the whole chain.
            self.deeper(word)
            inner = self.branch(self.take())
            self.depth -= 1
            return (inner,), Token(TokenKind.NAME, "end", word.position)
        self.close("{{else}}")
        nodes, end = self.nodes()
        if end.text == "else":
            raise self.source.error(end.position, "a second {{else}}")
        return nodes, end

    def deeper(self, word: Token) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.source.error(word.position, "nested too deeply")

    # Pipelines

    def pipeline(self, where: str, *, max_variables: int) -> Pipeline:
        start = self.skip_space()
        self.deeper(start)
        variables, declares = self.declarations(max_variables)
        commands: list[CommandNode] = []
        while True:
            commands.append(self.command(where))
            if len(commands) > 1 and isinstance(commands[-1].operands[0], Literal | Dot):
                raise self.source.error(
                    self.word.position, f"only a function can follow | in {where}"
                )
            if not self.is_operator("|"):
                break
            self.take()
        self.depth -= 1
        if declares:
            self.variables += variables
        source = self.source.text[start.position : self.word.position].rstrip()
        place = self.source.place(start.position, source)
        return Pipeline(place, tuple(commands), variables, declares)

    def declarations(self, max_variables: int) -> tuple[tuple[str, ...], bool]:
        """Read ``$a :=``, ``$a =`` or ``$a, $b :=`` at the start of a pipeline, if it is there."""
        start = self.word
        rest = self.source.text[start.position :]
        match = re.match(r"(\$\w+)\s*(?:,\s*(\$\w+)\s*)?(:?=)", rest)
        if start.kind is not TokenKind.VARIABLE or not match:
            return (), False
        names = tuple(name for name in match.group(1, 2) if name)
        if len(names) > max_variables:
            reason = "only {{range}} sets two variables"
            if not max_variables:
                reason = "variables cannot be set in parentheses"
            raise self.source.error(start.position, reason)
        declares = match[3] == ":="
        for name in names:
            if not declares and name not in self.variables:
                raise self.source.error(start.position, f"undefined variable {name}")
        while self.word.position < start.position + match.end():
            self.take()
        return names, declares

    def command(self, where: str) -> CommandNode:
        """Read operands up to a pipe or the end of the pipeline."""
        start = self.skip_space()
        operands: list[Operand] = []
        while True:
            word = self.skip_space()
            if word.kind in (TokenKind.RIGHT, TokenKind.END) or self.is_operator(")"):
                break
            if self.is_operator("|"):
                break
            operands.append(self.operand(where))
            is_parted = self.word.kind in (TokenKind.SPACE, TokenKind.RIGHT)
            if not is_parted and not self.is_operator(")") and not self.is_operator("|"):
                raise self.unexpected(self.word, where)
        if not operands:
            raise self.source.error(start.position, f"missing value in {where}")
        source = self.source.text[start.position : self.word.position].rstrip()
        return CommandNode(self.source.place(start.position, source), tuple(operands))

    def operand(self, where: str) -> Operand:
        start = self.word
        operand: Operand
        if start.kind is TokenKind.FIELD:
            operand = Dot(self.source.place(start.position, "."))
        else:
            operand = self.term(where)
        names: list[str] = []
        positions: list[int] = []
        while self.word.kind is TokenKind.FIELD:
            word = self.take()
            names.append(word.text[1:])
            positions.append(word.position)
        if not names:
            return operand
        if isinstance(operand, Literal | Function):
            raise self.source.error(start.position, f"{operand.place.source} has no fields")
        source = self.source.text[start.position : positions[-1] + 1 + len(names[-1])]
        # Of several fields Go names the place of the second, and of a variable's that of the first.
        is_of_dot = start.kind is TokenKind.FIELD
        position = positions[1] if is_of_dot and len(positions) > 1 else positions[0]
        return Fields(self.source.place(position, source), operand, tuple(names))

    def term(self, where: str) -> Operand:
        word = self.take()
        place = self.source.place(word.position, word.text)
        match word.kind:
            case TokenKind.DOT:
                return Dot(place)
            case TokenKind.VARIABLE:
                if word.text not in self.variables:
                    raise self.source.error(word.position, f"undefined variable {word.text}")
                return Variable(place, word.text)
            case TokenKind.NAME if word.text in CONSTANTS:
                return Literal(place, CONSTANTS[word.text])
            case TokenKind.NAME if word.text in FUNCTIONS or word.text in DECIDING:
                return Function(place, word.text)
            case TokenKind.NAME if word.text in UNSUPPORTED:
                raise self.source.error(word.position, f'function "{word.text}" is not supported')
            case TokenKind.NAME if word.text not in KEYWORDS:
                raise self.source.error(word.position, f'there is no function "{word.text}"')
            case TokenKind.STRING | TokenKind.RAW_STRING | TokenKind.CHARACTER | TokenKind.NUMBER:
                return Literal(place, self.value(word))
            case TokenKind.OPERATOR if word.text == "(":
                pipeline = self.pipeline("parentheses", max_variables=0)
                if not self.is_operator(")"):
                    raise self.source.error(word.position, "unclosed parenthesis")
                self.take()
                return pipeline
        raise self.unexpected(word, where)

    def value(self, word: Token) -> Any:
        if word.kind is TokenKind.RAW_STRING:
            return word.text[1:-1].replace("\r", "")
        try:
            if word.kind is TokenKind.NUMBER:
                return _number(word.text)
            text = _ESCAPE.sub(_unescape, word.text[1:-1])
            return ord(text) if word.kind is TokenKind.CHARACTER else text
        except (ValueError, TypeError):
            message = f"{quote(word.text)} is not valid"
            raise self.source.error(word.position, message) from None


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


def _unescape(match: re.Match[str]) -> str:
    *codes, octal, simple = match.groups()
    if simple:
        if simple not in _SIMPLE_ESCAPES:
            raise ValueError("unknown escape")
        return _SIMPLE_ESCAPES[simple]
    char = chr(int(octal, 8) if octal else int(next(filter(None, codes)), 16))
    char.encode()  # half of a surrogate pair is not a character: UnicodeEncodeError is a ValueError
    return char
