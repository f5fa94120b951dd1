"""The command tree: Typer's classes with Go's grammar; command modules are loaded on demand.

A command line passes through the methods that click calls: ``make_context`` calls ``parse_args``,
which reads the words and hands their values to the parameters; ``invoke`` calls the function of a
command with them. click's own groups are not used, as they need all commands to be loaded.
"""

from __future__ import annotations

import textwrap
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NoReturn

import typer
from typer.core import TyperCommand, TyperOption

from pycrictl.base.errors import (
    ConfigError,
    ExtraArgument,
    MissingArgument,
    OptionError,
    PycrictlError,
    UsageError,
)
from pycrictl.base.units import escape, quote, quote_path
from pycrictl.cli import argv
from pycrictl.cli.argv import CommandLine, by_spelling
from pycrictl.cli.command_table import (
    BY_NAME,
    FAMILIES,
    HANDED_ON,
    HELP_WORDS,
    KUBECTL_OPTIONS,
    CommandSpec,
    Grammar,
    find,
)
from pycrictl.cli.complete import PATHS

if TYPE_CHECKING:
    from typer._click import Command as AnyCommand
    from typer._click import Context, HelpFormatter, Parameter

HELP: Final = ("--help", "-h")

_SELECTING: Final = frozenset(("image", "labels", "last", "latest", "name", "pod", "state"))
"""Options of ``exec`` in place of a container."""


class LineContext(typer.Context):
    """A context with its line as it was typed: for completion, and for other hosts."""

    line: CommandLine


class Program(TyperCommand):
    """The program itself: the global options, followed by a command."""

    context_class = LineContext

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        assert isinstance(ctx, LineContext)
        ctx.obj.active = ctx
        ctx.line = line = argv.parse(args, by_spelling(self.get_params(ctx)), ends_after=1)
        ctx.args = line.positionals
        if line.values.pop("help", False):
            if not line.topics:
                show_page(self, ctx)
            if line.topics[0] not in BY_NAME:
                ctx.obj.persona.check_topics(line.topics, by_option=True)
            ctx.args = [HELP_WORDS[0], *line.topics[:1]]
        _fill_in(self, ctx, line, [])
        if not ctx.args and not ctx.resilient_parsing:
            show_page(self, ctx)
        return ctx.args

    def invoke(self, ctx: Context) -> Any:
        assert isinstance(ctx, LineContext)
        if ctx.params["host"]:
            from pycrictl.cli import on_hosts  # noqa: PLC0415 - only for other hosts

            word, *rest = ctx.args
            code = on_hosts.run(
                ctx.obj,
                ctx.params,
                ctx.line,
                ctx.args,
                lambda: command_of(find(word)).line(ctx, rest),
            )
            if code is not None:
                ctx.exit(code)
        name, command, rest = self.resolve(ctx)
        self.invoke_globals(ctx)
        with command.make_context(name, rest, parent=ctx) as inner:
            return command.invoke(inner)

    def invoke_globals(self, ctx: Context) -> None:
        super().invoke(ctx)
        ctx.obj.use_root()

    def resolve(self, ctx: Context) -> tuple[str, Command, list[str]]:
        """Return the name in a context's words, the command of that name, and its own words."""
        word, *rest = ctx.args
        if word in HELP_WORDS:
            if not rest:
                show_page(self, ctx)
            word, rest = rest[0], [HELP[0]]
        entry = find(word)
        ctx.obj.command = entry.name
        inner = entry.subcommand(rest[0]) if rest else None
        if inner is None:
            return word, command_of(entry), rest
        ctx.obj.command = f"{entry.name} {inner.name}"
        return f"{word} {inner.name}", command_of(inner), rest[1:]

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
    context_class = LineContext
    entry: CommandSpec

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        assert isinstance(ctx, LineContext)
        ctx.obj.active = ctx
        ctx.line = line = self.line(ctx, args)
        words = line.positionals
        if line.values.get("help"):
            self._help(ctx, line.topics, by_option=True)
        if self.entry.grammar.has_help_word and words and words[0] in HELP_WORDS:
            self._help(ctx, words[1:], by_option=False)
        if self.entry.grammar is Grammar.KUBECTL:
            theirs = {option.name for option in KUBECTL_OPTIONS}
            ctx.obj.handed_on = [word for name, word in line.words() if name in theirs]
        _fill_in(self, ctx, line, ctx.obj.persona.positionals(self.entry.name, words))
        return []

    def line(self, ctx: Context, args: list[str]) -> CommandLine:
        persona, grammar, options = ctx.obj.persona, self.entry.grammar, self.get_params(ctx)
        if grammar is Grammar.KUBECTL:
            options = [*KUBECTL_OPTIONS, *options]
        ends_after = None
        if not persona.is_interspersed(self.entry.name, grammar.is_interspersed):
            # kubectl takes options between a container and a command.
            ends_after = 1 if persona.is_crictl else 2
        return argv.parse(
            args,
            by_spelling(options),
            ends_after=ends_after,
            first=_SELECTING,
            attached=grammar is Grammar.KUBECTL,
        )

    def _help(self, ctx: Context, topics: list[str], *, by_option: bool) -> NoReturn:
        """Show the page of the subcommand that is asked for, else of this command."""
        if topics and (inner := self.entry.subcommand(topics[0])) is not None:
            command = command_of(inner)
            name = f"{ctx.info_name} {inner.name}"
            show_page(command, typer.Context(command, info_name=name, parent=ctx.parent))
        ctx.obj.persona.check_topics(topics, by_option=by_option)
        show_page(self, ctx)

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
            words = ", ".join(f"--{name}" for name in HANDED_ON)
            width = formatter.width - formatter.indent_increment
            with formatter.section("Passed to kubectl (see 'kubectl options')"):
                # Not write_text, which breaks lines within a name.
                for line in textwrap.wrap(words, width, break_on_hyphens=False):
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")


@cache
def command_of(entry: CommandSpec) -> Command:
    lone = typer.Typer(add_completion=False, rich_markup_mode=None)
    aliases = f"Also called: {', '.join(entry.aliases)}." if entry.aliases else None
    lone.command(entry.name, cls=Command, epilog=aliases)(entry.load())
    command = typer.main.get_command(lone)
    assert isinstance(command, Command)
    command.entry = entry
    return command


def canonical(option: Parameter) -> str:
    return max(option.opts, key=len)


def write_page(command: AnyCommand, ctx: Context) -> None:
    ctx.obj.env.stdout.write(f"{ctx.obj.persona.help_page(command, ctx)}\n")


def show_page(command: AnyCommand, ctx: Context) -> NoReturn:
    write_page(command, ctx)
    ctx.exit()


def _fill_in(
    command: TyperCommand, ctx: Context, line: CommandLine, positionals: list[str]
) -> None:
    """Hand the values of a line to the parameters, which convert them and add defaults."""
    ctx.obj.persona.check_spellings(line.spellings)
    parameters = command.get_params(ctx)
    hint = f"see '{ctx.command_path} --help'"
    values, words = {**line.values}, positionals
    for param in parameters:
        if isinstance(param, TyperOption):
            # Go programs treat an empty value as absent, and scripts rely on it: --state "$STATE".
            if param.default is None and _choices(param) and values.get(param.name or "") == "":
                del values[param.name or ""]
        elif words:
            many = param.nargs == -1
            values[param.name or ""] = words if many else words[0]
            words = [] if many else words[1:]
        elif param.required and not ctx.resilient_parsing:
            raise MissingArgument(f"missing argument {param.get_error_hint(ctx)}", hint=hint)
    if words and not ctx.resilient_parsing:
        surplus = " ".join(map(escape, words))
        raise ExtraArgument(f"got unexpected extra argument(s) ({surplus})", hint=hint)
    for param in sorted(parameters, key=lambda param: not param.is_eager):
        if param.name != "help":
            try:
                param.handle_parse_result(ctx, values, [])
            except typer.BadParameter as exc:
                raise _refusal(ctx, param, line, exc.message.removesuffix("."), hint) from exc
            if not ctx.resilient_parsing and param.metavar not in PATHS:
                _require_utf8(param, ctx.params.get(param.name or ""))


def _refusal(
    ctx: Context, param: Parameter, line: CommandLine, reason: str, hint: str
) -> PycrictlError:
    """Return the error for a value of the line, of a variable or of a file of settings."""
    name = param.name or ""
    reason = " ".join(reason.split())
    source = ctx.get_parameter_source(name)
    if source and source.name == "DEFAULT_MAP":
        file = quote_path(ctx.params["config"])
        return ConfigError(f"{file}: {canonical(param).removeprefix('--')}: {reason}")
    if name not in line.spellings:
        if isinstance(param, TyperOption):
            message = f"the variable {param.envvar}: {reason}"
            return OptionError(message, flag_error=message, hint=hint)
        return UsageError(f"invalid value for {param.get_error_hint(ctx)}: {reason}", hint=hint)
    spelling = line.spellings[name][-1]
    message = f"invalid value for '{argv.dashed(spelling)}': {reason}"
    if _choices(param):
        return UsageError(message, hint=hint)
    flag_error = f'invalid value "{line.values[name]}" for flag -{spelling}: parse error'
    return OptionError(message, flag_error=flag_error, hint=hint)


def _choices(param: Parameter) -> tuple[str, ...]:
    return tuple(getattr(param.type, "choices", ()))


def _require_utf8(param: Parameter, value: Any) -> None:
    """Require arguments other than paths to be UTF-8, as strings in the CRI are."""
    for text in value if isinstance(value, list | tuple) else [value]:
        if isinstance(text, str) and any("\ud800" <= c <= "\udfff" for c in text):
            # The value of an option may be a password.
            shown = canonical(param) if isinstance(param, TyperOption) else quote(text)
            raise UsageError(f"{shown} is not UTF-8")
