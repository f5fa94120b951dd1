"""The entry point: global options, one dispatch, and the only place that catches everything."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import Annotated, Final

import typer
from typer.exceptions import TyperException

from pycrictl import __version__
from pycrictl.cli import tree
from pycrictl.cli.context import AppContext
from pycrictl.cli.options import DURATION, INTEGER
from pycrictl.config import Flags
from pycrictl.environ import Environment
from pycrictl.errors import ExitCode, PycrictlError, UsageError
from pycrictl.signals import DEAF_S, ENDING

SIGNAL_BASE: Final = 128
"""Exit status of a program ended by signal N is this plus N, as shells count."""

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of writing that come without a file name only from standard output."""

app = tree.new_app(
    cls=tree.Root,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)


class Terminated(BaseException):
    """A signal that ends programs, raised where this one is, so that ``finally`` blocks run."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = SIGNAL_BASE + number


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"pycrictl version {__version__}")
        raise typer.Exit(ExitCode.OK)


@app.callback(
    help="Inspect and debug the container runtime of a Kubernetes node over its CRI socket.",
)
def root(
    ctx: typer.Context,
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            help="Configuration file (default: /etc/crictl.yaml) [$CRI_CONFIG_FILE].",
        ),
    ] = None,
    debug: Annotated[
        bool, typer.Option("--debug", "-D", help="Log calls, and show tracebacks of errors.")
    ] = False,
    enable_tracing: Annotated[
        bool, typer.Option("--enable-tracing", help="Send traces to an OpenTelemetry collector.")
    ] = False,
    image_endpoint: Annotated[
        str | None,
        typer.Option(
            "--image-endpoint",
            "-i",
            metavar="SOCKET",
            help="Socket of the image service (default: the runtime's) [$IMAGE_SERVICE_ENDPOINT].",
        ),
    ] = None,
    max_retries: Annotated[
        int | None,
        typer.Option(
            "--max-retries",
            **INTEGER,
            help="Retries to connect; negative: no limit (default: 3).",
        ),
    ] = None,
    profile_cpu: Annotated[
        str, typer.Option("--profile-cpu", metavar="FILE", help="Write a CPU profile (pstats).")
    ] = "",
    profile_mem: Annotated[
        str,
        typer.Option(
            "--profile-mem", metavar="FILE", help="Write a memory snapshot (tracemalloc)."
        ),
    ] = "",
    runtime_endpoint: Annotated[
        str | None,
        typer.Option(
            "--runtime-endpoint",
            "-r",
            metavar="SOCKET",
            help="Socket of the runtime (default: the first that answers)"
            " [$CONTAINER_RUNTIME_ENDPOINT].",
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            "-t",
            **DURATION,
            help="Time limit of each call, such as 500ms (default: 2s).",
        ),
    ] = None,
    tracing_endpoint: Annotated[
        str,
        typer.Option(
            "--tracing-endpoint",
            metavar="HOST:PORT",
            help="The collector's address (OTLP over gRPC).",
        ),
    ] = "127.0.0.1:4317",
    tracing_sampling_rate_per_million: Annotated[
        int,
        typer.Option(
            "--tracing-sampling-rate-per-million",
            **INTEGER,
            help="How many of a million runs to trace; negative: all.",
        ),
    ] = -1,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            "-v",
            is_eager=True,
            callback=_print_version,
            help="Print the program's version and exit.",
        ),
    ] = False,
) -> None:
    """Keep the global options for the command; without a command, show the help."""
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
        raise typer.Exit(ExitCode.OK)
    app_context: AppContext = ctx.obj
    given_debug = True if debug else (False if "--debug" in ctx.meta[tree.NEGATED] else None)
    app_context.flags = Flags(
        config=config,
        runtime_endpoint=runtime_endpoint,
        image_endpoint=image_endpoint,
        timeout_s=timeout,
        max_retries=max_retries,
        debug=given_debug,
    )
    env = app_context.env
    if profile_cpu or profile_mem:
        from pycrictl.profiles import profiled

        ctx.with_resource(profiled(cpu=profile_cpu, memory=profile_mem, note=env.note))
    if enable_tracing:
        from pycrictl.cri.calls.tracing import Tracer, is_sampled

        if is_sampled(tracing_sampling_rate_per_million):
            app_context.tracer = Tracer(tracing_endpoint, wall_clock=env.wall_clock)
            ctx.with_resource(app_context.tracer.recording(ctx.invoked_subcommand, warn=env.warn))


def main(argv: Sequence[str] | None = None, *, env: Environment | None = None) -> int:
    """Run one command line.

    Args:
        argv: the words after the program's name; ``sys.argv`` by default.
        env: streams and clocks; those of the process by default.

    Returns:
        The exit status.
    """
    env = env or Environment()
    context = AppContext(env=env, flags=Flags())
    signals = _Signals()
    try:
        signals.take()
        code = _dispatch(sys.argv[1:] if argv is None else list(argv), context)
        env.stdout.flush()
    except PycrictlError as exc:
        code = _report(context, exc.message, hint=exc.hint, code=exc.exit_code)
    except TyperException as exc:
        code = _report_usage(context, exc)
    except (KeyboardInterrupt, typer.Abort):
        code = _report(context, "interrupted", code=ExitCode.INTERRUPTED)
    except Terminated as exc:
        code = exc.exit_code
    except BrokenPipeError:
        code = _close_stdout()
    except OSError as exc:
        reason = f"{exc.strerror or exc}".lower()
        if exc.errno in _NO_ROOM and exc.filename is None:
            reason = f"cannot write to standard output: {reason}"
        code = _report(context, reason, code=ExitCode.FAILURE)
        _close_stdout()
    except Exception as exc:  # the last resort: a bug must not end in a page of traceback
        message = f"internal error: {type(exc).__name__}: {exc}"
        hint = "please report it with the output of the same command and --debug"
        code = _report(context, message, hint=hint, code=ExitCode.INTERNAL)
    return code


def _dispatch(words: list[str], context: AppContext) -> int:
    command = typer.main.get_command(app)
    try:
        with command.make_context(_program_name(), words, obj=context) as ctx:
            command.invoke(ctx)
    except typer.Exit as exc:
        return exc.exit_code
    return ExitCode.OK


def _program_name() -> str:
    """Return ``crictl`` if the program is linked under that name, else its own."""
    name = os.path.basename(sys.argv[0])  # noqa: PTH119 (pathlib costs 5 ms at every start)
    return name if name in ("pycrictl", "crictl") else "pycrictl"


class _Signals:
    """Ends the program by an exception at a signal, as Ctrl-C ends Python's programs."""

    def __init__(self) -> None:
        self._deaf_until_s = 0.0

    def take(self) -> None:
        """Take the signals over, but for ignored ones, as SIGINT is in background jobs."""
        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._end)

    def _end(self, number: int, frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if now_s < self._deaf_until_s:
            return
        self._deaf_until_s = now_s + DEAF_S
        raise KeyboardInterrupt if number == signal.SIGINT else Terminated(number)


def _report_usage(context: AppContext, exc: TyperException) -> int:
    ctx = getattr(exc, "ctx", None)
    path = ctx.command_path if ctx is not None else _program_name()
    message = exc.format_message() if hasattr(exc, "format_message") else str(exc)
    message = message.rstrip(".")
    return _report(
        context,
        message[:1].lower() + message[1:],
        hint=f"see '{path} --help'",
        code=UsageError.exit_code,
    )


def _report(context: AppContext, message: str, *, hint: str | None = None, code: int) -> int:
    """Write the one line of an error, its hint, and with ``--debug`` where it came from."""
    if context.flags.debug and sys.exc_info()[0] is not None:
        import traceback

        traceback.print_exc(file=context.env.stderr)
    context.env.error(message, hint=hint)
    return int(code)


def _close_stdout() -> int:
    """Make sure that the interpreter's own flush at exit cannot fail again."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    os.close(devnull)
    return SIGNAL_BASE + signal.SIGPIPE
