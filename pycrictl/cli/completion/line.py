"""Finds what a typed word is: the value of an option, or an argument."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import typer
from typer.core import TyperOption

from pycrictl.cli import argv
from pycrictl.cli.application import application, set_globals
from pycrictl.cli.context import AppContext
from pycrictl.cli.tree import Command, Group, canonical, specs
from pycrictl.config import Flags
from pycrictl.environ import Environment

if TYPE_CHECKING:
    from typer._click import Context, Parameter

_TYPED: Final = "\0"
"""Stands for the word that is typed; nobody can type it."""

Offers = list[tuple[str, str]]
"""Whole words, and what is said of them."""


class TypedWord(NamedTuple):
    """A word that is typed.

    Attributes:
        command: the command.
        ctx: of the command; it has read all words before.
        option: the whole spelling of the option whose value it is; empty for an argument.
        parameter: what it is a value of; None for nothing that the command declares.
        prefix: what stands before the value in the same word.
        beginning: what is typed of the value.
    """

    command: Command
    ctx: typer.Context
    option: str
    parameter: Parameter | None
    prefix: str
    beginning: str

    def offers(self) -> Offers:
        if self.parameter is None:
            return []
        found = self.parameter.shell_complete(self.ctx, self.beginning)
        return [(each.value, each.help or "") for each in found]


def find(program: str, words: Sequence[str]) -> TypedWord:
    """Return where the last word of a line is typed.

    Raises:
        PycrictlError: the words before are not the beginning of a valid line.
        ValueError: no command is named.
        typer.Exit: the words before ask for help.
    """
    silent = Environment(stdin=io.StringIO(), stdout=io.StringIO(), stderr=io.StringIO())
    silent.program = program
    app = AppContext(silent, Flags())
    group = typer.main.get_command(application)
    assert isinstance(group, Group)
    *before, typed = words
    root = cast(
        "typer.Context",
        group.make_context(program, before, obj=app, resilient_parsing=True),
    )
    line = argv.parse(before, specs(group.get_params(root)), interspersed=False)
    name, command, rest = group.resolve_command(root, line.positionals)
    with root:
        set_globals(root, **{key: _expanded(value) for key, value in root.params.items()})
    app.use_root()
    return _place(command, name, root, rest, typed)


def _place(
    command: Command, name: str | None, root: Context, rest: list[str], typed: str
) -> TypedWord:
    prefix = ""
    if typed.startswith("-") and "=" in typed and "--" not in rest:
        option, _, typed = typed.partition("=")
        prefix = f"{option}="
        rest.append(option)
    line = command.line(root, [*rest, _TYPED])
    opened = [option for option, (_, value) in line.typed.items() if value == _TYPED]
    parameters = {canonical(each): each for each in command.params if isinstance(each, TyperOption)}
    arguments = [each for each in command.params if not isinstance(each, TyperOption)]
    parameter: Parameter | None
    if opened:
        parameter, rest = parameters.get(opened[0]), rest[:-1]
    else:
        index = line.positionals.index(_TYPED)
        if arguments and arguments[-1].nargs == -1:
            index = min(index, len(arguments) - 1)
        parameter = arguments[index] if index < len(arguments) else None
    ctx = command.make_context(name, rest, parent=root, resilient_parsing=True)
    return TypedWord(command, cast("typer.Context", ctx), "".join(opened), parameter, prefix, typed)


def _expanded(value: Any) -> Any:
    """Return a word as the shell would expand it: completion sees it as typed."""
    return os.path.expanduser(os.path.expandvars(value)) if isinstance(value, str) else value  # noqa: PTH111 (Path drops slashes)
