"""The command tree: Typer's classes with Go's grammar; command modules are loaded on demand."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.models import ParameterInfo

from pycrictl.cli import argv, crictl, crictl_page, plugins
from pycrictl.cli.argv import CommandLine, OptionSpec
from pycrictl.cli.command_table import COMMANDS, FAMILIES, HELP_WORDS, CommandSpec, Grammar, find
from pycrictl.cli.complete import DIRECTIVES
from pycrictl.errors import ExtraArgument, MissingArgument, OptionError, UsageError
from pycrictl.units import quote

if TYPE_CHECKING:
    from typer._click import Command as AnyCommand
    from typer._click import Context, HelpFormatter, Parameter

HELP: Final = ("--help", "-h")

Sections = dict[str, list[tuple[str, str]]]
"""Two-column rows by heading."""


class Command(TyperCommand):
    entry: CommandSpec

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        grammar, line = self.entry.grammar, self.line(ctx, args)
        if grammar is Grammar.KUBECTL:
            ctx.obj.handed_on, line = plugins.handed_on(line)
        asks_for_help = grammar.has_help_word and line.positionals[:1] in ([x] for x in HELP_WORDS)
        if asks_for_help or HELP[0] in line.options:
            show_page(self, ctx)
        line = line._replace(positionals=crictl.positionals(self.entry.name, line.positionals))
        return _given(self, ctx, line, super().parse_args)

    def line(self, ctx: Context, args: list[str]) -> CommandLine:
        grammar, options = self.entry.grammar, specs(self.get_params(ctx))
        is_kubectls = grammar is Grammar.KUBECTL
        return argv.parse(
            args,
            plugins.SPECS | options if is_kubectls else options,
            interspersed=crictl.is_interspersed(self.entry.name, grammar.is_interspersed),
            attached=is_kubectls,
        )

    def invoke(self, ctx: Context) -> Any:
        _require_utf8(self, ctx)
        with ctx.obj.running(), _worded(ctx):
            return super().invoke(ctx)

    def collect_usage_pieces(self, ctx: Context) -> list[str]:
        """Return metavars unchanged: they already mark what is optional."""
        arguments = [each for each in self.params if not isinstance(each, TyperOption)]
        return ["[OPTIONS]", *(each.metavar or each.human_readable_name for each in arguments)]

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        arguments, options = _sections(self, ctx)
        commands = {"Commands": [each.row for each in self.entry.subcommands]}
        _write(arguments | commands | options, formatter)


class Group(TyperGroup):
    def list_commands(self, ctx: Context) -> list[str]:
        return [entry.name for entry in COMMANDS]

    def get_command(self, ctx: Context, cmd_name: str) -> Command:
        return command_of(plugins.named(cmd_name) or find(cmd_name))

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        line = argv.parse(args, specs(self.get_params(ctx)), interspersed=False)
        if HELP[0] in line.options:
            show_page(self, ctx)
        rest = _given(self, ctx, line, super().parse_args)
        if not line.positionals:
            show_page(self, ctx)
        return rest

    def resolve_command(
        self, ctx: Context, args: list[str]
    ) -> tuple[str | None, Command, list[str]]:
        word, *rest = args
        if word in HELP_WORDS:
            if not rest:
                show_page(self, ctx)
            word, rest = rest[0], [HELP[0]]
        command = self.get_command(ctx, word)
        entry = command.entry
        ctx.obj.command = entry.name
        if entry.subcommands:
            options = specs(command.get_params(ctx))
            head = argv.parse(rest, options, interspersed=False).positionals
            if head and (inner := entry.subcommand(head[0])):
                return f"{word} {inner.name}", command_of(inner), head[1:]
        return entry.name if entry.grammar is Grammar.KUBECTL else word, command, rest

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        commands = {name: [each.row for each in family] for name, family in FAMILIES.items()}
        _write(commands | _sections(self, ctx)[1], formatter)


@cache
def command_of(entry: CommandSpec) -> Command:
    lone = typer.Typer(add_completion=False, rich_markup_mode=None)
    aliases = f"Also called: {', '.join(entry.aliases)}." if entry.aliases else None
    lone.command(entry.name, cls=Command, epilog=aliases)(entry.load())
    command = typer.main.get_command(lone)
    assert isinstance(command, Command)
    command.entry = entry
    return command


def declared(function: Callable[..., Any]) -> dict[str, ParameterInfo]:
    found = inspect.signature(function, eval_str=True).parameters
    return {
        name: each
        for name, parameter in found.items()
        for each in getattr(parameter.annotation, "__metadata__", ())
        if isinstance(each, ParameterInfo)
    }


def completer(function: Callable[..., Any], parameter: Parameter) -> Any:
    info = declared(function).get(parameter.name or "")
    return info.autocompletion if info is not None else None


def specs(found: Iterable[Parameter]) -> dict[str, OptionSpec]:
    by_spelling: dict[str, OptionSpec] = {}
    for each in found:
        if isinstance(each, TyperOption):
            spec = OptionSpec(canonical(each), each.is_flag, each.multiple)
            by_spelling.update((name.lstrip("-"), spec) for name in each.opts)
    return by_spelling


def canonical(option: Parameter) -> str:
    return max(option.opts, key=len)


def show_page(command: AnyCommand, ctx: Context) -> NoReturn:
    page = crictl_page.page(command, ctx) if crictl.is_called() else command.get_help(ctx)
    ctx.obj.env.stdout.write(f"{page}\n")
    ctx.exit()


def _sections(command: AnyCommand, ctx: Context) -> tuple[Sections, Sections]:
    arguments: Sections = {}
    options: Sections = {"Options": []}
    for each in command.get_params(ctx):
        if (row := each.get_help_record(ctx)) is not None:
            if isinstance(each, TyperOption):
                options.setdefault(each.rich_help_panel or "Options", []).append(row)
            else:
                arguments.setdefault("Arguments", []).append(row)
    return arguments, options


def _write(sections: Sections, formatter: HelpFormatter) -> None:
    for heading, rows in sections.items():
        if rows:
            with formatter.section(heading):
                formatter.write_dl(rows)


def _given(
    command: AnyCommand,
    ctx: Context,
    line: CommandLine,
    parse: Callable[[Context, list[str]], list[str]],
) -> list[str]:
    """Parse the line, which is now unambiguous, with Typer's own parser."""
    options = [each for each in command.get_params(ctx) if isinstance(each, TyperOption)]
    # Go programs treat an empty value as absent, and scripts rely on it: --state "$STATE".
    empty = {f"{canonical(each)}=" for each in options if each.default is None and _choices(each)}
    words = [word for word in line.options if word not in empty]
    with _worded(ctx, line):
        rest = parse(ctx, [*words, "--", *line.positionals])
    for each in options:
        if canonical(each) in line.negated and each.name:
            ctx.params[each.name] = False
    return rest


@contextmanager
def _worded(ctx: Context, line: CommandLine | None = None) -> Iterator[None]:
    """Turn Typer's usage errors into this program's one-line errors."""
    try:
        yield
    except typer.TyperException as exc:
        param: Parameter | None = getattr(exc, "param", None)
        typed = line.typed.get(canonical(param)) if line and param and param.opts else None
        if typed is not None and isinstance(exc, typer.BadParameter):
            exc.param_hint = f"'{argv.dashed(typed[0])}'"
        message = " ".join(exc.format_message().split()).removesuffix(".")
        message = message[:1].lower() + message[1:]
        hint = f"see '{ctx.command_path} --help'"
        if type(exc).__name__ == "MissingParameter":
            raise MissingArgument(message, hint=hint) from exc
        if param is None and line is not None:
            raise ExtraArgument(message, hint=hint) from exc
        if not isinstance(param, TyperOption) or _choices(param):
            raise UsageError(message, hint=hint) from exc
        name, value = typed or (canonical(param).lstrip("-"), exc.message)
        flag_error = f'invalid value "{value}" for flag -{name}: parse error'
        raise OptionError(message, flag_error=flag_error, hint=hint) from exc


def _choices(parameter: Parameter) -> tuple[str, ...]:
    return tuple(getattr(parameter.type, "choices", ()))


def _require_utf8(command: Command, ctx: Context) -> None:
    """Require arguments other than paths to be UTF-8, as strings in the CRI are."""
    for each in command.params:
        value = ctx.params.get(each.name or "")
        for text in value if isinstance(value, list | tuple) else [value]:
            if not isinstance(text, str) or not any("\ud800" <= c <= "\udfff" for c in text):
                continue
            if completer(command.entry.load(), each) not in DIRECTIVES:
                # The value of an option may be a password.
                shown = canonical(each) if isinstance(each, TyperOption) else quote(text)
                raise UsageError(f"{shown} is not UTF-8")
