"""Service commands, whose options are generated from the rows of their settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from pycrictl.base.servicelog import LogLevel
from pycrictl.base.serviceoptions import Row, options
from pycrictl.cli import complete
from pycrictl.cli.context import AppContext
from pycrictl.cli.options import integer

Command = Callable[..., None]


def options_of(settings: type[Any]) -> Callable[[Command], Command]:
    context = inspect.Parameter(
        "ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
    )
    parameters = [context, *(_parameter(row) for _, row in options(settings))]

    def decorate(command: Command) -> Command:
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return command

    return decorate


def flags(app: AppContext, given: dict[str, object]) -> dict[str, object]:
    """Return the flags by name; ``--debug`` sets the log level, unless one is given."""
    if app.flags.debug:
        given["log_level"] = given["log_level"] or LogLevel.DEBUG
    return {name.replace("_", "-"): value for name, value in given.items()}


def _parameter(row: Row) -> inspect.Parameter:
    made = typer.Option(
        f"--{row.name}",
        metavar=row.metavar or None,
        help=row.help,
        autocompletion=complete.sockets if row.metavar == "SOCKET" else None,
        parser=integer if row.kind is int else None,
    )
    return inspect.Parameter(
        row.name.replace("-", "_"),
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[row.kind | None, made],
    )
