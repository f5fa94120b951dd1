"""``pycrictl proxy``."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from pycrictl.cli import complete
from pycrictl.cli.context import AppContext
from pycrictl.cli.options import NoManifest, integer
from pycrictl.cri.calls import discovery
from pycrictl.proxy import admin, settings
from pycrictl.proxy.app import run
from pycrictl.proxy.program import READY_S
from pycrictl.proxy.serve.systemd import is_journal
from pycrictl.servicelog import LogFormat, LogLevel, write_to


def proxy(
    ctx: typer.Context,
    upstream: Annotated[
        str | None,
        typer.Option(
            "--upstream",
            metavar="SOCKET",
            autocompletion=complete.sockets,
            help="The runtime's socket (default: the first that answers).",
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="SOCKET",
            autocompletion=complete.sockets,
            help="The proxy's own socket (default: unix:///run/pycrictl/cri.sock).",
        ),
    ] = None,
    max_parallel_image_pulls: Annotated[
        int | None,
        typer.Option(
            "--max-parallel-image-pulls",
            parser=integer,
            metavar="N",
            help="Pull at most N images at once (default: 0, no limit).",
        ),
    ] = None,
    serialize_image_pulls: Annotated[
        bool | None, typer.Option("--serialize-image-pulls", help="Same as a limit of 1.")
    ] = None,
    when_full: Annotated[
        Literal["wait", "retry"] | None,
        typer.Option(
            "--when-full",
            help="With no free slot, wait in line (default) or retry a few times.",
        ),
    ] = None,
    retry_interval: Annotated[
        str | None,
        typer.Option(
            "--retry-interval",
            metavar="DURATION",
            help="With retry: the pause between tries (default: 10s).",
        ),
    ] = None,
    retries: Annotated[
        int | None,
        typer.Option(
            "--retries",
            parser=integer,
            metavar="N",
            help="With retry: how many retries (default: 3).",
        ),
    ] = None,
    kubelet_config: Annotated[
        str | None,
        typer.Option(
            "--kubelet-config",
            metavar="FILE",
            autocompletion=complete.files,
            help="Take the limit and the quotas of copies from kubelet's configuration, such as"
            " /var/lib/kubelet/config.yaml.",
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            metavar="FILE",
            autocompletion=complete.files,
            help="TOML file with these options as keys (default: /etc/pycrictl.toml).",
        ),
    ] = None,
    drain_timeout: Annotated[
        str | None,
        typer.Option(
            "--drain-timeout",
            metavar="DURATION",
            help="How long pulls and copies may continue after SIGTERM (default: no limit).",
        ),
    ] = None,
    admin_socket: Annotated[
        str | None,
        typer.Option(
            "--admin-socket",
            metavar="SOCKET",
            autocompletion=complete.sockets,
            help="Socket for pull-limiter (default: unix:///run/pycrictl/admin.sock).",
        ),
    ] = None,
    stream_address: Annotated[
        str | None,
        typer.Option(
            "--stream-address",
            metavar="IP:PORT",
            help="Address to serve streams on (default: 127.0.0.1:0, any port).",
        ),
    ] = None,
    container_copy_size_limit: Annotated[
        str | None,
        typer.Option(
            "--container-copy-size-limit",
            metavar="SIZE",
            help="Largest copy, such as 10Gi (default: 0, no limit).",
        ),
    ] = None,
    container_copy_entry_limit: Annotated[
        int | None,
        typer.Option(
            "--container-copy-entry-limit",
            parser=integer,
            metavar="N",
            help="Accept at most N entries in one copy (default: 1000000; 0 for no limit).",
        ),
    ] = None,
    container_copies_per_pod: Annotated[
        int | None,
        typer.Option(
            "--container-copies-per-pod",
            parser=integer,
            metavar="N",
            help="Make at most N copies per pod at once (default: 0, no limit).",
        ),
    ] = None,
    spool_dir: Annotated[
        str | None,
        typer.Option(
            "--spool-dir",
            metavar="DIR",
            autocompletion=complete.directories,
            help="Where to spool copies out of containers (default: /var/tmp).",
        ),
    ] = None,
    state_dir: Annotated[
        str | None,
        typer.Option(
            "--state-dir",
            metavar="DIR",
            autocompletion=complete.directories,
            help="Where to keep the history of pulls (default: none; as a service,"
            " its StateDirectory=).",
        ),
    ] = None,
    log_format: Annotated[
        LogFormat | None,
        typer.Option("--log-format", help="Format of log lines (default: text)."),
    ] = None,
    log_level: Annotated[
        LogLevel | None,
        typer.Option(
            "--log-level",
            help="Minimum level to log (default: info, with --debug debug).",
        ),
    ] = None,
    metrics_listen: Annotated[
        str | None,
        typer.Option(
            "--metrics-listen",
            metavar="IP:PORT",
            help="Serve /metrics for Prometheus, /livez and /readyz there (default: nowhere).",
        ),
    ] = None,
    tracing_endpoint: Annotated[
        str | None,
        typer.Option(
            "--tracing-endpoint",
            metavar="HOST:PORT",
            help="Send a trace of each pull and copy to this OpenTelemetry collector"
            " (default: none).",
        ),
    ] = None,
    events: Annotated[
        str | None,
        typer.Option(
            "--events",
            metavar="kubelet|FILE",
            autocompletion=complete.files,
            help="Write Events about the pulls of pods, with the kubelet's own kubeconfig or this"
            " one (default: no Events).",
        ),
    ] = None,
    no_manifest: NoManifest = False,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over",
            help="Take over from the running proxy with the same admin socket; no call fails.",
        ),
    ] = False,
    reload: Annotated[
        bool,
        typer.Option(
            "--reload",
            help="Replace the running proxy by a new one with the same command line; no call "
            "fails.",
        ),
    ] = False,
) -> None:
    """Serve the CRI in front of a runtime: pull progress, a pull limit, copies.

    kubelet, crictl and pycrictl connect to the proxy's socket instead of the runtime's. Calls pass
    through unchanged. PullImage waits for a slot. ImagePullProgress, CopyToContainer and
    CopyFromContainer are answered by the proxy itself, with any runtime.

    To put the proxy in front of kubelet, change kubelet's configuration and restart kubelet; to
    take it out again, change that back:

    imageServiceEndpoint: unix:///run/pycrictl/cri.sock (pulls only),
    containerRuntimeEndpoint: the same (everything),
    serializeImagePulls: false (or kubelet itself sends one pull at a time).

    To check that it works, run "pycrictl -r unix:///run/pycrictl/cri.sock version", which shows the
    runtime's version, and "pycrictl pull-limiter status", which shows what is being pulled.

    Example: pycrictl proxy --upstream unix:///run/containerd/containerd.sock
    """
    app: AppContext = ctx.obj
    found = settings.load(
        {
            "upstream": upstream,
            "listen": listen,
            "max-parallel-image-pulls": max_parallel_image_pulls,
            "serialize-image-pulls": serialize_image_pulls,
            "when-full": when_full,
            "retry-interval": retry_interval,
            "retries": retries,
            "kubelet-config": kubelet_config,
            "config": config,
            "drain-timeout": drain_timeout,
            "admin-socket": admin_socket,
            "stream-address": stream_address,
            "container-copy-size-limit": container_copy_size_limit,
            "container-copy-entry-limit": container_copy_entry_limit,
            "container-copies-per-pod": container_copies_per_pod,
            "spool-dir": spool_dir,
            "state-dir": state_dir,
            "log-format": log_format,
            "log-level": log_level or (LogLevel.DEBUG if app.flags.debug else None),
            "metrics-listen": metrics_listen,
            "tracing-endpoint": tracing_endpoint,
            "events": events,
            "no-manifest": no_manifest or None,
        },
        # A proxy that hands over knows its runtime; this only has to find the proxy.
        lambda: "" if reload else discovery.find(app.config.timeout_s.value).path,
        app.env.environ,
    )
    if reload:
        answer = admin.ask(found.admin_socket, "reload", timeout_s=2 * READY_S)
        app.env.note(f"process {answer['pid']} serves now")
        return
    environ, stderr = app.env.environ, app.env.stderr
    has_priorities = is_journal(stderr, environ)
    write_to(stderr, found.log_format, found.log_level, has_priorities=has_priorities)
    run(found, environ, take_over=take_over)
