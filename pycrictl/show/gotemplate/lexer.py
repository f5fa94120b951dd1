"""From the text of a template to tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from pycrictl.show.gotemplate.nodes import Position, TemplateError
from pycrictl.units import quote

LEFT: Final = "{{"
RIGHT: Final = "}}"
SPACES: Final = " \t\r\n"


class TokenKind(Enum):
    TEXT = auto()
    LEFT = auto()
    RIGHT = auto()
    SPACE = auto()
    NAME = auto()
    FIELD = auto()
    VARIABLE = auto()
    DOT = auto()
    STRING = auto()
    RAW_STRING = auto()
    CHARACTER = auto()
    NUMBER = auto()
    OPERATOR = auto()
    END = auto()


@dataclass(frozen=True, slots=True)
class Token:
    """A word and where it begins, in characters from the start of the template."""

    kind: TokenKind
    text: str
    position: int


# The first kind whose expression matches is taken. A sign belongs to the number that follows it.
_WORDS: Final = tuple(
    (kind, re.compile(expression))
    for kind, expression in (
        (TokenKind.SPACE, rf"[{SPACES}]+"),
        (TokenKind.NUMBER, r"[+-]?(?:\.?[0-9])(?:[eEpP][+-]|[\w.])*"),
        (TokenKind.FIELD, r"\.[^\W\d]\w*"),
        (TokenKind.DOT, r"\."),
        (TokenKind.VARIABLE, r"\$\w*"),
        (TokenKind.NAME, r"[^\W\d]\w*"),
        (TokenKind.STRING, r'"(?:[^"\\\n]|\\.)*"'),
        (TokenKind.RAW_STRING, r"`[^`]*`"),
        (TokenKind.CHARACTER, r"'(?:[^'\\\n]|\\.)+'"),
        (TokenKind.OPERATOR, r":=|[=|(),]"),
    )
)
_UNCLOSED: Final = {'"': "string", "`": "raw string", "'": "character"}
_LEFT: Final = re.compile(rf"\{{\{{(-(?=[{SPACES}]))?")
_RIGHT: Final = re.compile(rf"(?:[{SPACES}]+-)?}}}}")
_COMMENT: Final = re.compile(rf"[{SPACES}]*/\*(?s:.*?)\*/")


class TemplateSource:
    """The text of a template, which knows its lines."""

    def __init__(self, text: str) -> None:
        self.text = text

    def place(self, position: int, source: str = "") -> Position:
        line_start = self.text.rfind("\n", 0, position) + 1
        line = self.text.count("\n", 0, position) + 1
        return Position(line, position - line_start, source)

    def error(self, position: int, message: str, *, hint: str | None = None) -> TemplateError:
        line = self.place(position).line
        return TemplateError(f"template: :{line}: {message}", hint=hint)


def tokens(source: TemplateSource) -> Iterator[Token]:
    """Yield the words of a template. White space in actions is kept: it separates arguments."""
    text, position, trims = source.text, 0, False
    while True:
        left = _LEFT.search(text, position)
        copied = text[position : left.start() if left else None]
        if trims:
            copied = copied.lstrip(SPACES)
        if left and left[1]:
            copied = copied.rstrip(SPACES)
        if copied:
            yield Token(TokenKind.TEXT, copied, position)
        if not left:
            yield Token(TokenKind.END, "", len(text))
            return
        if comment := _COMMENT.match(text, left.end()):
            right = _RIGHT.match(text, comment.end())
            if not right:
                raise source.error(left.start(), "a comment must fill its action")
            position = right.end()
        else:
            yield Token(TokenKind.LEFT, left[0], left.start())
            words = list(_action(source, left.end()))
            yield from words
            right_token = words[-1]
            position = right_token.position + len(right_token.text)
        trims = text.startswith("-}}", position - 3)


def _action(source: TemplateSource, start: int) -> Iterator[Token]:
    position = start
    while not (right := _RIGHT.match(source.text, position)):
        if position == len(source.text):
            raise source.error(start, "unclosed action")
        token = _word(source, position)
        yield token
        position += len(token.text)
    yield Token(TokenKind.RIGHT, right[0], position)


def _word(source: TemplateSource, position: int) -> Token:
    for kind, expression in _WORDS:
        if match := expression.match(source.text, position):
            return Token(kind, match[0], position)
    char = source.text[position]
    if char in _UNCLOSED:
        raise source.error(position, f"unclosed {_UNCLOSED[char]}")
    hint = 'keys with dashes are read so: {{index .labels "a-key"}}' if char == "-" else None
    raise source.error(position, f"unexpected {quote(char)} in an action", hint=hint)
