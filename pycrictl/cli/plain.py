"""Command lines, read without Typer, whose import takes longer than most commands.

Typer is asked for one thing only: what to say of values that are wrong, missing or too many
(``cli.validation``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pycrictl.cli import argv, crictl
from pycrictl.cli.declare import HELP, Call, Option, Parameter, parameters, specs
from pycrictl.cli.program import HELP_WORDS, set_globals
from pycrictl.cli.table import Entry, find

if TYPE_CHECKING:
    from pycrictl.cli.context import AppContext


class NotPlainError(Exception):
    """A value is wrong, or one is missing or too many."""


Reader = Callable[[Callable[..., None], argv.CommandLine, str], dict[str, Any]]
"""Takes a command's function, its line and its path; returns the value of each parameter."""


def values(function: Callable[..., None], line: argv.CommandLine, path: str) -> dict[str, Any]:
    """Return the value of each parameter of a command's function, by its name.

    Raises:
        UsageError: a value is wrong, missing or too many.
    """
    try:
        return plain_values(function, line)
    except NotPlainError:
        from pycrictl.cli import validation

        return validation.values(function, line, path)


def read(words: Sequence[str], app: AppContext, reader: Reader = values) -> Call:
    """Return what a command line asks for: a command, a page of help, or the program's version.

    Args:
        words: the line without the program's name.
        app: gets the global options and what concerns the command.
        reader: reads the values.

    Raises:
        UsageError: the line is wrong.
        ConfigError: under the name ``crictl``, if the configuration file is.
    """
    if app.plugin is not None:
        return _plugin(app.plugin, words, app, reader)
    line = argv.parse(words, specs(parameters(set_globals)), interspersed=False)
    if call := _answer(app, line, set_globals):
        return call
    given = reader(set_globals, line._replace(positionals=[]), app.path)
    word, *rest = line.positionals or HELP_WORDS[:1]
    if word in HELP_WORDS:
        if not rest:
            return _page(app)
        word, rest = rest[0], [HELP[0]]
    entry = find(word)
    app.command, app.path = entry.name, f"{app.program} {word}"
    app.negated = frozenset(line.negated)
    set_globals(app, **given)
    if crictl.reads_configuration(entry.name):
        _ = app.config
    return _command(entry, rest, app, reader)


def _command(entry: Entry, words: Sequence[str], app: AppContext, reader: Reader) -> Call:
    function = entry.load()
    options = specs(parameters(function))
    if entry.subcommands:
        head = argv.parse(words, options, interspersed=False).positionals
        if head and (inner := entry.subcommand(head[0])):
            app.path += f" {inner.name}"
            return _command(inner, head[1:], app, reader)
    interspersed = crictl.is_interspersed(entry.name, entry.grammar.is_interspersed)
    line = argv.parse(words, options, interspersed=interspersed)
    if entry.grammar.has_help_word and line.positionals[:1] in ([word] for word in HELP_WORDS):
        return _page(app, entry)
    if call := _answer(app, line, function, entry):
        return call
    app.negated = frozenset(line.negated)
    positionals = crictl.positionals(entry.name, line.positionals)
    return Call(function, reader(function, line._replace(positionals=positionals), app.path))


def _plugin(entry: Entry, words: Sequence[str], app: AppContext, reader: Reader) -> Call:
    """Return what a line asks for that kubectl calls the program with."""
    from pycrictl.cli import plugins

    function = entry.load()
    options = plugins.SPECS | specs(parameters(function))
    line = argv.parse(plugins.apart(words, options), options, interspersed=True)
    if call := _answer(app, line, function, entry):
        return call
    app.negated = frozenset(line.negated)
    app.handed_on, line = plugins.handed_on(line)
    return Call(function, reader(function, line, app.path))


def _answer(
    app: AppContext,
    line: argv.CommandLine,
    function: Callable[..., None],
    entry: Entry | None = None,
) -> Call | None:
    """Return what a line asks for in place of running the command."""
    if HELP[0] in line.options:
        return _page(app, entry)
    for each in parameters(function):
        option = each.declared
        if isinstance(option, Option) and option.answer and option.canonical in line.options:
            return Call(_write_line, {"text": option.answer()})
    return None


def _page(app: AppContext, entry: Entry | None = None) -> Call:
    from pycrictl.cli import page

    app.recording = None
    return Call(page.show, {"entry": entry})


def _write_line(app: AppContext, text: str) -> None:
    app.env.stdout.write(f"{text}\n")


def plain_values(function: Callable[..., None], line: argv.CommandLine) -> dict[str, Any]:
    """Return what ``values`` does.

    Raises:
        NotPlainError: a value is wrong, missing or too many.
    """
    given: dict[str, list[str]] = {}
    for word in line.options:
        name, _, text = word.partition("=")
        given.setdefault(name, []).append(text)
    left = line.positionals
    found = {}
    for parameter in parameters(function):
        declared = parameter.declared
        if isinstance(declared, Option):
            found[parameter.name] = _option(parameter, declared, given.get(declared.canonical))
            continue
        if not left and parameter.default is ...:
            raise NotPlainError
        if not left:
            found[parameter.name] = parameter.default
        elif parameter.is_list:
            found[parameter.name], left = left, []
        else:
            found[parameter.name], *left = left
    if left:
        raise NotPlainError
    return found


def _option(parameter: Parameter, option: Option, texts: list[str] | None) -> Any:
    if texts is None and option.envvar and (text := os.environ.get(option.envvar)):
        texts = [text]
    if texts is None:
        return parameter.default
    if parameter.is_switch:
        return True
    if parameter.is_list:
        return texts
    if option.parser is None:
        return texts[-1]
    try:
        return option.parser(texts[-1])
    except ValueError:
        raise NotPlainError from None
