"""The program's own options, those before a command's name, and what they bring about."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated, Final

from pycrictl import __version__, noderoot
from pycrictl.cli import crictl
from pycrictl.cli.context import AppContext, Recording
from pycrictl.cli.declare import Option
from pycrictl.cli.options import DURATION, INTEGER
from pycrictl.config import Flags

HELP: Final = "Inspect and debug the container runtime of a Kubernetes node over its CRI socket."

HELP_WORDS: Final = ("help", "h")
"""crictl takes these as the first positional of every command."""


def _version() -> str:
    if crictl.is_called():
        return f"{crictl.NAME} version {crictl.VERSION}"
    return f"pycrictl version {__version__}"


def set_globals(
    app: AppContext,
    config: Annotated[
        str | None,
        Option(
            "--config",
            "-c",
            metavar="FILE",
            help="Configuration file (default: /etc/crictl.yaml) [$CRI_CONFIG_FILE].",
        ),
    ] = None,
    debug: Annotated[
        bool, Option("--debug", "-D", help="Log calls, and show tracebacks of errors.")
    ] = False,
    enable_tracing: Annotated[
        bool, Option("--enable-tracing", help="Send traces to an OpenTelemetry collector.")
    ] = False,
    host_root: Annotated[
        str | None,
        Option(
            "--host-root",
            metavar="DIR",
            help="Where the node's root is mounted (default: /, or /host in a node's debug pod).",
        ),
    ] = None,
    image_endpoint: Annotated[
        str | None,
        Option(
            "--image-endpoint",
            "-i",
            metavar="SOCKET",
            help="Socket of the image service (default: the runtime's) [$IMAGE_SERVICE_ENDPOINT].",
        ),
    ] = None,
    max_retries: Annotated[
        int | None,
        Option(
            "--max-retries",
            **INTEGER,
            help="Retries to connect; negative: no limit (default: 3).",
        ),
    ] = None,
    profile_cpu: Annotated[
        str, Option("--profile-cpu", metavar="FILE", help="Write a CPU profile (pstats).")
    ] = "",
    profile_mem: Annotated[
        str,
        Option("--profile-mem", metavar="FILE", help="Write a memory snapshot (tracemalloc)."),
    ] = "",
    runtime_endpoint: Annotated[
        str | None,
        Option(
            "--runtime-endpoint",
            "-r",
            metavar="SOCKET",
            help="Socket of the runtime (default: the first that answers)"
            " [$CONTAINER_RUNTIME_ENDPOINT].",
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        Option(
            "--timeout",
            "-t",
            **DURATION,
            help="Time limit of each call, such as 500ms (default: 2s).",
        ),
    ] = None,
    tracing_endpoint: Annotated[
        str,
        Option(
            "--tracing-endpoint",
            metavar="HOST:PORT",
            help="The collector's address (OTLP over gRPC).",
        ),
    ] = "127.0.0.1:4317",
    tracing_sampling_rate_per_million: Annotated[
        int,
        Option(
            "--tracing-sampling-rate-per-million",
            **INTEGER,
            help="How many of a million runs to trace; negative: all.",
        ),
    ] = -1,
    version: Annotated[
        bool,
        Option(
            "--version",
            "-v",
            answer=_version,
            help="Print the program's version and exit.",
            show_default=False,
        ),
    ] = False,
) -> None:
    """Keep the global options for the command."""
    app.host_root = host_root
    app.flags = Flags(
        config=config,
        runtime_endpoint=runtime_endpoint,
        image_endpoint=image_endpoint,
        timeout_s=timeout,
        max_retries=max_retries,
        debug=True if debug else (False if "--debug" in app.negated else None),
    )
    app.recording = Recording(
        profile_cpu,
        profile_mem,
        tracing_endpoint if enable_tracing else "",
        tracing_sampling_rate_per_million,
    )


def find_root() -> str:
    """Return the directory where the root of the node is, where nobody named it."""
    if not noderoot.is_node(noderoot.DEBUG_ROOT):
        return "/"
    from pycrictl.cri.calls.discovery import ENDPOINTS

    has_runtime = any(os.path.lexists(each.removeprefix("unix://")) for each in ENDPOINTS)
    return "/" if has_runtime else noderoot.DEBUG_ROOT


def use_root(named: str | None) -> None:
    """Look for the node's files below a directory, by default where they are found.

    Raises:
        UsageError: it is not a directory.
    """
    noderoot.use(find_root() if named is None else named)


@contextmanager
def recorded(app: AppContext) -> Iterator[None]:
    """Record what is done inside, as the global options ask for."""
    wanted = app.recording
    if wanted is None or not any(wanted[:3]):
        yield
        return
    env = app.env
    with ExitStack() as stack:
        if wanted.profile_cpu or wanted.profile_mem:
            from pycrictl.profiles import profiled

            stack.enter_context(
                profiled(cpu=wanted.profile_cpu, memory=wanted.profile_mem, note=env.note)
            )
        if wanted.collector:
            from pycrictl.cri.calls.tracing import Tracer, is_sampled

            if is_sampled(wanted.per_million):
                app.tracer = Tracer(
                    wanted.collector, service=app.program, wall_clock=env.wall_clock
                )
                command = app.path.split()[1]
                stack.enter_context(app.tracer.recording(command, warn=env.warn))
        yield
