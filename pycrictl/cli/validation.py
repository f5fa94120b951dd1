"""What Typer says of the values of a command line, where ``cli.plain`` finds that one is wrong.

The only module that knows Typer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import typer
from typer.exceptions import TyperException

from pycrictl.cli import argv, declare
from pycrictl.errors import ExtraArgument, MissingArgument, OptionError, UsageError


def values(function: Callable[..., None], line: argv.CommandLine, path: str) -> dict[str, Any]:
    """Return the value of each parameter of a command's function, by its name.

    Args:
        path: the words that call the command, for a hint at its help.

    Raises:
        MissingArgument: an argument is missing.
        ExtraArgument: there is one too many.
        OptionError: the value of an option is wrong.
    """
    found: dict[str, Any] = {}
    command = typer.main.get_command(_app(function, found.update))
    try:
        with command.make_context(path, line.words()) as ctx:
            command.invoke(ctx)
    except TyperException as exc:
        raise _usage_error(exc, hint=f"see '{path} --help'") from exc
    return found


def _app(function: Callable[..., None], receive: Callable[[dict[str, Any]], None]) -> typer.Typer:
    """Return a Typer application of one command, which never imports Rich.

    It has what ``function`` declares, and hands the values to ``receive``.
    """

    def received(**values: Any) -> None:
        receive(values)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    received.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # as inspect has it
        [
            inspect.Parameter(each.name, kind, default=_typers(each), annotation=each.type)
            for each in declare.parameters(function)
        ]
    )
    received.__annotations__ = {each.name: each.type for each in declare.parameters(function)}
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(received)
    return app


def _typers(parameter: declare.Parameter) -> Any:
    """Return what a parameter declares as Typer has it."""
    declared = parameter.declared
    if isinstance(declared, declare.Argument):
        return typer.Argument(parameter.default, metavar=declared.metavar)
    return typer.Option(
        parameter.default,
        *declared.names,
        envvar=declared.envvar or None,
        parser=_parser(declared.parser) if declared.parser else None,
    )


def _parser(parse: Callable[[str], Any]) -> Callable[[Any], Any]:
    def convert(text: Any) -> Any:
        if not isinstance(text, str):  # a default, which Typer converts as well
            return text
        try:
            return parse(text)
        except ValueError as exc:
            raise typer.BadParameter(str(exc)) from None

    return convert


def _usage_error(exc: TyperException, *, hint: str) -> UsageError:
    message = exc.format_message() if hasattr(exc, "format_message") else str(exc)
    message = message.rstrip(".")
    message = message[:1].lower() + message[1:]
    if type(exc).__name__ == "MissingParameter":
        return MissingArgument(message, hint=hint)
    if (param := getattr(exc, "param", None)) is None:
        return ExtraArgument(message, hint=hint)
    value = str(exc).partition('"')[2].partition('"')[0] or str(exc)
    name = max(param.opts, key=len).lstrip("-")
    flag_error = f'invalid value "{value}" for flag -{name}: parse error'
    return OptionError(message, flag_error=flag_error, hint=hint)
