"""The entry point: dispatch, signals, and the report of every error."""

from __future__ import annotations

import errno
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

import typer

from pycrictl.base.config import Flags
from pycrictl.base.environ import Environment
from pycrictl.base.errors import ExitCode, PycrictlError, reason_of
from pycrictl.base.signals import ENDING, REPEAT_S, SIGNAL_BASE, Terminated, ending, raise_ending
from pycrictl.cli.application import application
from pycrictl.cli.command_table import KUBECTL, plugin_of
from pycrictl.cli.context import AppContext
from pycrictl.cli.persona import Persona, persona_of
from pycrictl.cli.tree import command_of, write_page

_UNWRITABLE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EBADF)
"""Write errors; those without a file name are from standard output."""


def main(argv: Sequence[str] | None = None, *, env: Environment | None = None) -> int:
    """Run the words after the program's name and return the exit status."""
    env = env or Environment()
    env.wording = persona = persona_of(sys.argv[0])
    env.program = persona.program
    context = AppContext(env, Flags(), persona)

    def run() -> int:
        _take_signals(persona)
        return _dispatch(sys.argv[1:] if argv is None else argv, context)

    return _reported(context, run)


def _reported(context: AppContext, run: Callable[[], int]) -> int:
    """Return the exit status of ``run``; if it raises an error, report that first."""
    try:
        code = run()
        context.env.stdout.flush()
    except PycrictlError as exc:
        code = _conclude(context, exc)
    except (KeyboardInterrupt, Terminated) as exc:
        code = _ended(context, exc)
    except BrokenPipeError:
        code = SIGNAL_BASE + signal.SIGPIPE
    except OSError as exc:
        reason = reason_of(exc)
        if exc.errno in _UNWRITABLE and exc.filename is None:
            reason = f"cannot write to standard output: {reason}"
        code = _report(context, reason, code=ExitCode.FAILURE)
    except UnicodeEncodeError:
        message = "an argument, a variable or a file name is not UTF-8, which the CRI needs"
        code = _report(context, message, code=ExitCode.FAILURE)
    except Exception as exc:  # the last resort: a bug must not end in a page of traceback
        if (cause := ending()) is not None:  # code interrupted by a signal failed as well
            return _ended(context, cause)
        message = f"internal error: {type(exc).__name__}: {exc}"
        hint = "please report it with the output of the same command and --debug"
        code = _report(context, message, hint=hint, code=ExitCode.INTERNAL)
    return code


def _dispatch(words: Sequence[str], app: AppContext) -> int:
    """Run a command line with Typer's tree, but without its ``main``, which words errors itself."""
    tree = typer.main.get_command(application)
    try:
        if (plugin := plugin_of(Path(sys.argv[0]).name)) is None:
            ctx = tree.make_context(app.program, [*words], obj=app)
        else:
            app.env.program = f"{KUBECTL} {plugin.name}"
            kubectl = tree.context_class(tree, info_name=KUBECTL, obj=app, **tree.context_settings)
            ctx = command_of(plugin).make_context(plugin.name, [*words], parent=kubectl)
        with ctx:
            ctx.command.invoke(ctx)
    except typer.Exit as exc:
        return app.persona.exit_status(exc.exit_code)
    except typer.Abort:  # from Typer's prompts
        raise KeyboardInterrupt from None
    return ExitCode.OK


def _take_signals(persona: Persona) -> None:
    """Make signals end the program with an exception, as Ctrl-C does in Python."""
    repeats_until_s = 0.0

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal repeats_until_s
        now_s = time.monotonic()
        if now_s < repeats_until_s:
            return
        repeats_until_s = now_s + REPEAT_S
        is_interrupt = number == signal.SIGINT or persona.handles_signal(number)
        raise_ending(KeyboardInterrupt() if is_interrupt else Terminated(number))

    for number in ENDING:
        is_ignored = signal.getsignal(number) is signal.SIG_IGN
        if not is_ignored or persona.handles_signal(number):
            signal.signal(number, end)


def _ended(context: AppContext, cause: BaseException) -> int:
    if isinstance(cause, Terminated):
        return cause.exit_code
    return _report(context, "interrupted", code=context.persona.exit_status(ExitCode.INTERRUPTED))


def _conclude(context: AppContext, exc: PycrictlError) -> int:
    error_report = context.persona.error_report(context.command, exc)
    if error_report is None:
        code = context.persona.exit_status(exc.exit_code)
        return _report(context, exc.message, hint=exc.hint, code=code)
    if error_report.message:
        _report(context, error_report.message, code=error_report.code)
    if not error_report.shows_help:
        return error_report.code

    def explain() -> int:
        if error_report.reason:
            context.env.stdout.write(f"Incorrect Usage: {error_report.reason}\n\n")
        assert context.active is not None
        write_page(context.active.command, context.active)
        return ExitCode.OK

    return _reported(context, explain) or error_report.code


def _report(context: AppContext, message: str, *, hint: str | None = None, code: int) -> int:
    if context.flags.debug and sys.exc_info()[0] is not None:
        traceback.print_exc(file=context.env.stderr)
    context.env.error(message, hint=hint)
    return int(code)
