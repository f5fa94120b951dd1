"""Completes the typed word: as a command, an option, an option's value, or an argument."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, cast

import typer
from typer.core import TyperCommand, TyperOption

from pycrictl.base.config import Flags
from pycrictl.base.environ import Environment
from pycrictl.cli import argv
from pycrictl.cli.application import application, set_globals
from pycrictl.cli.argv import CommandLine
from pycrictl.cli.command_table import COMMANDS, HELP_WORDS, CommandSpec
from pycrictl.cli.complete import NO_FILES, PATHS
from pycrictl.cli.context import AppContext
from pycrictl.cli.persona import persona_of
from pycrictl.cli.tree import Command, Program, resolve, specs

if TYPE_CHECKING:
    from typer._click import Context, Parameter

_TYPED: Final = "\0"
"""Placeholder for the word being completed; NUL cannot be typed."""

Offers = list[tuple[str, str]]
"""Whole words and their descriptions."""


def candidates(program: str, words: Sequence[str]) -> tuple[Offers, int]:
    """Return candidates for the last word, and a directive (see ``complete``).

    Raises PycrictlError if the words before it are invalid, typer.Exit if they ask for help.
    """
    *before, typed = words
    silent = Environment(stdin=io.StringIO(), stdout=io.StringIO(), stderr=io.StringIO())
    silent.program = program
    app = AppContext(silent, Flags(), persona_of(program))
    tree = typer.main.get_command(application)
    assert isinstance(tree, Program)
    bare = typer.Context(tree, obj=app, resilient_parsing=True, **tree.context_settings)
    words, prefix, value = _divided(before, typed)
    line = argv.parse([*words, _TYPED], specs(tree.get_params(bare)), interspersed=False)
    offers = _of_option(tree, bare, line, value, prefix, is_first=line.positionals == [_TYPED])
    if offers is not None:
        return offers
    head, *rest = line.positionals
    if head == _TYPED or (head in HELP_WORDS and len(rest) == 1):
        return _beginning(typed, _names(COMMANDS)), NO_FILES

    root = cast(
        "typer.Context", tree.make_context(program, before, obj=app, resilient_parsing=True)
    )
    name, command, _ = resolve(tree, root, [head, *rest[:-1]])
    with root:
        set_globals(root, **root.params)
    app.use_root()
    return _of_command(command, name, root, rest[:-1], value, prefix)


def _divided(before: list[str], typed: str) -> tuple[list[str], str, str]:
    """Return ``--option=VALUE`` as two words, with what is in front of its value."""
    name, equals, value = typed.partition("=")
    if equals and name.startswith("-") and "--" not in before:
        return [*before, name], f"{name}=", value
    return before, "", typed


def _of_command(
    command: Command, name: str, root: Context, words: list[str], typed: str, prefix: str
) -> tuple[Offers, int]:
    entry = command.entry
    words = [*words, _TYPED]
    ctx = command.make_context(name, words, parent=root, resilient_parsing=True)
    line = command.line(root, words)
    is_interspersed = root.obj.persona.is_interspersed(entry.name, entry.grammar.is_interspersed)
    is_first = "--" not in words and (is_interspersed or line.positionals == [_TYPED])
    offered = _of_option(command, ctx, line, typed, prefix, is_first=is_first)
    if offered is not None:
        return offered
    arguments = [param for param in command.params if not isinstance(param, TyperOption)]
    index = line.positionals.index(_TYPED)
    offers = [] if index else _beginning(typed, _names(entry.subcommands))
    if arguments and arguments[-1].nargs == -1:
        index = min(index, len(arguments) - 1)
    if prefix or index >= len(arguments):
        return offers, NO_FILES
    offers += _values(arguments[index], ctx, typed)
    return offers, _directive(arguments[index])


def _of_option(
    command: TyperCommand,
    ctx: Context,
    line: CommandLine,
    typed: str,
    prefix: str,
    *,
    is_first: bool,
) -> tuple[Offers, int] | None:
    """Return the candidates for the value or the name of an option; None for an argument.

    ``is_first`` tells whether an option may stand in the word's place.
    """
    options = [option for option in command.get_params(ctx) if isinstance(option, TyperOption)]
    for option in options:
        value = line.values.get(option.name or "")
        if value == _TYPED or (isinstance(value, list) and _TYPED in value):
            offers = [(prefix + word, about) for word, about in _values(option, ctx, typed)]
            return offers, _directive(option)
    if not typed.startswith("-") or prefix or not is_first:
        return None
    names = [
        (name, (option.help or "").removesuffix(".")) for option in options for name in option.opts
    ]
    return _beginning(typed, names), NO_FILES


def _values(param: Parameter, ctx: Context, beginning: str) -> Offers:
    return [(item.value, item.help or "") for item in param.shell_complete(ctx, beginning)]


def _names(entries: Sequence[CommandSpec]) -> Iterator[tuple[str, str]]:
    return ((name, entry.summary) for entry in entries for name in entry.names)


def _beginning(typed: str, offers: Iterator[tuple[str, str]] | Offers) -> Offers:
    return [(word, about) for word, about in offers if word.startswith(typed)]


def _directive(param: Parameter) -> int:
    return PATHS.get(param.metavar or "", NO_FILES)
