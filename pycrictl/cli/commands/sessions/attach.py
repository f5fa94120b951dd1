"""``pycrictl attach``."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from pycrictl.cli import complete, stream_options
from pycrictl.cli.context import AppContext
from pycrictl.cri import sessions
from pycrictl.cri.lists.lookup import Lookup
from pycrictl.errors import UsageError
from pycrictl.streaming.outcome import not_started
from pycrictl.streaming.standard import stream_all
from pycrictl.wire.command import ExitReported, Streams


def attach(
    ctx: typer.Context,
    container: Annotated[
        str,
        typer.Argument(
            metavar="CONTAINER",
            autocompletion=complete.running_containers,
            help="ID or name of a container.",
            show_default=False,
        ),
    ],
    stdin: Annotated[
        bool, typer.Option("--stdin", "-i", help="Pass standard input on to it.")
    ] = False,
    tls_ca: stream_options.TlsCa = "",
    tls_cert: stream_options.TlsCert = "",
    tls_key: stream_options.TlsKey = "",
    tls_name: stream_options.TlsName = stream_options.TLS_NAME,
    transport: stream_options.StreamTransport = "auto",
    tty: Annotated[
        bool,
        typer.Option("--tty", "-t", help="The container has a terminal; Ctrl-P Ctrl-Q detaches."),
    ] = False,
) -> None:
    """Attach to a running container.

    Its output is shown from now on, until it ends.

    Example: pycrictl attach web
    """
    app: AppContext = ctx.obj
    if not container:
        raise UsageError("the container ID is empty")
    stream_options.check_terminal(app.env, tty=tty, stdin=stdin, stdin_flag="--stdin")
    tls = stream_options.tls_files(ca=tls_ca, cert=tls_cert, key=tls_key, name=tls_name)
    with app.open_client("runtime") as client, stream_options.patience() as spares:
        target = Lookup(client).found(container, "container")
        ask_url = partial(
            sessions.attach_url, client, target.id, stdin=stdin, tty=tty, shown=target.shown
        )
        wanted = Streams(stdin=stdin, stderr=not tty, tty=tty)
        (outcome,) = stream_all(
            app.env,
            [ask_url],
            wanted,
            choice=transport,
            is_attach=True,
            timeout_s=client.timeout_s,
            tls=tls,
            spares=spares,
        )
    if isinstance(outcome, ExitReported):
        if outcome.exit_code is None:
            raise not_started(f"attaching to container {target.shown}", outcome)
        raise typer.Exit(outcome.exit_code)
    if outcome is not None:
        raise outcome
