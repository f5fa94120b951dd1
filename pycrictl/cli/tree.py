"""The command tree: Typer's classes with Go's grammar; command modules are loaded on demand."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NoReturn

import typer
from typer.core import TyperCommand, TyperOption

from pycrictl.base.errors import (
    ConfigError,
    ExtraArgument,
    MissingArgument,
    OptionError,
    UsageError,
)
from pycrictl.base.units import escape, quote
from pycrictl.cli import argv, plugins
from pycrictl.cli.argv import CommandLine, OptionSpec
from pycrictl.cli.command_table import BY_NAME, FAMILIES, HELP_WORDS, CommandSpec, Grammar, find
from pycrictl.cli.complete import PATHS

if TYPE_CHECKING:
    from typer._click import Command as AnyCommand
    from typer._click import Context, HelpFormatter, Parameter

HELP: Final = ("--help", "-h")

_SELECTING: Final = frozenset(("image", "labels", "last", "latest", "name", "pod", "state"))
"""Options of ``exec`` in place of a container."""


class Program(TyperCommand):
    """The program itself: the global options, and behind them a command."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        line = argv.parse(args, specs(self.get_params(ctx)), interspersed=False)
        ctx.obj.global_line = line
        ctx.args = line.positionals
        if line.values.pop("help", False):
            if not line.topics:
                show_page(self, ctx)
            if line.topics[0] not in BY_NAME:
                ctx.obj.persona.check_topics(line.topics, by_option=True)
            ctx.args = [HELP_WORDS[0], *line.topics[:1]]
        _fill_in(self, ctx, line._replace(positionals=[]))
        if not ctx.args:
            show_page(self, ctx)
        return ctx.args

    def invoke(self, ctx: Context) -> Any:
        if ctx.params["host"]:
            from pycrictl.cli import on_hosts  # noqa: PLC0415 - only for other hosts

            word, *rest = ctx.args
            code = on_hosts.run(
                ctx.obj, ctx.params, ctx.args, lambda: command_of(find(word)).line(ctx, rest)
            )
            if code is not None:
                ctx.exit(code)
        name, command, rest = resolve(self, ctx, ctx.args)
        with _worded(ctx):
            super().invoke(ctx)
        ctx.obj.use_root()
        with command.make_context(name, rest, parent=ctx) as inner:
            return command.invoke(inner)

    def collect_usage_pieces(self, ctx: Context) -> list[str]:
        return ["[OPTIONS]", "COMMAND [ARGS]..."]

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        sections = {name: [entry.row for entry in family] for name, family in FAMILIES.items()}
        for option in self.get_params(ctx):
            panel = getattr(option, "rich_help_panel", None) or "Options"
            if (row := option.get_help_record(ctx)) is not None:
                sections.setdefault(panel, []).append(row)
        for heading, rows in sections.items():
            with formatter.section(heading):
                formatter.write_dl(rows)


class Command(TyperCommand):
    entry: CommandSpec

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        line = self.line(ctx, args)
        if line.values.pop("help", False):
            self._help(ctx, line.topics, by_option=True)
        words = line.positionals
        if self.entry.grammar.has_help_word and words and words[0] in HELP_WORDS:
            self._help(ctx, words[1:], by_option=False)
        if self.entry.grammar is Grammar.KUBECTL:
            ctx.obj.handed_on = plugins.handed_on(line.values)
        _fill_in(
            self,
            ctx,
            line._replace(positionals=ctx.obj.persona.positionals(self.entry.name, words)),
        )
        return []

    def line(self, ctx: Context, args: list[str]) -> CommandLine:
        grammar, options = self.entry.grammar, specs(self.get_params(ctx))
        is_kubectls = grammar is Grammar.KUBECTL
        line = argv.parse(
            args,
            plugins.SPECS | options if is_kubectls else options,
            interspersed=ctx.obj.persona.is_interspersed(self.entry.name, grammar.is_interspersed),
            attached=is_kubectls,
        )
        # kubectl takes options between a container and a command. No command begins with a dash.
        word = "".join(line.positionals[1:2])
        if (
            grammar is Grammar.REMOTE
            and not ctx.obj.persona.is_literal
            and word.startswith("-")
            and word != "--"
            and args[: -len(line.positionals)][-1:] != ["--"]
            and not _SELECTING & line.values.keys()
        ):
            container, *rest = line.positionals
            more = argv.parse(rest, options, interspersed=False)
            line.values.update(more.values)
            line.spellings.update(more.spellings)
            line = line._replace(positionals=[container, *more.positionals])
        return line

    def _help(self, ctx: Context, topics: list[str], *, by_option: bool) -> NoReturn:
        """Show the page of the subcommand that is asked for, else of this command."""
        if topics and (inner := self.entry.subcommand(topics[0])) is not None:
            command = command_of(inner)
            name = f"{ctx.info_name} {inner.name}"
            show_page(command, typer.Context(command, info_name=name, parent=ctx.parent))
        ctx.obj.persona.check_topics(topics, by_option=by_option)
        show_page(self, ctx)

    def invoke(self, ctx: Context) -> Any:
        _require_utf8(self, ctx)
        with _worded(ctx):
            return super().invoke(ctx)

    def collect_usage_pieces(self, ctx: Context) -> list[str]:
        """Return metavars unchanged: they already mark what is optional."""
        arguments = [param for param in self.params if not isinstance(param, TyperOption)]
        return ["[OPTIONS]", *(param.metavar or param.human_readable_name for param in arguments)]

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        if self.entry.subcommands:
            with formatter.section("Commands"):
                formatter.write_dl([entry.row for entry in self.entry.subcommands])
        if self.entry.grammar is Grammar.KUBECTL:
            words = ", ".join(f"--{name}" for name in plugins.HANDED_ON)
            width = formatter.width - formatter.indent_increment
            with formatter.section("Handed on to kubectl (see 'kubectl options')"):
                # Not write_text, which breaks lines within a name.
                for line in textwrap.wrap(words, width, break_on_hyphens=False):
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")


def resolve(program: Program, ctx: Context, words: list[str]) -> tuple[str, Command, list[str]]:
    """Return the command that words name, as it was named, and the words for it."""
    word, *rest = words
    if word in HELP_WORDS:
        if not rest:
            show_page(program, ctx)
        word, rest = rest[0], [HELP[0]]
    entry = plugins.named(word) or find(word)
    command = command_of(entry)
    ctx.obj.command = entry.name
    if entry.subcommands:
        line = argv.parse(rest, specs(command.get_params(ctx)), interspersed=False)
        if line.positionals and (inner := entry.subcommand(line.positionals[0])):
            ctx.obj.command = f"{entry.name} {inner.name}"
            rest = [HELP[0]] if line.values.get("help") else line.positionals[1:]
            return f"{word} {inner.name}", command_of(inner), rest
    return entry.name if entry.grammar is Grammar.KUBECTL else word, command, rest


@cache
def command_of(entry: CommandSpec) -> Command:
    lone = typer.Typer(add_completion=False, rich_markup_mode=None)
    aliases = f"Also called: {', '.join(entry.aliases)}." if entry.aliases else None
    lone.command(entry.name, cls=Command, epilog=aliases)(entry.load())
    command = typer.main.get_command(lone)
    assert isinstance(command, Command)
    command.entry = entry
    return command


def specs(parameters: Iterable[Parameter]) -> dict[str, OptionSpec]:
    return {
        spelling.lstrip("-"): OptionSpec(param.name or "", param.is_flag, param.multiple)
        for param in parameters
        if isinstance(param, TyperOption)
        for spelling in param.opts
    }


def canonical(option: Parameter) -> str:
    return max(option.opts, key=len)


def show_page(command: AnyCommand, ctx: Context) -> NoReturn:
    ctx.obj.env.stdout.write(f"{ctx.obj.persona.help_page(command, ctx)}\n")
    ctx.exit()


def _fill_in(command: TyperCommand, ctx: Context, line: CommandLine) -> None:
    """Hand the values of a line to the parameters, which convert them and add defaults."""
    ctx.obj.persona.check_spellings(line.spellings)
    parameters = command.get_params(ctx)
    arguments = [param for param in parameters if not isinstance(param, TyperOption)]
    values, surplus = _by_argument(arguments, line.positionals)
    values |= line.values
    for param in parameters:
        # Go programs treat an empty value as absent, and scripts rely on it: --state "$STATE".
        if param.default is None and _choices(param) and values.get(param.name or "") == "":
            del values[param.name or ""]
    if not ctx.resilient_parsing:
        hint = f"see '{ctx.command_path} --help'"
        for param in arguments:
            if param.required and param.name not in values:
                raise MissingArgument(f"missing argument {param.get_error_hint(ctx)}", hint=hint)
        if surplus:
            words = " ".join(map(escape, surplus))
            raise ExtraArgument(f"got unexpected extra argument(s) ({words})", hint=hint)
    with _worded(ctx, line):
        for param in sorted(parameters, key=lambda param: not param.is_eager):
            if param.name != "help":
                param.handle_parse_result(ctx, values, [])


def _by_argument(arguments: list[Parameter], words: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the words by the names of arguments, of which the last may be a list; the surplus."""
    values: dict[str, Any] = {
        argument.name or "": word for argument, word in zip(arguments, words, strict=False)
    }
    surplus = words[len(arguments) :]
    if arguments and arguments[-1].nargs == -1 and len(words) >= len(arguments):
        values[arguments[-1].name or ""] = words[len(arguments) - 1 :]
        surplus = []
    return values, surplus


@contextmanager
def _worded(ctx: Context, line: CommandLine | None = None) -> Iterator[None]:
    """Turn Typer's usage errors into this program's one-line errors."""
    try:
        yield
    except typer.TyperException as exc:
        param: Parameter | None = getattr(exc, "param", None)
        spellings = line.spellings.get(param.name or "") if line and param else None
        if spellings and isinstance(exc, typer.BadParameter):
            exc.param_hint = f"'{argv.dashed(spellings[-1])}'"
        message = " ".join(exc.format_message().split()).removesuffix(".")
        message = message[:1].lower() + message[1:]
        source = ctx.get_parameter_source(param.name or "") if param else None
        if param and source and source.name == "DEFAULT_MAP":
            key = canonical(param).removeprefix("--")
            file = quote(ctx.params["config"], 4096)
            raise ConfigError(f"{file}: {key}: {exc.message.removesuffix('.')}") from exc
        hint = f"see '{ctx.command_path} --help'"
        if line is None or not isinstance(param, TyperOption) or _choices(param):
            raise UsageError(message, hint=hint) from exc
        if spellings:
            value = line.values[param.name or ""]
            flag_error = f'invalid value "{value}" for flag -{spellings[-1]}: parse error'
        else:
            value, name = param.resolve_envvar_value(ctx), canonical(param).lstrip("-")
            message = f"the variable {param.envvar}: {exc.message}"
            flag_error = (
                f'could not parse "{value}" as {(param.metavar or "").lower()} value from'
                f' environment variable "{param.envvar}" for flag {name}: {exc.message}'
            )
        raise OptionError(message, flag_error=flag_error, hint=hint) from exc


def _choices(param: Parameter) -> tuple[str, ...]:
    return tuple(getattr(param.type, "choices", ()))


def _require_utf8(command: Command, ctx: Context) -> None:
    """Require arguments other than paths to be UTF-8, as strings in the CRI are."""
    for param in command.params:
        value = ctx.params.get(param.name or "")
        if param.metavar in PATHS:
            continue
        for text in value if isinstance(value, list | tuple) else [value]:
            if isinstance(text, str) and any("\ud800" <= c <= "\udfff" for c in text):
                # The value of an option may be a password.
                shown = canonical(param) if isinstance(param, TyperOption) else quote(text)
                raise UsageError(f"{shown} is not UTF-8")
