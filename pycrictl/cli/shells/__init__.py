"""Completion scripts: everything fixed stands in them, and only the rest is asked for by Tab."""

from __future__ import annotations

from typing import Final

SHELLS: Final = {"bash": "pycrictl.bash", "zsh": "_pycrictl", "fish": "pycrictl.fish"}
"""The shells, and how the script of each is named where it is installed."""


def script(shell: str, program: str = "pycrictl") -> str:
    """The completion script of a shell, made of the live command tree.

    Args:
        shell: one of SHELLS.
        program: the name under which the program is called.
    """
    from pycrictl.cli import surface
    from pycrictl.cli.shells import bash, fish, zsh

    makers = {"bash": bash.script, "zsh": zsh.script, "fish": fish.script}
    return makers[shell](surface.program(), program)


def files() -> dict[str, bytes]:
    """The scripts of all shells by their files' names."""
    return {name: script(shell).encode() for shell, name in SHELLS.items()}
