"""Streams into containers and pods: ``attach`` and ``port-forward``."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

import typer

from pycrictl.cli import options, stream_options
from pycrictl.cli.context import AppContext
from pycrictl.runtime.cri import sessions
from pycrictl.runtime.cri.lists.lookup import Lookup
from pycrictl.show.displays.outlet import Lines
from pycrictl.streams.forwarder import Forwarder, listen, parse_pair
from pycrictl.streams.loop import run_in_loop
from pycrictl.streams.remote_command import not_started, stream_all
from pycrictl.streams.wire.command import ExitReported, Streams


@options.with_records
def attach(
    ctx: typer.Context,
    *,
    container: options.RunningContainer,
    of_container: options.OfContainer = None,
    namespace: options.InNamespace = None,
    stdin: Annotated[
        bool, typer.Option("--stdin", "-i", help="Forward standard input to the container.")
    ] = False,
    tls: stream_options.TlsOptions,
    transport: stream_options.StreamTransport = "spdy",
    tty: Annotated[
        bool,
        typer.Option(
            "--tty", "-t", help="The container has a terminal; detach with Ctrl-P Ctrl-Q."
        ),
    ] = False,
) -> None:
    """Attach to a running container.

    Shows its output from now on, until it exits.

    Example: pycrictl attach web
    """
    app: AppContext = ctx.obj
    options.named(container, "container")
    stream_options.check_terminal(app.env, tty=tty, stdin=stdin, stdin_flag="--stdin")
    tls_files = tls.files(app.persona)
    with (
        app.open_client("runtime") as client,
        stream_options.first_signal_ignored(app.persona, tty=tty) as spares,
    ):
        word = options.qualified(container, container=of_container, namespace=namespace)
        target = Lookup(client).resolve(word, "container")
        ask_url = partial(
            sessions.attach_url, client, target.id, stdin=stdin, tty=tty, shown=target.shown
        )
        wanted = Streams(stdin=stdin, stderr=not tty, tty=tty)
        (outcome,) = stream_all(
            app.env,
            [ask_url],
            wanted,
            wanted=transport,
            is_attach=True,
            timeout_s=client.timeout_s,
            tls=tls_files,
            spares=spares,
        )
    if isinstance(outcome, ExitReported):
        if outcome.exit_code is None:
            raise not_started(f"attaching to container {target.shown}", outcome)
        raise typer.Exit(outcome.exit_code)
    if outcome is not None:
        raise outcome


@options.with_records
def port_forward(
    ctx: typer.Context,
    *,
    pod: options.Pod,
    ports: Annotated[
        list[str],
        typer.Argument(
            metavar="[LOCAL:]REMOTE...", help="Ports; an empty LOCAL means any free port."
        ),
    ],
    addresses: Annotated[
        list[str] | None,
        typer.Option(
            "--address", metavar="IP", help="Where to listen (default: localhost); repeatable."
        ),
    ] = None,
    namespace: options.InNamespace = None,
    tls: stream_options.TlsOptions,
    transport: Annotated[
        Literal["spdy", "websocket"],
        typer.Option(
            "--transport",
            "-r",
            help="Streaming protocol; websocket is accepted, but SPDY is always used.",
        ),
    ] = "spdy",
) -> None:
    """Forward local ports to a pod sandbox.

    Runs until Ctrl-C, even if connections are refused.

    Example: pycrictl port-forward web 8080:80 :9090
    """
    app: AppContext = ctx.obj
    options.named(pod, "pod sandbox")
    pairs = [parse_pair(text) for text in ports]
    tls_files = tls.files(app.persona)
    if transport == "websocket":
        app.env.warn("WebSocket cannot close one direction of a connection; using SPDY")
    out = Lines(app.env.stdout)

    def handled(port: int) -> None:
        out.write([f"Handling connection for {port}"])

    with app.open_client("runtime") as client:
        listeners = listen(options.split_list(addresses) or ["localhost"], pairs, note=app.env.warn)
        target = Lookup(client).resolve(options.qualified(pod, namespace=namespace), "pod")
        forwarder = Forwarder(
            partial(sessions.forward_url, client, target.id, shown=target.shown),
            timeout_s=client.timeout_s,
            tls=tls_files,
            handled=handled,
            note=app.env.warn,
        )

        def ready() -> None:
            out.write(
                f"Forwarding from {listener.label} -> {listener.remote}" for listener in listeners
            )

        try:
            run_in_loop(forwarder.run(listeners, ready=ready))
        except KeyboardInterrupt:
            pass  # how users end it
