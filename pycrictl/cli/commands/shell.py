"""For shells and editors: completion scripts and JSON Schemas."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from pycrictl.base.errors import MissingArgument
from pycrictl.cli.context import AppContext

FILES: Final = {"bash": "pycrictl.bash", "zsh": "_pycrictl", "fish": "pycrictl.fish"}
"""The script of each shell, in the folder ``completions``."""


def completion(
    ctx: typer.Context,
    shell: Annotated[
        Literal["bash", "zsh", "fish"], typer.Argument(metavar="[bash|zsh|fish]", help="The shell.")
    ] = "bash",
) -> None:
    """Print a shell completion script.

    In bash: source <(pycrictl completion bash). In zsh, after compinit: the same with zsh. In fish:
    pycrictl completion fish | source. Run as crictl, it prints the script for that name.

    The script runs pycrictl for each completion, with the endpoints given on the line so far, and
    offers nothing if that takes longer than PYCRICTL_COMPLETION_TIMEOUT (default: 1.5s). Paths in
    containers are offered to root only.

    Example: pycrictl completion zsh
    """
    app: AppContext = ctx.obj
    script = (_folder() / FILES[shell]).read_text("utf-8")
    app.env.stdout.write(_named(script, app.program))


def _folder() -> Path:
    """Return the folder in the package, or in the tree of an editable installation."""
    package = Path(__file__).parents[2]
    packaged = package / "completions"
    return packaged if packaged.is_dir() else package.parent / "completions"


def _named(script: str, program: str) -> str:
    place = r"(program[= ]|complete -[cF] (?:_pycrictl )?|compdef (?:_pycrictl )?|== _)pycrictl\b"
    return re.sub(place, rf"\1{program}", script)


def pod(ctx: typer.Context) -> None:
    """Print the JSON Schema of pod configurations.

    Example: pycrictl runp jsonschema
    """
    app: AppContext = ctx.obj
    _write_schema(app, "pod")


def pod_and_container(
    ctx: typer.Context,
    pod: Annotated[bool, typer.Option("--pod", "-p", help="The schema of a pod.")] = False,
    container: Annotated[
        bool, typer.Option("--container", "-c", help="The schema of a container.")
    ] = False,
) -> None:
    """Print the JSON Schemas of pod and container configurations.

    Example: pycrictl create jsonschema --container
    """
    app: AppContext = ctx.obj
    if not pod and not container:
        raise MissingArgument("no schema is selected", hint="give --pod, --container or both")
    if pod:
        _write_schema(app, "pod")
    if container:
        _write_schema(app, "container")


def _write_schema(app: AppContext, name: str) -> None:
    app.env.stdout.write((Path(__file__).parent / "schemas" / f"{name}.json").read_text("utf-8"))
