"""Valid command lines, read without Typer, whose import takes longer than most commands.

Whatever is not plainly valid, and all that asks for help, is left to ``cli.tree``, which finds the
words for it. What is valid means the same to both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pycrictl.cli import argv
from pycrictl.cli.declare import HELP, Call, Option, Parameter, parameters, specs
from pycrictl.cli.program import HELP_WORDS, set_globals
from pycrictl.cli.table import BY_NAME, Entry
from pycrictl.errors import UsageError

if TYPE_CHECKING:
    from pycrictl.cli.context import AppContext


class NotPlainError(Exception):
    """The command line is for Typer to read."""


def read(words: Sequence[str], app: AppContext, environ: Mapping[str, str]) -> Call | None:
    """Return the command of a command line, or None where it is not plainly valid.

    Args:
        words: the line without the program's name.
        app: gets the global options and what concerns the command, unless None is returned.
        environ: the variables that options may be given by.
    """
    try:
        found = parameters(set_globals)
        line = argv.parse(words, specs(found), interspersed=False)
        if not line.positionals or line.positionals[0] not in BY_NAME:
            return None
        name, *rest = line.positionals
        options = _values(found, line._replace(positionals=[]), environ)
        path, call, negated = _command(BY_NAME[name], f"{app.program} {name}", rest, environ)
    except (NotPlainError, UsageError):
        return None
    app.negated = frozenset(line.negated)
    set_globals(app, **options)
    app.path, app.negated = path, frozenset(negated)
    return call


def _command(
    entry: Entry, path: str, words: Sequence[str], environ: Mapping[str, str]
) -> tuple[str, Call, set[str]]:
    """Return the words that name a command, the command, and its negated switches."""
    function = entry.load()
    found = parameters(function)
    options = specs(found)
    if entry.subcommands:
        head = argv.parse(words, options, interspersed=False).positionals
        if head and (inner := entry.subcommand(head[0])):
            return _command(inner, f"{path} {inner.name}", head[1:], environ)
    line = argv.parse(words, options, interspersed=entry.grammar.is_interspersed)
    if entry.grammar.has_help_word and line.positionals and line.positionals[0] in HELP_WORDS:
        raise NotPlainError
    return path, Call(function, _values(found, line, environ)), line.negated


def _values(
    found: Sequence[Parameter], line: argv.CommandLine, environ: Mapping[str, str]
) -> dict[str, Any]:
    """Return the value of each parameter by its name."""
    given: dict[str, list[str]] = {}
    for word in line.options:
        name, _, text = word.partition("=")
        given.setdefault(name, []).append(text)
    if HELP[0] in given:
        raise NotPlainError
    left = line.positionals
    values = {}
    for parameter in found:
        declared = parameter.declared
        if isinstance(declared, Option):
            texts = given.get(declared.canonical)
            if texts and declared.answer:
                raise NotPlainError
            values[parameter.name] = _option(parameter, declared, texts, environ)
            continue
        if not left and parameter.default is ...:
            raise NotPlainError
        if not left:
            values[parameter.name] = parameter.default
        elif parameter.is_list:
            values[parameter.name], left = left, []
        else:
            values[parameter.name], *left = left
    if left:
        raise NotPlainError
    return values


def _option(
    parameter: Parameter, option: Option, texts: list[str] | None, environ: Mapping[str, str]
) -> Any:
    if texts is None and option.envvar and (text := environ.get(option.envvar)):
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
