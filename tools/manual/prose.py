"""Reader of the prose in man/prose. ``man/prose/README.md`` describes the format."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from tools.manual.roff import Block, Lines, Point, Points, Terms

FOLDER: Final = Path(__file__).parents[2] / "man" / "prose"

_INCLUDE: Final = re.compile(r"(?m)^@include (\S+)$")
_SECTION: Final = re.compile(r"(?m)^# ")
_PART: Final = re.compile(r"(?m)^## ")
_CHUNK: Final = re.compile(r"\n{2,}")
_CODE: Final = re.compile(r"(?m)^    ")
_POINT: Final = re.compile(r"(?m)^- ")
_REASON: Final = re.compile(r"(?m)^  - ")
_TERM: Final = re.compile(r"(?s)(.+?)\n:(?: (.*))?")


class Section(NamedTuple):
    """The text below a heading."""

    title: str
    blocks: tuple[Block, ...]
    parts: tuple[Section, ...]


@cache
def read(name: str) -> tuple[Section, ...]:
    """Return the sections of a file in order; none if there is no such file."""
    path = FOLDER / name
    if not path.exists():
        return ()
    text = _INCLUDE.sub(_included, path.read_text("utf-8"))
    before, *sections = _SECTION.split(text)
    if before:
        raise ValueError(f"{name}: text before the first heading: {before}")
    return tuple(map(_section, sections))


def section(name: str, title: str) -> Section:
    return next((part for part in read(name) if part.title == title), Section(title, (), ()))


def _included(include: re.Match[str]) -> str:
    return (FOLDER / "shared" / include[1]).read_text("utf-8")


def _section(text: str) -> Section:
    text, *parts = _PART.split(text)
    title, *chunks = _CHUNK.split(text.strip("\n"))
    return Section(title, _blocks(chunks), tuple(map(_section, parts)))


def _blocks(chunks: Iterable[str]) -> tuple[Block, ...]:
    """Return the blocks for chunks of lines; consecutive terms are one block."""
    blocks: list[Block] = []
    for chunk in chunks:
        if chunk.startswith("    "):
            blocks.append(Lines(tuple(_CODE.sub("", chunk).split("\n"))))
        elif chunk.startswith("- "):
            points = (map(_line, _REASON.split(item)) for item in _POINT.split(chunk)[1:])
            blocks.append(Points(tuple(Point(text, tuple(reasons)) for text, *reasons in points)))
        elif term := _TERM.fullmatch(chunk):
            items = ((_line(term[1]), _line(term[2] or "")),)
            if blocks and isinstance(last := blocks[-1], Terms):
                blocks[-1] = Terms(last.items + items)
            else:
                blocks.append(Terms(items))
        else:
            blocks.append(_line(chunk))
    return tuple(blocks)


def _line(text: str) -> str:
    return " ".join(text.split())
