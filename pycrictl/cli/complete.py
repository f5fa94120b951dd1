"""Completers: the ``autocompletion=`` of options and arguments.

Files and directories are left to the shell, by the directive that goes with their completer.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

if TYPE_CHECKING:
    from pycrictl.cli.context import AppContext

Completer = Callable[..., Any]
"""As Typer has it: takes the context, the beginning of a word, or both; gives whole words, with a
description or without. A word that ends in ``/``, ``:`` or ``=`` can be continued."""

FILES: Final = 0
"""cobra's ShellCompDirectiveDefault: files as well."""

NO_SPACE: Final = 2
"""cobra's ShellCompDirectiveNoSpace: words can be continued; files as well."""

NO_FILES: Final = 4
"""cobra's ShellCompDirectiveNoFileComp."""

DIRECTORIES: Final = 16
"""cobra's ShellCompDirectiveFilterDirs."""


def words(*fixed: str) -> Completer:
    return lambda incomplete: [word for word in fixed if word.startswith(incomplete)]


def files(incomplete: str) -> list[str]:
    return []


def directories(incomplete: str) -> list[str]:
    return []


def sockets(incomplete: str) -> list[str]:
    from pycrictl.cri.calls.endpoints import ENDPOINTS  # noqa: PLC0415 - needs gRPC

    return [each for each in ENDPOINTS if Path(each.removeprefix("unix://")).exists()]


def _known(kind: str) -> Completer:
    def complete(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
        from pycrictl.cli.completion import candidates  # noqa: PLC0415 - only when Tab is pressed

        app: AppContext = ctx.obj
        return [*candidates.find(kind, incomplete, app.config)]

    return complete


containers = _known("container")
created_containers = _known("created-container")
running_containers = _known("running-container")
logs = _known("log")
pods = _known("pod")
images = _known("image")
container_paths = _known("container-path")
"""Local paths are left to the shell, too."""


def remote_paths(ctx: typer.Context, incomplete: str) -> list[str]:
    container = ctx.params.get("container")
    if not container or not incomplete.startswith("/"):
        return []
    found = container_paths(ctx, f"{container}:{incomplete}")
    return [word.removeprefix(f"{container}:") for word, _ in found]


def pod_paths(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    from pycrictl.cli.completion import cluster_names  # noqa: PLC0415 - of kubectl's plugins alone

    return [(f"{name}:", about) for name, about in cluster_names.pods_at(ctx, incomplete)]


DIRECTIVES: Final[dict[Completer | None, int]] = {
    files: FILES,
    sockets: FILES,
    directories: DIRECTORIES,
    container_paths: NO_SPACE,
    pod_paths: NO_SPACE,
}
"""Of all others it is NO_FILES."""
