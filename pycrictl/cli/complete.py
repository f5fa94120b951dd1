"""Completers: the ``autocompletion=`` of options and arguments.

The shell itself completes files and directories, as the metavar of an option or argument requests.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import typer

if TYPE_CHECKING:
    from pycrictl.cli.context import AppContext

Completer = Callable[..., Any]
"""Typer's interface: takes the context, the beginning of a word, or both; returns whole words, with
or without descriptions. A word that ends in ``/``, ``:`` or ``=`` can be continued."""

FILES: Final = 0
"""cobra's ShellCompDirectiveDefault: also offer files."""

NO_SPACE: Final = 2
"""cobra's ShellCompDirectiveNoSpace: add no space, as words can be continued; also offer files."""

NO_FILES: Final = 4
"""cobra's ShellCompDirectiveNoFileComp."""

DIRECTORIES: Final = 16
"""cobra's ShellCompDirectiveFilterDirs."""


def words(*fixed: str) -> Completer:
    return lambda incomplete: [word for word in fixed if word.startswith(incomplete)]


def sockets(incomplete: str) -> list[str]:
    from pycrictl.runtime.cri.calls.endpoints import ENDPOINTS  # noqa: PLC0415 - needs gRPC

    return [endpoint for endpoint in ENDPOINTS if os.path.exists(endpoint.removeprefix("unix://"))]


def _candidates(name: str) -> Completer:
    """Return a completer that calls a function of ``completion.candidates``."""

    def complete(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
        from pycrictl.cli.completion import candidates  # noqa: PLC0415 - only when Tab is pressed

        app: AppContext = ctx.obj
        return candidates.read(getattr(candidates, name), incomplete, app.config)

    return complete


containers = _candidates("containers")
created_containers = _candidates("created_containers")
running_containers = _candidates("running_containers")
logs = _candidates("logs")
pods = _candidates("pods")
images = _candidates("images")
container_paths = _candidates("container_paths")


PATHS: Final = {
    **dict.fromkeys(("FILE", "kubelet|FILE", "SOCKET", "POD-CONFIG", "CONTAINER-CONFIG"), FILES),
    "DIR": DIRECTORIES,
    "SRC... DST": NO_SPACE,
}
"""The directives of paths by their metavars; all others have NO_FILES."""
