"""``pycrictl attach``."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from pycrictl.cli import stream_options
from pycrictl.cli.context import AppContext, Exit
from pycrictl.cli.declare import Argument, Option
from pycrictl.errors import UsageError


def attach(
    app: AppContext,
    container: Annotated[
        str,
        Argument(metavar="CONTAINER", help="ID or name of a container.", show_default=False),
    ],
    stdin: Annotated[bool, Option("--stdin", "-i", help="Pass standard input on to it.")] = False,
    tls_ca: stream_options.TlsCa = "",
    tls_cert: stream_options.TlsCert = "",
    tls_key: stream_options.TlsKey = "",
    tls_name: stream_options.TlsName = stream_options.TLS_NAME,
    transport: stream_options.StreamTransport = "auto",
    tty: Annotated[
        bool,
        Option("--tty", "-t", help="The container has a terminal; Ctrl-P Ctrl-Q detaches."),
    ] = False,
) -> None:
    """Attach to a running container.

    Its output is shown from now on, until it ends.

    Example: pycrictl attach web
    """
    from pycrictl.cri import sessions
    from pycrictl.cri.lists.lookup import Lookup
    from pycrictl.streaming.outcome import not_started
    from pycrictl.streaming.standard import stream_all
    from pycrictl.wire.command import ExitReported, Streams

    if not container:
        raise UsageError("the container ID is empty")
    stream_options.check_terminal(app.env, tty=tty, stdin=stdin, stdin_flag="--stdin")
    choice = stream_options.check_transport(transport)
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
            choice=choice,
            is_attach=True,
            timeout_s=client.timeout_s,
            tls=tls,
            spares=spares,
        )
    if isinstance(outcome, ExitReported):
        if outcome.exit_code is None:
            raise not_started(f"attaching to container {target.shown}", outcome)
        raise Exit(outcome.exit_code)
    if outcome is not None:
        raise outcome
