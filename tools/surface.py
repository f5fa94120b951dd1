"""Typer's command tree as plain data, for generators such as that of the man pages.

Walking it imports every command, so no command may do it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import typer
from typer.core import TyperArgument, TyperOption

from pycrictl.base.units import format_duration
from pycrictl.cli.application import application
from pycrictl.cli.command_table import FAMILIES, PLUGINS, CommandSpec
from pycrictl.cli.tree import command_of


@dataclass(frozen=True)
class Option:
    """One option."""

    names: tuple[str, ...]
    metavar: str  # empty for a switch
    help: str
    choices: tuple[str, ...]
    is_repeatable: bool
    default: str  # as it would be typed; empty if the help has it
    environ: tuple[str, ...]
    group: str  # its heading in --help; empty for that of most options


@dataclass(frozen=True)
class Argument:
    """One positional, with the attributes of an option. The metavar is without brackets."""

    metavar: str
    help: str
    choices: tuple[str, ...]
    is_required: bool
    is_repeatable: bool


@dataclass(frozen=True)
class Command:
    """One command, or the program itself."""

    path: tuple[str, ...]
    aliases: tuple[str, ...]
    family: str
    summary: str
    description: tuple[str, ...]
    examples: tuple[str, ...]  # command lines
    arguments: tuple[Argument, ...]
    options: tuple[Option, ...]
    subcommands: tuple[Command, ...]

    @property
    def name(self) -> str:
        return self.path[-1] if self.path else ""

    def walk(self) -> Iterator[Command]:
        """Yield the command and all commands below it."""
        yield self
        for inner in self.subcommands:
            yield from inner.walk()


_EXAMPLE: Final = "Example: "
_VARIABLE: Final = re.compile(r" \[\$(\w+)\]")


@cache
def program() -> Command:
    root = _root()
    return Command(
        path=(),
        aliases=(),
        family="",
        summary=(root.command.help or "").removesuffix("."),
        description=(),
        examples=(),
        arguments=(),
        options=tuple(_options(root)),
        subcommands=tuple(
            _command((), entry, name) for name, family in FAMILIES.items() for entry in family
        ),
    )


@cache
def plugins() -> tuple[Command, ...]:
    """Return the plugins of kubectl; their paths are without "kubectl"."""
    return tuple(_command((), entry, "Plugins of kubectl") for entry in PLUGINS)


@cache
def _root() -> typer.Context:
    group = typer.main.get_command(application)
    return typer.Context(group, **group.context_settings)


def _command(parent: tuple[str, ...], entry: CommandSpec, family: str) -> Command:
    path = (*parent, entry.name)
    command = command_of(entry)
    ctx = typer.Context(command, parent=_root())
    paragraphs = (command.help or "").split("\n\n")[1:]
    texts = [" ".join(paragraph.split()) for paragraph in paragraphs]
    return Command(
        path=path,
        aliases=entry.aliases,
        family=family,
        summary=entry.summary,
        description=tuple(text for text in texts if not text.startswith(_EXAMPLE)),
        examples=tuple(text.removeprefix(_EXAMPLE) for text in texts if text.startswith(_EXAMPLE)),
        arguments=tuple(_arguments(ctx)),
        options=tuple(_options(ctx)),
        subcommands=tuple(_command(path, inner, family) for inner in entry.subcommands),
    )


def _arguments(ctx: typer.Context) -> Iterator[Argument]:
    for argument in ctx.command.get_params(ctx):
        if isinstance(argument, TyperArgument):
            metavar = argument.make_metavar(ctx)
            bare = re.sub(r"\.\.\.(?=]?$)", "", metavar)
            yield Argument(
                metavar=re.sub(r"^\[(.*)]$", r"\1", bare),
                help=argument.help or "",
                choices=_choices(argument),
                is_required=not re.fullmatch(r"\[.*]", bare),
                is_repeatable=argument.nargs == -1,
            )


def _options(ctx: typer.Context) -> Iterator[Option]:
    for option in ctx.command.get_params(ctx):
        if isinstance(option, TyperOption):
            text = option.help or ""
            choices = _choices(option)
            metavar = option.metavar or "|".join(choices) or option.make_metavar(ctx)
            variable = option.envvar
            yield Option(
                names=tuple(sorted(option.opts, key=lambda name: name.startswith("--"))),
                metavar="" if option.is_flag else metavar,
                help=_VARIABLE.sub("", text),
                choices=choices,
                is_repeatable=option.multiple,
                default=_default(option, metavar),
                environ=(variable,) if isinstance(variable, str) else (*_VARIABLE.findall(text),),
                group=option.rich_help_panel or "",
            )


def _choices(parameter: TyperArgument | TyperOption) -> tuple[str, ...]:
    return tuple(getattr(parameter.type, "choices", ()))


def _default(option: TyperOption, metavar: str) -> str:
    value: Any = option.default if option.show_default and not option.is_flag else None
    if value is None:
        return ""
    return format_duration(value) if metavar == "DURATION" else str(value)
