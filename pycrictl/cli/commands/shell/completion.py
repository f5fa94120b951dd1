"""``pycrictl completion``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from pycrictl.cli.context import AppContext

FILES: Final = {"bash": "pycrictl.bash", "zsh": "_pycrictl", "fish": "pycrictl.fish"}
"""The script of each shell, in the folder ``completions``."""


def completion(
    ctx: typer.Context,
    shell: Annotated[
        Literal["bash", "zsh", "fish"],
        typer.Argument(metavar="[bash|zsh|fish]", help="The shell."),
    ] = "bash",
) -> None:
    """Print a shell completion script.

    In bash: source <(pycrictl completion bash). In zsh: the same, after compinit. In fish: pycrictl
    completion fish | source. A program called crictl prints the script for that name.

    Commands, options and fixed values are in the script. For IDs, names and paths in containers it
    runs pycrictl, with the endpoints given on the line so far, and offers none if that takes longer
    than 1.5s, or than PYCRICTL_COMPLETION_TIMEOUT. Paths are offered to root only.

    Example: pycrictl completion zsh
    """
    app: AppContext = ctx.obj
    script = (_folder() / FILES[shell]).read_text("utf-8")
    app.env.stdout.write(_named(script, app.program))


def _folder() -> Path:
    """Return the folder of scripts in the package, or in the tree of an editable installation."""
    package = Path(__file__).parents[3]
    packaged = package / "completions"
    return packaged if packaged.is_dir() else package.parent / "completions"


def _named(script: str, program: str) -> str:
    """Put the program's name where a script names what it completes, and what it runs."""
    place = r"(program[= ]|complete -[cF] (?:_pycrictl )?|compdef (?:_pycrictl )?|== _)pycrictl\b"
    return re.sub(place, rf"\1{program}", script)
