"""The code blocks of pages in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from tests.e2e.node.machine import ROOT

README: Final = (ROOT / "README.md").read_text("utf-8")
FIRST, _, REST = README.partition("\n## Try it\n")


class Block(NamedTuple):
    """A fenced block, and the language named in its opening fence."""

    language: str
    text: str


def blocks(text: str) -> list[Block]:
    return [Block(*match) for match in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.M | re.S)]


def statements(block: Block) -> Iterator[str]:
    """Yield the commands of a block, each with its here-document and without its comment."""
    lines = iter(block.text.splitlines())
    for line in lines:
        if block.language == "console":
            if not line.startswith("$ "):
                continue
            line = line.removeprefix("$ ")
        while line.endswith("\\"):
            line += f"\n{next(lines)}"
        if match := re.search(r"<<-?'?(\w+)'?", line):
            while not line.endswith(f"\n{match[1]}"):
                line += f"\n{next(lines)}"
            yield line
        elif command := re.sub(r"(^|\s+)#.*", "", line):
            yield command
