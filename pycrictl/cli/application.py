"""The Typer application: the global options, and all commands."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Final

import typer

from pycrictl.base.config import Flags
from pycrictl.base.errors import UsageError
from pycrictl.base.units import parse_duration
from pycrictl.cli import options
from pycrictl.cli.complete import sockets
from pycrictl.cli.context import AppContext
from pycrictl.cli.tree import HELP, Program

IGNORED: Final = "From crictl, without effect"
HOSTS: Final = "Other hosts, over SSH"
MOST_HOSTS: Final = 16
CONNECT_TIMEOUT_S: Final = 10.0

_of_hosts: Any = partial(typer.Option, rich_help_panel=HOSTS)
_ignored: Any = partial(typer.Option, rich_help_panel=IGNORED)

application = typer.Typer(add_completion=False, rich_markup_mode=None)  # plain text, without Rich


def _print_version(ctx: typer.Context, is_wanted: bool) -> None:
    if is_wanted and not ctx.resilient_parsing:
        app: AppContext = ctx.obj
        app.env.stdout.write(f"{app.program} version {app.persona.version}\n")
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
            "--max-retries",
            help="Retries of a refused connection; negative: no limit (default: 3).",
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
            "--timeout",
            "-t",
            parser=options.parser(parse_duration),
            help="Time limit of each call, such as 500ms (default: 2s).",
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
    host: Annotated[
        list[str] | None,
        _of_hosts(
            "--host",
            "-H",
            metavar="[USER@]HOST[:PORT]",
            envvar="PYCRICTL_HOST",
            show_envvar=False,
            help="Run the command on these hosts: HOST,HOST, node[01-20], @GROUP or @FILE;"
            " repeatable [$PYCRICTL_HOST].",
        ),
    ] = None,
    sudo: Annotated[bool, _of_hosts("--sudo", help="Run the command as root.")] = False,
    no_keep: Annotated[
        bool, _of_hosts("--no-keep", help="Remove the program from the hosts afterwards.")
    ] = False,
    program: Annotated[
        str,
        _of_hosts(
            "--program",
            metavar="FILE",
            help="Send this release file, .bin or .tar.xz, instead of this program.",
        ),
    ] = "",
    max_parallel_hosts: Annotated[
        int,
        _of_hosts(
            "--max-parallel-hosts",
            "--parallel",
            parser=options.natural,
            metavar="INT",
            help="How many hosts run the command at the same time.",
        ),
    ] = MOST_HOSTS,
    connect_timeout: Annotated[
        float,
        _of_hosts(
            "--connect-timeout",
            parser=options.duration,
            metavar="DURATION",
            help="How long a host may take to answer (default: 10s).",
            show_default=False,
        ),
    ] = CONNECT_TIMEOUT_S,
    profile_cpu: Annotated[
        str, _ignored("--profile-cpu", metavar="FILE", help="A CPU profile.")
    ] = "",
    profile_mem: Annotated[
        str, _ignored("--profile-mem", metavar="FILE", help="A memory profile.")
    ] = "",
    enable_tracing: Annotated[
        bool, _ignored("--enable-tracing", help="Traces for a collector.")
    ] = False,
    tracing_endpoint: Annotated[
        str, _ignored("--tracing-endpoint", metavar="HOST:PORT", help="The collector's address.")
    ] = "127.0.0.1:4317",
    tracing_sampling_rate_per_million: Annotated[
        int,
        _ignored(
            "--tracing-sampling-rate-per-million",
            parser=options.integer,
            metavar="INT",
            help="How many of a million runs to trace.",
        ),
    ] = -1,
) -> None:
    app: AppContext = ctx.obj
    if timeout is not None and timeout < 0 and not app.persona.is_crictl:
        raise UsageError("invalid value for '--timeout': it must not be negative")
    limits = max_parallel_hosts, connect_timeout
    if not host and (sudo or no_keep or program or limits != (MOST_HOSTS, CONNECT_TIMEOUT_S)):
        names = "--sudo, --no-keep, --program, --max-parallel-hosts and --connect-timeout"
        raise UsageError(f"{names} need --host")
    app.host_root = host_root
    app.flags = Flags(
        config=config,
        runtime_endpoint=runtime_endpoint,
        image_endpoint=image_endpoint,
        timeout_s=timeout,
        max_retries=max_retries,
        debug=debug,
    )
    del tracing_endpoint, tracing_sampling_rate_per_million
    if (profile_cpu or profile_mem or enable_tracing) and not ctx.resilient_parsing:
        app.env.warn("--profile-cpu, --profile-mem and --enable-tracing have no effect")
    if app.persona.reads_configuration(app.command):
        app.use_root()
        _ = app.config
