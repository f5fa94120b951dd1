"""``pycrictl completion``."""

from __future__ import annotations

from typing import Annotated

import typer

from pycrictl.cli.context import app_context
from pycrictl.errors import UsageError


def completion(
    ctx: typer.Context,
    shell: Annotated[str, typer.Argument(metavar="[bash|zsh|fish]", help="The shell.")] = "bash",
) -> None:
    """Print the completion script of a shell.

    In bash: source <(pycrictl completion bash). In zsh likewise, after compinit. In fish: pycrictl
    completion fish | source. A program that is called crictl prints the script for that name.

    Commands, options and fixed values are in the script. For IDs, names and paths in containers it
    runs pycrictl, with the endpoints that the line names so far; there are none if that takes
    longer than 300ms, or than PYCRICTL_COMPLETION_TIMEOUT. Only root sees paths.

    Example: pycrictl completion zsh
    """
    from pycrictl.cli import shells

    if shell not in shells.SHELLS:
        raise UsageError(f'unknown shell "{shell}"', hint=f"shells are {', '.join(shells.SHELLS)}")
    program = ctx.find_root().info_name or "pycrictl"
    app_context(ctx).env.stdout.write(shells.script(shell, program))
