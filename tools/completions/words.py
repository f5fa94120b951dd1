"""What the scripts contain: the tree, with kinds of words as short texts, and known sockets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pycrictl.cri.calls.endpoints import ENDPOINTS as KNOWN
from tools.surface import Argument, Command, Completes, Option

HELP: Final = ("help", "h")

ENDPOINTS: Final = " ".join(KNOWN)
"""Sockets that are offered if they exist; none of their characters is special to a shell."""


def spellings(command: Command, program: Command) -> list[str]:
    """Return all ways to write a command's path, aliases included."""
    found = [""]
    level = program
    for name in command.path:
        level = next(inner for inner in level.subcommands if inner.name == name)
        names = (level.name, *level.aliases)
        found = [f"{before} {name}".strip() for before in found for name in names]
    return found


def names(command: Command) -> Iterator[tuple[str, str]]:
    """Yield the names and aliases of the commands below one, with their summaries."""
    for inner in command.subcommands:
        for name in (inner.name, *inner.aliases):
            yield name, inner.summary


def kind(word: Option | Argument) -> str:
    """Return what a word completes to: ``a|b`` for fixed values, ``@``, ``@kind``, or nothing."""
    if word.choices:
        return "|".join(word.choices)
    if word.completes is Completes.NOTHING:
        return ""
    return "@" if word.completes is Completes.ASKED else f"@{word.completes.name.lower()}"


def description(text: str) -> str:
    """Return a help text as a description, without its full stop."""
    return text.removesuffix(".")
