"""``pycrictl __complete [WORD]...``.

Completes the last word: as a command, an option, an option's value, or an argument. Prints one
candidate per line, with a description after a tab; the last line is a colon and a directive, as in
cobra. The scripts in ``completions/`` read this.
As it runs while the user types, any error means no candidates and exit status 0, and there is a
time limit. A hanging runtime or file system cannot delay it: the work is done in another thread,
which ends with the process.
"""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, Final, NoReturn

import typer
from typer.core import TyperOption

from pycrictl.base.config import Flags
from pycrictl.base.environ import Environment
from pycrictl.base.units import escape, parse_duration
from pycrictl.cli.application import application
from pycrictl.cli.command_table import COMMANDS, HELP_WORDS, CommandSpec
from pycrictl.cli.complete import NO_FILES, PATHS
from pycrictl.cli.context import AppContext
from pycrictl.cli.persona import persona_of
from pycrictl.cli.tree import Command, LineContext, Program

if TYPE_CHECKING:
    from typer._click import Context, Parameter

LIMIT_S: Final = 1.5
"""The time limit, counted from the call of ``run``: Python may start slowly on a busy node."""

LIMIT_VARIABLE: Final = "PYCRICTL_COMPLETION_TIMEOUT"

_NOTHING: Final = ":4\n"

_TYPED: Final = "\0"
"""Placeholder for the word being completed; NUL cannot be typed."""

Offers = list[tuple[str, str]]
"""Whole words and their descriptions."""


def run(program: str, words: Sequence[str]) -> NoReturn:
    """Print candidates and end the process; $PYCRICTL_COMPLETION_TIMEOUT overrides ``LIMIT_S``."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    limit_s = LIMIT_S
    with suppress(KeyError, ValueError):
        limit_s = parse_duration(os.environ[LIMIT_VARIABLE])
    printed: list[str] = []
    worker = Thread(target=_answer, args=(program, words, printed), daemon=True)
    worker.start()
    worker.join(limit_s)
    with suppress(OSError):
        os.write(1, "".join(printed or [_NOTHING]).encode())
    os._exit(0)


def _answer(program: str, words: Sequence[str], into: list[str]) -> None:
    with suppress(BaseException):
        offered, directive = candidates(program, words)
        # Names from the runtime may contain unprintable characters.
        offers = [(word, escape(about)) for word, about in offered if word.isprintable()]
        lines = [f"{word}\t{about}\n" if about else f"{word}\n" for word, about in offers]
        into.append("".join([*lines, f":{directive}\n"]))


def candidates(program: str, words: Sequence[str]) -> tuple[Offers, int]:
    """Return candidates for the last word, and a directive (see ``complete``).

    Raises PycrictlError if the words before it are invalid, typer.Exit if they ask for help.
    """
    silent = Environment(stdin=io.StringIO(), stdout=io.StringIO(), stderr=io.StringIO())
    silent.program = program
    app = AppContext(silent, Flags(), persona_of(program))
    tree = typer.main.get_command(application)
    assert isinstance(tree, Program)
    *before, typed = words
    prefix, value = "", typed
    name, equals, text = typed.partition("=")
    if equals and name.startswith("-") and "--" not in before:  # --option=VALUE, as two words
        before, prefix, value = [*before, name], f"{name}=", text
    root = tree.make_context(program, [*before, _TYPED], obj=app, resilient_parsing=True)
    offers = _of_option(root, value, prefix, is_possible=root.args == [_TYPED])
    if offers is not None:
        return offers
    word, *rest = root.args
    if word == _TYPED or (word in HELP_WORDS and len(rest) == 1):
        return _beginning(typed, _names(COMMANDS)), NO_FILES
    name, command, rest = tree.resolve(root)
    tree.invoke_globals(root)
    return _of_command(command, name, root, rest, value, prefix)


def _of_command(
    command: Command, name: str, root: Context, words: list[str], typed: str, prefix: str
) -> tuple[Offers, int]:
    entry = command.entry
    ctx = command.make_context(name, words, parent=root, resilient_parsing=True)
    assert isinstance(ctx, LineContext)
    positionals = ctx.line.positionals
    is_interspersed = root.obj.persona.is_interspersed(entry.name, entry.grammar.is_interspersed)
    is_possible = "--" not in words and (is_interspersed or positionals == [_TYPED])
    offers = _of_option(ctx, typed, prefix, is_possible=is_possible)
    if offers is not None:
        return offers
    arguments = [param for param in command.params if not isinstance(param, TyperOption)]
    index = positionals.index(_TYPED)
    inner = [] if index else _beginning(typed, _names(entry.subcommands))
    if arguments and arguments[-1].nargs == -1:
        index = min(index, len(arguments) - 1)
    if prefix or index >= len(arguments):
        return inner, NO_FILES
    return inner + _values(arguments[index], ctx, typed), _directive(arguments[index])


def _of_option(
    ctx: Context, typed: str, prefix: str, *, is_possible: bool
) -> tuple[Offers, int] | None:
    """Return the candidates for the value or the name of an option; None for an argument.

    ``is_possible`` tells whether an option may stand in the word's place.
    """
    assert isinstance(ctx, LineContext)
    options = [item for item in ctx.command.get_params(ctx) if isinstance(item, TyperOption)]
    for option in options:
        value = ctx.line.values.get(option.name or "")
        if value == _TYPED or (isinstance(value, list) and _TYPED in value):
            offers = [(prefix + word, about) for word, about in _values(option, ctx, typed)]
            return offers, _directive(option)
    if not typed.startswith("-") or prefix or not is_possible:
        return None
    names = ((name, (item.help or "").removesuffix(".")) for item in options for name in item.opts)
    return _beginning(typed, names), NO_FILES


def _values(param: Parameter, ctx: Context, beginning: str) -> Offers:
    return [(item.value, item.help or "") for item in param.shell_complete(ctx, beginning)]


def _names(entries: Iterable[CommandSpec]) -> Iterator[tuple[str, str]]:
    return ((name, entry.summary) for entry in entries for name in entry.names)


def _beginning(typed: str, offers: Iterable[tuple[str, str]]) -> Offers:
    return [(word, about) for word, about in offers if word.startswith(typed)]


def _directive(param: Parameter) -> int:
    return PATHS.get(param.metavar or "", NO_FILES)
