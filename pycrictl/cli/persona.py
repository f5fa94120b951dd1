"""What differs under the name ``crictl``, for scripts that expect crictl 1.36.

``main`` decides by the program's name, once, and the context carries the persona to the commands.
Commands raise the same errors under both names; how an error is reported is decided here. This
module is loaded at every start, so it imports little.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from pycrictl import __version__
from pycrictl.base import noderoot
from pycrictl.base.config import DEFAULT_PATH
from pycrictl.base.environ import OWN_NAME, Wording
from pycrictl.base.errors import (
    ExitCode,
    ExtraArgument,
    MissingArgument,
    NothingSelected,
    OptionError,
    PycrictlError,
    UnknownCommand,
    UnknownFormat,
    UsageError,
)
from pycrictl.base.units import short_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import typer
    from typer.core import TyperCommand

    from pycrictl.base.environ import Environment

CRICTL: Final = "crictl"


class ErrorReport(NamedTuple):
    """How crictl reports an error; a ``reason`` is printed before the help page."""

    message: str = ""
    code: int = ExitCode.FAILURE
    shows_help: bool = False
    reason: str = ""


class Persona(Wording):
    """The program under its own name.

    Attributes:
        version: what ``--version`` prints.
        is_crictl: whether arguments, mistakes and output are handled as in crictl: only labels
            name a container's pod; an update of nothing or ``rmi --all`` with names is accepted;
            output is not fitted to the terminal, and failures are not explained.
    """

    version = __version__
    is_crictl = False

    # The command line

    def is_interspersed(self, command: str, by_default: bool) -> bool:
        """Return whether options may follow arguments."""
        return by_default

    def positionals(self, command: str, words: list[str]) -> list[str]:
        """Return those positionals that count."""
        return words

    def check_spellings(self, spellings: Mapping[str, Sequence[str]]) -> None:
        """Refuse an option that is given by two of its names."""

    def check_topics(self, topics: Sequence[str], *, by_option: bool) -> None:
        """Refuse a help topic that is no subcommand: ``ps --help extra`` or ``ps help extra``."""

    def help_page(self, command: TyperCommand, ctx: typer.Context) -> str:
        return command.get_help(ctx)

    def known_format(self, given: str, formats: Iterable[str]) -> str:
        """Return the output format that is used for the given one."""
        return given

    # Configuration

    def reads_configuration(self, command: str) -> bool:
        """Return whether the configuration is read before a command, even for its help."""
        return False

    def configuration_warnings(
        self, warnings: tuple[str, ...], *, is_named: bool
    ) -> tuple[str, ...]:
        """Return the warnings about the configuration file that are shown."""
        return warnings

    # Ends

    def exit_status(self, code: int) -> int:
        return code

    def handles_signal(self, number: int) -> bool:
        """Return whether a signal interrupts the program as Ctrl-C does, even if it was ignored."""
        return False

    def error_report(self, command: str, error: PycrictlError) -> ErrorReport | None:
        """Return how an error is reported, or None if by its own message."""
        return None

    # Output

    def inform(self, env: Environment, text: str) -> None:
        """Write a note about a success, about which pycrictl itself writes nothing."""

    def whole_output(self, stdout: bytes, stderr: bytes, code: int) -> tuple[bytes, bytes]:
        """Return what ``exec --sync`` writes to standard output and to standard error."""
        return stdout, stderr

    def has_failed(self, env: Environment, container_id: str, failure: str) -> bool:
        """Report an event that a template cannot render; return whether that is a failure."""
        env.warn(f"event of container {short_id(container_id)}: {failure}")
        return True


class Crictl(Persona):
    """The program as a replacement of crictl 1.36.0."""

    program = CRICTL
    password_prompt = "Enter Password:"
    prompts_on_stdout = True

    version = "1.36.0"
    is_crictl = True

    NEEDS_ARGUMENT: Final = frozenset(
        ("attach", "checkpoint", "logs", "pull", "start", "stop", "update")
    )
    """Commands for which a missing argument is an error; all others show their help."""

    IGNORES_ARGUMENTS: Final = frozenset(("imagefsinfo", "pods", "runtime-config"))
    """Commands that ignore arguments."""

    HELP_FOR_FORMAT: Final = frozenset(("metricdescs", "metricsp"))
    """Commands that show their help if the output format is unknown."""

    def note(self, text: str) -> str:
        return f"info: {text[:1].upper()}{text[1:]}"

    def message(self, lines: str) -> str:
        return lines.replace(f"'{OWN_NAME} ", f"'{self.program} ")  # commands to type

    def is_interspersed(self, command: str, by_default: bool) -> bool:
        return by_default and command not in self.IGNORES_ARGUMENTS

    def positionals(self, command: str, words: list[str]) -> list[str]:
        if command in self.IGNORES_ARGUMENTS:
            return []
        return words[:2] if command == "config" else words

    def check_spellings(self, spellings: Mapping[str, Sequence[str]]) -> None:
        for given in spellings.values():
            if len(names := sorted({*given}, key=len)) > 1:
                error = f"Cannot use two forms of the same flag: {names[0]} {names[-1]}"
                raise OptionError(error, flag_error=error)

    def check_topics(self, topics: Sequence[str], *, by_option: bool) -> None:
        if topics:
            error = UnknownCommand(topics[0], hint="")
            raise UsageError(error.topic) if by_option else error

    def help_page(self, command: TyperCommand, ctx: typer.Context) -> str:
        return _page(command, ctx)

    def known_format(self, given: str, formats: Iterable[str]) -> str:
        is_known = given.partition("=")[0] in (known.partition("=")[0] for known in formats)
        return given if is_known else "table"

    def reads_configuration(self, command: str) -> bool:
        return command != "config"

    def configuration_warnings(
        self, warnings: tuple[str, ...], *, is_named: bool
    ) -> tuple[str, ...]:
        # An invalid file at the default path is ignored silently, a missing one is reported.
        if is_named:
            return warnings
        if Path(noderoot.given(DEFAULT_PATH)).exists():
            return ()
        return (f"config file {DEFAULT_PATH} does not exist; trying the one beside the program",)

    def exit_status(self, code: int) -> int:
        return min(code, ExitCode.FAILURE)

    def handles_signal(self, number: int) -> bool:
        # Shells start background jobs with SIGINT ignored; Go programs handle it all the same.
        return number in (signal.SIGINT, signal.SIGTERM)

    def error_report(self, command: str, error: PycrictlError) -> ErrorReport | None:
        match error:
            case OptionError():
                return ErrorReport(error.flag_error, shows_help=True, reason=error.flag_error)
            case MissingArgument() if command not in self.NEEDS_ARGUMENT:
                return ErrorReport(code=ExitCode.OK, shows_help=True)
            case ExtraArgument():
                return ErrorReport(code=ExitCode.OK, shows_help=True)
            case NothingSelected():
                nothing = f"nothing found per filter: {error.message}"
                return ErrorReport(nothing, code=ExitCode.OK, shows_help=True)
            case UnknownFormat() if command in self.HELP_FOR_FORMAT:
                return ErrorReport(code=ExitCode.OK, shows_help=True)
            case UnknownFormat() if command == "events":
                return ErrorReport(f"don't support {error.output} format")
            case UsageError() if command == "events" and error.message.startswith("template: "):
                return ErrorReport(f"failed to parse go-template: {error.message}")
            case UsageError() if command == "events" and error.message.startswith("--template"):
                return ErrorReport("template can't be used with this format")
            case UnknownCommand():
                return ErrorReport(error.topic, code=error.exit_code)
        return None

    def inform(self, env: Environment, text: str) -> None:
        env.note(text)

    def whole_output(self, stdout: bytes, stderr: bytes, code: int) -> tuple[bytes, bytes]:
        # Both go to standard output, each with a newline; after a failure, only stderr is shown.
        return (b"", stderr) if code else (b"%b\n%b\n" % (stdout, stderr), b"")

    def has_failed(self, env: Environment, container_id: str, failure: str) -> bool:
        message = failure.replace("template: :", "template: tmplExecuteRawJSON:", 1)
        report = "failed to format container event with the error: failed to template data"
        env.stdout.write(f"{report}: {message}\n")
        return False


TITLE: Final = "crictl - client for CRI"
"""The title of the program's help; scripts search for it."""

SUMMARIES: Final = {"pull": "Pull an image from a registry."}
"""Summaries of commands that differ from pycrictl's; scripts search for them."""


def _page(command: TyperCommand, ctx: typer.Context) -> str:
    """Return a page of help that begins as crictl's, with headings in capitals."""
    text = command.get_help(ctx).replace("pycrictl ", f"{CRICTL} ")
    usage, _, rest = text.partition("\n\n")
    rest = re.sub(r"(?m)^\S.*:$", lambda heading: heading[0].upper(), rest)
    summary = SUMMARIES.get(command.name or "", rest.partition("\n")[0].strip())
    title = f"{ctx.command_path} - {summary}" if hasattr(command, "entry") else TITLE
    return f"NAME:\n   {title}\n\nUSAGE:\n   {usage.removeprefix('Usage: ')}\n\n{rest}"


def persona_of(program: str) -> Persona:
    """Return the persona for the path of the program as it was started.

    After ``crictl`` a file extension or a version may follow: ``crictl.pyz``, ``crictl-v1.36``.
    """
    name = Path(program).name
    rest = name.removeprefix(CRICTL)
    version = rest.lstrip("-_").removeprefix("v")
    is_crictl = name.startswith(CRICTL) and (not rest or rest[0] == "." or version[:1].isdigit())
    return Crictl() if is_crictl else Persona()
