"""Typer's command tree, bent to crictl's grammar and to a lazy table.

The only module that touches the classes below Typer's public functions. Modules of commands are
imported when their command runs or its own help is asked for, never for the root help.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from pycrictl.cli import argv
from pycrictl.cli.table import BY_NAME, COMMANDS, Entry, Grammar
from pycrictl.errors import ExitCode, UsageError

if TYPE_CHECKING:
    import typer._click as click

HELP_WORDS: Final = ("help", "h")
"""crictl takes these as the first positional of every command."""

SUBCOMMAND: Final = "pycrictl.subcommand"
"""Key in ``Context.meta`` of the sub-command to run, and its words."""

NEGATED: Final = "pycrictl.negated"
"""Key in ``Context.meta`` of the switches that were explicitly given as false."""


def new_app(**settings: Any) -> typer.Typer:
    """Make a Typer object that never imports Rich and installs no completion of its own."""
    return typer.Typer(
        add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, **settings
    )


class UnknownCommand(UsageError):
    """The first word names no command."""

    reference = "unknown-command"
    exit_code = ExitCode.UNKNOWN_COMMAND


def _option_specs(command: click.Command, ctx: click.Context) -> dict[str, argv.OptionSpec]:
    specs: dict[str, argv.OptionSpec] = {}
    for param in command.get_params(ctx):
        if isinstance(param, TyperOption):
            canonical = max(param.opts, key=len)
            spec = argv.OptionSpec(canonical, bool(param.is_flag), bool(param.multiple))
            specs.update((spelling.lstrip("-"), spec) for spelling in param.opts)
    return specs


def _parse(
    command: click.Command, ctx: click.Context, args: list[str], *, interspersed: bool
) -> argv.CommandLine:
    line = argv.parse(args, _option_specs(command, ctx), interspersed=interspersed)
    ctx.meta[NEGATED] = line.negated
    return line


def _show_help(ctx: click.Context) -> None:
    typer.echo(ctx.get_help())
    raise typer.Exit(ExitCode.OK)


class Command(TyperCommand):
    """A leaf command: options anywhere, and ``help`` as a first word.

    Attributes:
        interspersed: whether options may follow positionals.
        has_help_word: whether a first positional ``help`` or ``h`` asks for help, as in crictl.
        subcommands: commands that a first positional of their name runs in place of this one.
    """

    interspersed = True
    has_help_word = True
    subcommands: tuple[Entry, ...] = ()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Rewrite the words by crictl's grammar before Typer reads them."""
        if self.subcommands:
            head = _parse(self, ctx, args, interspersed=False)
            found = self.subcommand(head.positionals[0]) if head.positionals else None
            if found is not None:
                ctx.meta[SUBCOMMAND] = (found, head.positionals[1:])
                return []
        line = _parse(self, ctx, args, interspersed=self.interspersed)
        if self.has_help_word and line.positionals and line.positionals[0] in HELP_WORDS:
            _show_help(ctx)
        return super().parse_args(ctx, line.words())

    def subcommand(self, word: str) -> click.Command | None:
        """Return the sub-command of that name, or None."""
        for entry in self.subcommands:
            if word in (entry.name, *entry.aliases):
                return build(entry, parent=self.name or "")
        return None

    def invoke(self, ctx: click.Context) -> Any:
        """Run the function, or the sub-command that was named."""
        if SUBCOMMAND not in ctx.meta:
            return super().invoke(ctx)
        command, words = ctx.meta.pop(SUBCOMMAND)
        # Below the root: a parent with arguments would have them in the sub-command's usage line.
        name = f"{ctx.info_name} {command.name}"
        with command.make_context(name, words, parent=ctx.parent) as child:
            return command.invoke(child)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the words of the usage line as their metavars have them.

        Typer knows less: a list may be empty for it where ``--all`` or an error takes its place.
        """
        arguments = [each for each in self.get_params(ctx) if isinstance(each, TyperArgument)]
        return [self.options_metavar or "", *(each.metavar or "" for each in arguments)]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the sub-commands below the options."""
        super().format_options(ctx, formatter)
        if self.subcommands:
            with formatter.section("Commands"):
                formatter.write_dl([_row(entry) for entry in self.subcommands])


class NewCommand(Command):
    """A command that crictl does not have: its first positional may be a name such as ``h``."""

    has_help_word = False


class RemoteCommand(Command):
    """A command whose positionals end in another program's command line (``exec``)."""

    interspersed = False


class Root(TyperGroup):
    """The program: global options, then a command of the table."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Rewrite the global options; everything from the command's name on stays as it is."""
        line = _parse(self, ctx, args, interspersed=False)
        return super().parse_args(ctx, line.words())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module and build it."""
        entry = BY_NAME.get(cmd_name)
        return build(entry) if entry else None

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the table's order."""
        return [entry.name for entry in COMMANDS]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of the first word; answer ``help [COMMAND]`` at once.

        Raises:
            UnknownCommand: there is none of that name; the hint names the nearest.
        """
        name, rest = args[0], args[1:]
        if name in HELP_WORDS:
            if not rest:
                _show_help(ctx)
            name, rest = rest[0], ["--help"]
        command = self.get_command(ctx, name)
        if command is None:
            raise _unknown_command(name)
        return name, command, rest

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Name the program as it was called."""
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(f"Run '{ctx.info_name} COMMAND --help' for a command's options.")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the table by family, without importing any command."""
        families = dict.fromkeys(entry.family for entry in COMMANDS)
        for family in families:
            rows = [_row(entry) for entry in COMMANDS if entry.family == family]
            with formatter.section(family):
                formatter.write_dl(rows)


CLASSES: Final = {Grammar.CRICTL: Command, Grammar.REMOTE: RemoteCommand, Grammar.NEW: NewCommand}


def build(entry: Entry, *, parent: str = "") -> click.Command:
    """Import ``entry``'s function and make it a command named ``entry.name``.

    Its help has the name of ``parent`` where the docstring has PARENT.
    """
    module = importlib.import_module(entry.module)
    function = cast("Callable[..., Any]", getattr(module, entry.function))
    app = new_app()
    app.command(
        entry.name,
        cls=CLASSES[entry.grammar],
        help=(inspect.getdoc(function) or "").replace("PARENT", parent),
        short_help=entry.summary,
        epilog=f"Also called: {', '.join(entry.aliases)}." if entry.aliases else None,
    )(function)
    command = typer.main.get_command(app)
    if entry.subcommands and isinstance(command, Command):
        command.subcommands = entry.subcommands
    return command


def _row(entry: Entry) -> tuple[str, str]:
    return ", ".join((entry.name, *entry.aliases)), entry.summary


def _unknown_command(name: str) -> UnknownCommand:
    from difflib import get_close_matches

    near = get_close_matches(name.lower(), BY_NAME, n=1)
    hint = f'did you mean "{near[0]}"?' if near else "'pycrictl --help' lists the commands"
    return UnknownCommand(f'unknown command "{name}"', hint=hint)
