"""Differences under the name ``crictl``, for scripts that expect crictl 1.36.

All but the smallest differences are here or, for the form of the help, in ``crictl_page``. Commands
raise the same errors under both names; how an error is reported is decided here. This module is
loaded at every start, so it imports little.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TextIO

from pycrictl import noderoot
from pycrictl.config import DEFAULT_PATH
from pycrictl.environ import CRICTL, OWN_NAME
from pycrictl.errors import (
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
from pycrictl.show.render import CLEAR_SCREEN
from pycrictl.units import parse_int, quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pycrictl.environ import Environment

NAME: Final = CRICTL
VERSION: Final = "1.36.0"
"""The emulated version of crictl, which scripts query."""

TITLE: Final = "crictl - client for CRI"
"""The title in the program's help."""

SUMMARIES: Final = {"pull": "Pull an image from a registry."}
"""Summaries that scripts search help pages for, where the command's own differs."""

NEEDS_ARGUMENT: Final = frozenset(
    ("attach", "checkpoint", "logs", "pull", "start", "stop", "update")
)
"""Commands for which a missing argument is an error; all others show their help."""

IGNORES_ARGUMENTS: Final = frozenset(("imagefsinfo", "pods", "runtime-config"))
"""Commands that ignore arguments."""

HELP_FOR_FORMAT: Final = frozenset(("metricdescs", "metricsp"))
"""Commands that show their help if the output format is unknown."""


def program_name() -> str:
    """Return ``crictl`` if the program was started under that name, else its own name.

    A file extension or a version may follow: ``crictl.pyz``, ``crictl-v1.36``.
    """
    name = Path(sys.argv[0]).name
    if not name.startswith(NAME):
        return OWN_NAME
    rest = name.removeprefix(NAME)
    version = rest.lstrip("-_").removeprefix("v")
    return NAME if not rest or rest[0] == "." or version[:1].isdigit() else OWN_NAME


def is_called() -> bool:
    return program_name() == NAME


def handles_signal(number: int) -> bool:
    """Return whether a signal interrupts the program as Ctrl-C does, even if it was ignored.

    Shells start background jobs with SIGINT ignored; Go programs handle it all the same.
    """
    return is_called() and number in (signal.SIGINT, signal.SIGTERM)


def reads_configuration(command: str) -> bool:
    return is_called() and command != "config"


def configuration_warnings(warnings: tuple[str, ...], *, is_named: bool) -> tuple[str, ...]:
    """Return the warnings about the configuration file that are shown.

    crictl silently ignores an invalid file at the default path, but reports a missing one.
    """
    if is_named or not is_called():
        return warnings
    if Path(noderoot.given(DEFAULT_PATH)).exists():
        return ()
    return (f"config file {DEFAULT_PATH} does not exist; one beside the program will do",)


def exit_status(code: int) -> int:
    """Return the exit status: crictl's is 1 for every failure, even of a remote command."""
    return min(code, ExitCode.FAILURE) if is_called() else code


def known_format(given: str, formats: Iterable[str]) -> str:
    """Return the output format; crictl prints a table for those not in ``formats``."""
    is_known = given.partition("=")[0] in (each.partition("=")[0] for each in formats)
    return "table" if is_called() and not is_known else given


def is_interspersed(command: str, by_default: bool) -> bool:
    return by_default and not (is_called() and command in IGNORES_ARGUMENTS)


def positionals(command: str, words: list[str]) -> list[str]:
    """Return the effective positionals; only crictl keeps kubectl's ``--`` before a command."""
    if is_called():
        most = 0 if command in IGNORES_ARGUMENTS else 2 if command == "config" else None
        return words[:most]
    if command in ("exec", "debug") and words[1:2] == ["--"]:
        return [words[0], *words[2:]]
    return words


def check_spellings(spellings: Mapping[str, Sequence[str]]) -> None:
    """Refuse an option that is given by two of its names, as crictl does."""
    for given in spellings.values():
        if is_called() and len(names := sorted({*given}, key=len)) > 1:
            error = f"Cannot use two forms of the same flag: {names[0]} {names[-1]}"
            raise OptionError(error, flag_error=error)


def check_topics(topics: Sequence[str], *, by_option: bool) -> None:
    """Refuse a help topic that is no subcommand: ``ps --help extra`` or ``ps help extra``."""
    if is_called() and topics:
        error = UnknownCommand(topics[0], hint="")
        raise UsageError(error.topic) if by_option else error


def score(text: str) -> int:
    """Return the value of ``--oom-score-adj``; crictl reads invalid text as 0."""
    try:
        return parse_int(text)
    except ValueError:
        if is_called():
            return 0
        raise


def whole_output(stdout: bytes, stderr: bytes, code: int) -> tuple[bytes, bytes]:
    """Return what ``exec --sync`` writes to standard output and to standard error.

    crictl writes both to standard output, each with a newline; if the command failed, only the
    latter, in its error.
    """
    if not is_called():
        return stdout, stderr
    if code:
        return b"", stderr
    return b"%b\n%b\n" % (stdout, stderr), b""


def inform(env: Environment, text: str) -> None:
    """Write a note about a success under the name ``crictl``; pycrictl itself is silent."""
    if is_called():
        env.note(text)


def report_missing_log(env: Environment, path: str) -> None:
    """Report that a log file to be removed does not exist; an empty ``path`` means none."""
    if path and is_called():
        env.error(f"the log file {quote(path, 4096)} does not exist")


def clear_screen(out: TextIO) -> None:
    """Clear the screen before a table of statistics, as crictl does even without a terminal."""
    if is_called():
        out.write(CLEAR_SCREEN)


def has_failed(env: Environment, container_id: str, failure: str) -> bool:
    """Report an event that a template cannot render; return whether that is a failure.

    crictl reports it among the events and continues.
    """
    if is_called():
        message = failure.replace("template: :", "template: tmplExecuteRawJSON:", 1)
        report = "failed to format container event with the error: failed to template data"
        env.stdout.write(f"{report}: {message}\n")
    else:
        env.warn(f"event of container {container_id[:13]}: {failure}")
    return not is_called()


class ErrorReport(NamedTuple):
    """How crictl reports an error; a ``reason`` is printed before the help page."""

    message: str = ""
    code: int = ExitCode.FAILURE
    shows_help: bool = False
    reason: str = ""


def error_report(command: str, error: PycrictlError) -> ErrorReport | None:
    """Return how crictl reports an error, or None if it is reported as by pycrictl."""
    if not is_called():
        return None
    match error:
        case OptionError():
            return ErrorReport(error.flag_error, shows_help=True, reason=error.flag_error)
        case MissingArgument() if command not in NEEDS_ARGUMENT:
            return ErrorReport(code=ExitCode.OK, shows_help=True)
        case ExtraArgument():
            return ErrorReport(code=ExitCode.OK, shows_help=True)
        case NothingSelected():
            nothing = f"nothing found per filter: {error.message}"
            return ErrorReport(nothing, code=ExitCode.OK, shows_help=True)
        case UnknownFormat() if command in HELP_FOR_FORMAT:
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
