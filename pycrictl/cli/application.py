"""The Typer application: the global options, and all commands."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from pycrictl import __version__
from pycrictl.cli import crictl, options
from pycrictl.cli.complete import directories, sockets
from pycrictl.cli.context import AppContext, Recording
from pycrictl.cli.tree import HELP, Program
from pycrictl.config import Flags

RECORDING: Final = "Profiling and tracing"

application = typer.Typer(add_completion=False, rich_markup_mode=None)  # plain text, without Rich


def _print_version(ctx: typer.Context, is_wanted: bool) -> None:
    if is_wanted and not ctx.resilient_parsing:
        app: AppContext = ctx.obj
        version = crictl.VERSION if crictl.is_called() else __version__
        app.env.stdout.write(f"{app.program} version {version}\n")
        raise typer.Exit


@application.command(
    cls=Program,
    help="Inspect and debug the container runtime of a Kubernetes node over its CRI socket.",
    epilog="Run 'pycrictl COMMAND --help' for a command's options.",
    context_settings={"help_option_names": HELP},
)
def set_globals(
    ctx: typer.Context,
    config: Annotated[
        str | None,
        options.file_option(
            "--config",
            "-c",
            help="Configuration file (default: /etc/crictl.yaml) [$CRI_CONFIG_FILE].",
        ),
    ] = None,
    debug: Annotated[
        bool | None, typer.Option("--debug", "-D", help="Log calls, and show tracebacks of errors.")
    ] = None,
    host_root: Annotated[
        str | None,
        typer.Option(
            "--host-root",
            metavar="DIR",
            help="Where the node's root is mounted (default: /, or /host in a node's debug pod).",
            autocompletion=directories,
        ),
    ] = None,
    image_endpoint: Annotated[
        str | None,
        typer.Option(
            "--image-endpoint",
            "-i",
            metavar="SOCKET",
            help="Socket of the image service (default: the runtime's) [$IMAGE_SERVICE_ENDPOINT].",
            autocompletion=sockets,
        ),
    ] = None,
    max_retries: Annotated[
        int | None,
        options.int_option(
            "--max-retries", help="Retries to connect; negative: no limit (default: 3)."
        ),
    ] = None,
    runtime_endpoint: Annotated[
        str | None,
        typer.Option(
            "--runtime-endpoint",
            "-r",
            metavar="SOCKET",
            help="Socket of the runtime (default: the first that answers)"
            " [$CONTAINER_RUNTIME_ENDPOINT].",
            autocompletion=sockets,
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        options.duration_option(
            "--timeout", "-t", help="Time limit of each call, such as 500ms (default: 2s)."
        ),
    ] = None,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            "-v",
            help="Print the program's version and exit.",
            callback=_print_version,
            is_eager=True,
            show_default=False,
        ),
    ] = False,
    profile_cpu: Annotated[
        str,
        options.file_option(
            "--profile-cpu", help="Write a CPU profile (pstats).", rich_help_panel=RECORDING
        ),
    ] = "",
    profile_mem: Annotated[
        str,
        options.file_option(
            "--profile-mem",
            help="Write a memory snapshot (tracemalloc).",
            rich_help_panel=RECORDING,
        ),
    ] = "",
    enable_tracing: Annotated[
        bool,
        typer.Option(
            "--enable-tracing",
            help="Send traces to an OpenTelemetry collector.",
            rich_help_panel=RECORDING,
        ),
    ] = False,
    tracing_endpoint: Annotated[
        str,
        typer.Option(
            "--tracing-endpoint",
            metavar="HOST:PORT",
            help="The collector's address (OTLP over gRPC).",
            rich_help_panel=RECORDING,
        ),
    ] = "127.0.0.1:4317",
    tracing_sampling_rate_per_million: Annotated[
        int,
        options.int_option(
            "--tracing-sampling-rate-per-million",
            help="How many of a million runs to trace; negative: all.",
            rich_help_panel=RECORDING,
        ),
    ] = -1,
) -> None:
    app: AppContext = ctx.obj
    app.host_root = host_root
    app.flags = Flags(
        config=config,
        runtime_endpoint=runtime_endpoint,
        image_endpoint=image_endpoint,
        timeout_s=timeout,
        max_retries=max_retries,
        debug=debug,
    )
    app.recording = Recording(
        profile_cpu,
        profile_mem,
        tracing_endpoint if enable_tracing else "",
        tracing_sampling_rate_per_million,
    )
    if crictl.reads_configuration(app.command):
        app.use_root()
        _ = app.config
