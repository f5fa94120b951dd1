"""Generators of completion scripts: what is fixed stands in them, and Tab asks for the rest."""

from __future__ import annotations

from pycrictl.cli.commands.shell import FILES
from tools import surface
from tools.completions import bash, fish, zsh

_MAKERS = {"bash": bash.script, "zsh": zsh.script, "fish": fish.script}


def files() -> dict[str, bytes]:
    """Return the scripts of all shells by the names of their files."""
    program = surface.program()
    return {name: _MAKERS[shell](program).encode() for shell, name in FILES.items()}
