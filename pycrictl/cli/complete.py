"""Completers: the ``autocompletion=`` of options and arguments.

The scripts in ``completions/`` leave files, directories and sockets to the shell, and have fixed
words themselves. For all else they run the program, which calls the function of the declaration.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import typer

if TYPE_CHECKING:
    from pycrictl.cli.context import AppContext

Completer = Callable[..., Any]
"""As Typer has it: takes the context, the beginning of a word, or both; gives whole words, with a
description or without. A word that ends in ``/``, ``:`` or ``=`` can be continued."""

FIXED: Final[dict[Completer, tuple[str, ...]]] = {}
"""The words of those that have always the same."""


def words(*fixed: str) -> Completer:
    """Offer fixed words; of a parameter that takes no others, its type says them."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in fixed if word.startswith(incomplete)]

    FIXED[complete] = fixed
    return complete


def files(incomplete: str) -> list[str]:
    """Offer paths of files."""
    return []


def directories(incomplete: str) -> list[str]:
    """Offer paths of directories."""
    return []


def sockets(incomplete: str) -> list[str]:
    """Offer paths of sockets, with or without ``unix://`` before them."""
    return []


def _known(kind: str) -> Completer:
    """Offer what the runtime has of a kind."""

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
    """Offer paths in the container that an argument before has named."""
    container = ctx.params.get("container")
    if not container or not incomplete.startswith("/"):
        return []
    found = container_paths(ctx, f"{container}:{incomplete}")
    return [word.removeprefix(f"{container}:") for word, _ in found]


def pod_paths(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Offer pods of a cluster, with a colon; local paths are left to the shell."""
    from pycrictl.cli.completion import cluster_names  # noqa: PLC0415 - of kubectl's plugins alone

    return [(f"{name}:", about) for name, about in cluster_names.pods_at(ctx, incomplete)]


PATHS: Final = (files, directories, sockets, container_paths, pod_paths)
"""Of what need not be UTF-8."""
