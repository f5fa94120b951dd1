"""``pycrictl port-forward``."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from typing import Annotated, Literal, TextIO

import typer

from pycrictl.cli import complete, options, stream_options
from pycrictl.cli.context import AppContext
from pycrictl.cri import sessions
from pycrictl.cri.lists.lookup import Lookup
from pycrictl.errors import UsageError
from pycrictl.streaming.local_ports import listen, parse_pair
from pycrictl.streaming.loop import run_in_loop
from pycrictl.streaming.portforward import Forwarder


def port_forward(
    ctx: typer.Context,
    pod: Annotated[
        str,
        typer.Argument(
            metavar="POD",
            autocompletion=complete.pods,
            help="ID or name of a pod.",
            show_default=False,
        ),
    ],
    ports: Annotated[
        list[str],
        typer.Argument(
            metavar="[LOCAL:]REMOTE...",
            help="Ports; an empty LOCAL means any free port.",
            show_default=False,
        ),
    ],
    addresses: Annotated[
        list[str] | None,
        typer.Option(
            "--address", metavar="IP", help="Where to listen (default: localhost); repeatable."
        ),
    ] = None,
    tls_ca: stream_options.TlsCa = "",
    tls_cert: stream_options.TlsCert = "",
    tls_key: stream_options.TlsKey = "",
    tls_name: stream_options.TlsName = stream_options.TLS_NAME,
    transport: Annotated[
        Literal["auto", "spdy", "websocket"],
        typer.Option(
            "--transport",
            "-r",
            help="Stream protocol; auto is spdy, which can close one direction alone.",
        ),
    ] = "auto",
) -> None:
    """Forward local ports to a pod sandbox.

    Runs until Ctrl-C, even if a connection is refused.

    Example: pycrictl port-forward web 8080:80 :9090
    """
    app: AppContext = ctx.obj
    if not pod:
        raise UsageError("the pod sandbox ID is empty")
    pairs = [parse_pair(text) for text in ports]
    tls = stream_options.tls_files(ca=tls_ca, cert=tls_cert, key=tls_key, name=tls_name)
    say = partial(_say, app.env.stdout)

    def handled(port: int) -> None:
        with suppress(OSError):  # a full disk; it is reported at the end of the program
            say(f"Handling connection for {port}\n")

    with app.open_client("runtime") as client:
        listeners = listen(options.split_list(addresses) or ["localhost"], pairs, note=app.env.warn)
        target = Lookup(client).found(pod, "pod")
        forwarder = Forwarder(
            partial(sessions.forward_url, client, target.id, shown=target.shown),
            transport="websocket" if transport == "websocket" else "spdy",
            timeout_s=client.timeout_s,
            tls=tls,
            handled=handled,
            note=app.env.warn,
        )

        def ready() -> None:
            for listener in listeners:
                say(f"Forwarding from {listener.label} -> {listener.remote}\n")

        try:
            run_in_loop(forwarder.run(listeners, ready=ready))
        except KeyboardInterrupt:
            pass  # how users end it


def _say(stdout: TextIO, line: str) -> None:
    """Write a line at once; once nobody reads them any more, drop all lines."""
    try:
        stdout.write(line)
        stdout.flush()
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stdout.fileno())
        os.close(nowhere)
