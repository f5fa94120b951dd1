"""Completes the typed word: as a command, an option, an option's value, or an argument."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import typer
from typer.core import TyperOption

from pycrictl.base.config import Flags
from pycrictl.base.environ import Environment
from pycrictl.cli import argv, plugins
from pycrictl.cli.application import application, set_globals
from pycrictl.cli.argv import CommandLine
from pycrictl.cli.command_table import COMMANDS, HELP_WORDS, CommandSpec, Grammar
from pycrictl.cli.complete import FILES, NO_FILES, PATHS
from pycrictl.cli.completion import cluster_names
from pycrictl.cli.context import AppContext
from pycrictl.cli.persona import persona_of
from pycrictl.cli.tree import Command, Program, resolve, specs

if TYPE_CHECKING:
    from typer._click import Context, Parameter

_TYPED: Final = "\0"
"""Placeholder for the word being completed; NUL cannot be typed."""

Offers = list[tuple[str, str]]
"""Whole words and their descriptions."""

Parse = Callable[[list[str]], CommandLine]


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
    options = tree.get_params(bare)

    def parse(words: list[str]) -> CommandLine:
        return argv.parse(words, specs(options), interspersed=False)

    place = _place(before, typed, parse, is_interspersed=False)
    if place.option or place.is_option_name:
        return _of_options(place, options, bare), _directive(place.parameter(options))
    head, *rest = parse([*before, _TYPED]).positionals
    if head == _TYPED or (head in HELP_WORDS and len(rest) == 1):
        return _beginning(typed, _names(COMMANDS)), NO_FILES

    root = cast(
        "typer.Context", tree.make_context(program, before, obj=app, resilient_parsing=True)
    )
    name, command, rest = resolve(tree, root, [head, *rest[:-1]])
    with root:
        set_globals(root, **{key: _expanded(value) for key, value in root.params.items()})
    app.use_root()
    return _of_command(command, name, root, rest, typed)


class _Place(NamedTuple):
    """The position of the typed word: after whole ``words``, and after ``prefix`` within itself.

    If it is the value of an option, ``option`` is the option's name, else empty.
    """

    words: list[str]
    prefix: str
    beginning: str
    option: str = ""
    is_option_name: bool = False

    def parameter(self, options: Sequence[Parameter]) -> Parameter | None:
        return next((each for each in options if each.name == self.option), None)


def _place(before: list[str], typed: str, parse: Parse, *, is_interspersed: bool) -> _Place:
    line = parse([*before, _TYPED])
    for option, value in line.values.items():
        if value == _TYPED or (isinstance(value, list) and _TYPED in value):
            return _Place(before[:-1], "", typed, option)
    is_before_all = is_interspersed or line.positionals == [_TYPED]
    if not typed.startswith("-") or "--" in before or not is_before_all:
        return _Place(before, "", typed)
    name, equals, value = typed.partition("=")
    if not equals:
        return _Place(before, "", typed, is_option_name=True)
    inner = _place([*before, name], value, parse, is_interspersed=is_interspersed)
    return inner._replace(prefix=f"{name}=", is_option_name=False)


def _of_command(
    command: Command, name: str, root: Context, rest: list[str], typed: str
) -> tuple[Offers, int]:
    entry = command.entry
    is_interspersed = root.obj.persona.is_interspersed(entry.name, entry.grammar.is_interspersed)
    place = _place(
        rest, typed, lambda words: command.line(root, words), is_interspersed=is_interspersed
    )
    ctx = command.make_context(name, place.words, parent=root, resilient_parsing=True)
    options = command.get_params(ctx)
    if place.option or place.is_option_name:
        offers = _of_options(place, options, ctx)
        if entry.grammar is Grammar.KUBECTL:
            offers += _of_kubectl(place, ctx)
            if place.option in plugins.PATHS:
                return [], FILES
        return offers, _directive(place.parameter(options))
    arguments = [each for each in command.params if not isinstance(each, TyperOption)]
    index = command.line(root, [*rest, _TYPED]).positionals.index(_TYPED)
    offers = [] if index else _beginning(typed, _names(entry.subcommands))
    if arguments and arguments[-1].nargs == -1:
        index = min(index, len(arguments) - 1)
    if place.prefix or index >= len(arguments):
        return offers, NO_FILES
    offers += _values(arguments[index], ctx, typed)
    return offers, _directive(arguments[index])


def _of_options(place: _Place, options: Sequence[Parameter], ctx: Context) -> Offers:
    if place.is_option_name:
        found = [
            (name, (each.help or "").removesuffix("."))
            for each in options
            if isinstance(each, TyperOption)
            for name in each.opts
        ]
        return _beginning(place.beginning, found)
    parameter = place.parameter(options)
    values = [] if parameter is None else _values(parameter, ctx, place.beginning)
    return [(place.prefix + word, about) for word, about in values]


def _of_kubectl(place: _Place, ctx: Context) -> Offers:
    if place.is_option_name:
        found = [(f"--{name}", "handed on to kubectl") for name in plugins.HANDED_ON]
    else:
        found = cluster_names.of_connection(cast("typer.Context", ctx), place.option)
    return [(place.prefix + word, about) for word, about in _beginning(place.beginning, found)]


def _values(parameter: Parameter, ctx: Context, beginning: str) -> Offers:
    return [(each.value, each.help or "") for each in parameter.shell_complete(ctx, beginning)]


def _names(entries: Sequence[CommandSpec]) -> Iterator[tuple[str, str]]:
    return ((name, entry.summary) for entry in entries for name in entry.names)


def _beginning(typed: str, offers: Iterator[tuple[str, str]] | Offers) -> Offers:
    return [(word, about) for word, about in offers if word.startswith(typed)]


def _directive(parameter: Parameter | None) -> int:
    metavar = parameter.metavar if parameter is not None else None
    return PATHS.get(metavar or "", NO_FILES)


def _expanded(value: Any) -> Any:
    """Expand a word as the shell would: completion receives it unexpanded."""
    return os.path.expanduser(os.path.expandvars(value)) if isinstance(value, str) else value  # noqa: PTH111 (Path drops slashes)
