"""The source of man pages: man(7) macros that groff and mandoc accept without a warning. Pure.

Texts are plain. Backticks enclose literal text.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

WIDTH: Final = 79

_SPECIAL: Final = {
    "\\": r"\e",
    "-": r"\-",
    "'": r"\(aq",
    '"': r"\(dq",
    "`": r"\(ga",
    "^": r"\(ha",
    "~": r"\(ti",
}
_APOSTROPHE: Final = re.compile(r"(?<=\w)'(?=\w)|(?<=s)'(?= )")
_SENTENCE_END: Final = re.compile(r"(?<=[.?!])\s+(?=[A-Z`\"/])")


class Terms(NamedTuple):
    items: tuple[tuple[str, str], ...]


class Point(NamedTuple):
    """A statement and the reasons for it."""

    text: str
    reasons: tuple[str, ...]


class Points(NamedTuple):
    items: tuple[Point, ...]


class Lines(NamedTuple):
    """Lines that are shown verbatim, such as commands."""

    lines: tuple[str, ...]


Block = str | Terms | Points | Lines
"""A paragraph, or a block between paragraphs."""


def literal(text: str) -> str:
    return "".join(_character(character) for character in text)


def bold(text: str) -> str:
    """Return literal text, in bold."""
    return rf"\fB{literal(text)}\fP"


def italic(text: str) -> str:
    """Return a placeholder, in italics."""
    return rf"\fI{literal(text)}\fP"


def inline(text: str) -> str:
    """Return prose whose backticks enclose literal text."""
    pieces = text.split("`")
    if not len(pieces) % 2:
        raise ValueError(f"an odd number of backticks: {text}")
    return "".join(
        bold(piece) if number % 2 else _prose(piece) for number, piece in enumerate(pieces)
    )


def title(name: str, section: int, *, date: str, source: str) -> list[str]:
    return [
        f'.TH {literal(name.upper())} {section} {date} "{source}" "pycrictl manual"',
        ".nh",
        ".nr HY 0",  # groff resets hyphenation to this at each paragraph
        ".ad l",
    ]


def heading(text: str) -> str:
    return f'.SH "{literal(text)}"'


def subheading(text: str) -> str:
    return f'.SS "{literal(text)}"'


def paragraph(text: str) -> list[str]:
    """Return prose, wrapped, with each sentence on a new line."""
    return [
        _guarded(line)
        for sentence in _SENTENCE_END.split(" ".join(text.split()))
        for line in textwrap.wrap(
            inline(sentence), WIDTH, break_long_words=False, break_on_hyphens=False
        )
    ]


def term(head: str, text: str) -> list[str]:
    """Return a term, given as roff, and its explanation."""
    return [".TP", _guarded(head), *paragraph(text)]


def part(blocks: Iterable[Block]) -> Iterator[str]:
    """Yield the lines of the blocks under a heading."""
    is_first = True
    for block in blocks:
        match block:
            case str():
                yield from [] if is_first else [".PP"]
                yield from paragraph(block)
            case Terms():
                for head, text in block.items:
                    yield from term(inline(head), text)
            case Points():
                for text, reasons in block.items:
                    yield from [r".IP \(bu 2", *paragraph(" ".join((text, *reasons)))]
            case Lines():
                yield from [".PP"] if not is_first else []
                yield from [".RS 4", ".EX"]
                yield from (_guarded(literal(line)) for line in block.lines)
                yield from [".EE", ".RE"]
        is_first = False


def page(lines: Iterable[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode("ascii")


def _character(character: str) -> str:
    if character in _SPECIAL:
        return _SPECIAL[character]
    return character if character.isascii() else f"\\[u{ord(character):04X}]"


def _prose(text: str) -> str:
    # A quote between letters is an apostrophe, which is set as the typographic one.
    return r"\(cq".join(literal(piece) for piece in _APOSTROPHE.split(text))


def _guarded(line: str) -> str:
    """Return a line, escaped if its first character would make it a request."""
    return rf"\&{line}" if line.startswith((".", "'")) else line
