"""Typer's command tree, bent to crictl's grammar and to a lazy table.

It prints help and says what is wrong with a command line; ``cli.plain`` reads the others. The only
module that knows Typer. Modules of commands are imported when their command is named, never for the
root help.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup
from typer.exceptions import TyperException

from pycrictl.cli import argv, declare, program
from pycrictl.cli.context import AppContext
from pycrictl.cli.program import HELP_WORDS
from pycrictl.cli.table import BY_NAME, COMMANDS, Entry
from pycrictl.errors import ExitCode, UsageError

if TYPE_CHECKING:
    import typer._click as click

SUBCOMMAND: Final = "pycrictl.subcommand"
"""Key in ``Context.meta`` of the sub-command to run, and its words."""


def read(words: Sequence[str], app: AppContext) -> declare.Call | None:
    """Return the command of a command line, or None where help or the like was printed.

    Args:
        words: the line without the program's name.
        app: gets the global options and what concerns the command.

    Raises:
        UsageError: the line is wrong.
    """
    command = root()
    try:
        with command.make_context(app.program, list(words), obj=app) as ctx:
            call: declare.Call = command.invoke(ctx)
    except typer.Exit:
        return None
    except TyperException as exc:
        raise _usage_error(exc, app) from exc
    return call


def root() -> click.Command:
    """Return the program as a command of Typer's."""
    app = _new_app(
        cls=Root,
        invoke_without_command=True,
        context_settings={"help_option_names": [*reversed(declare.HELP)], "max_content_width": 80},
    )

    def set_globals(ctx: typer.Context, values: dict[str, Any]) -> None:
        if ctx.invoked_subcommand is None:
            _show_help(ctx)
        program.set_globals(ctx.obj, **values)

    app.callback(help=program.HELP)(_declared(program.set_globals, set_globals))
    return typer.main.get_command(app)


def build(entry: Entry, *, parent: str = "") -> click.Command:
    """Import ``entry``'s function and make it a command named ``entry.name``.

    The command's help has the name of ``parent`` where the docstring has PARENT. Invoked, it
    returns the call that is to be made.
    """
    function = entry.load()

    def call(ctx: typer.Context, values: dict[str, Any]) -> declare.Call:
        app: AppContext = ctx.obj
        app.path = ctx.command_path
        return declare.Call(function, values)

    app = _new_app()
    app.command(
        entry.name,
        cls=Command,
        help=(inspect.getdoc(function) or "").replace("PARENT", parent),
        short_help=entry.summary,
        epilog=f"Also called: {', '.join(entry.aliases)}." if entry.aliases else None,
    )(_declared(function, call))
    command = cast("Command", typer.main.get_command(app))
    command.entry = entry
    return command


def _new_app(**settings: Any) -> typer.Typer:
    """Make a Typer object that never imports Rich and installs no completion of its own."""
    return typer.Typer(
        add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, **settings
    )


def _declared(
    function: Callable[..., None], receive: Callable[[typer.Context, dict[str, Any]], Any]
) -> Callable[..., Any]:
    """Return a function with Typer's declarations of what ``function`` declares.

    Called by Typer, it hands its values to ``receive``.
    """

    def received(ctx: typer.Context, **values: Any) -> Any:
        return receive(ctx, values)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    found = declare.parameters(function)
    signature = [inspect.Parameter("ctx", kind, annotation=typer.Context)] + [
        inspect.Parameter(each.name, kind, default=_typers(each), annotation=each.type)
        for each in found
    ]
    received.__signature__ = inspect.Signature(signature)  # type: ignore[attr-defined]  # as inspect has it
    received.__annotations__ = {each.name: each.annotation for each in signature}
    received.__doc__ = function.__doc__
    return received


def _typers(parameter: declare.Parameter) -> Any:
    """Return what a parameter declares as Typer has it."""
    declared = parameter.declared
    if isinstance(declared, declare.Argument):
        return typer.Argument(
            parameter.default,
            metavar=declared.metavar,
            help=declared.help,
            show_default=declared.show_default,
        )
    return typer.Option(
        parameter.default,
        *declared.names,
        metavar=declared.metavar,
        help=declared.help,
        envvar=declared.envvar or None,
        parser=_parser(declared.parser) if declared.parser else None,
        show_default=declared.show_default,
        is_eager=bool(declared.answer),
        callback=_answering(declared.answer) if declared.answer else None,
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


def _answering(line: str) -> Callable[[bool], None]:
    def answer(value: bool) -> None:
        if value:
            typer.echo(line)
            raise typer.Exit(ExitCode.OK)

    return answer


def _usage_error(exc: TyperException, app: AppContext) -> UsageError:
    ctx = getattr(exc, "ctx", None)
    path = ctx.command_path if ctx is not None else app.program
    message = exc.format_message() if hasattr(exc, "format_message") else str(exc)
    message = message.rstrip(".")
    return UsageError(message[:1].lower() + message[1:], hint=f"see '{path} --help'")


class UnknownCommand(UsageError):
    """The first word names no command."""

    reference = "unknown-command"
    exit_code = ExitCode.UNKNOWN_COMMAND


def _parse(
    function: Callable[..., None], ctx: click.Context, args: list[str], *, interspersed: bool
) -> argv.CommandLine:
    options = declare.specs(declare.parameters(function))
    line = argv.parse(args, options, interspersed=interspersed)
    app: AppContext | None = ctx.obj
    if app is not None:
        app.negated = frozenset(line.negated)
    return line


def _show_help(ctx: click.Context) -> None:
    typer.echo(ctx.get_help())
    raise typer.Exit(ExitCode.OK)


class Command(TyperCommand):
    """A leaf command.

    Attributes:
        entry: its row in the table; its sub-commands are run in its place.
    """

    entry: Entry

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Rewrite the words by crictl's grammar before Typer reads them."""
        function, grammar = self.entry.load(), self.entry.grammar
        if self.entry.subcommands:
            head = _parse(function, ctx, args, interspersed=False).positionals
            found = self.entry.subcommand(head[0]) if head else None
            if found is not None:
                ctx.meta[SUBCOMMAND] = (build(found, parent=self.name or ""), head[1:])
                return []
        line = _parse(function, ctx, args, interspersed=grammar.is_interspersed)
        if grammar.has_help_word and line.positionals and line.positionals[0] in HELP_WORDS:
            _show_help(ctx)
        return super().parse_args(ctx, line.words())

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
        if self.entry.subcommands:
            with formatter.section("Commands"):
                formatter.write_dl([_row(entry) for entry in self.entry.subcommands])


class Root(TyperGroup):
    """The program: global options, then a command of the table."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Rewrite the global options; everything from the command's name on stays as it is."""
        line = _parse(program.set_globals, ctx, args, interspersed=False)
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


def _row(entry: Entry) -> tuple[str, str]:
    return ", ".join(entry.names), entry.summary


def _unknown_command(name: str) -> UnknownCommand:
    from difflib import get_close_matches

    near = get_close_matches(name.lower(), BY_NAME, n=1)
    hint = f'did you mean "{near[0]}"?' if near else "'pycrictl --help' lists the commands"
    return UnknownCommand(f'unknown command "{name}"', hint=hint)
