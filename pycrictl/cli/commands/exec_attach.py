"""Streams into containers and pods: ``exec``, ``attach`` and ``port-forward``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, Literal, TextIO

import typer

from pycrictl.cli import complete, crictl, list_options, options, stream_options
from pycrictl.cli.context import AppContext
from pycrictl.cri import sessions
from pycrictl.cri.calls.client import each
from pycrictl.cri.lists import lookup, queries
from pycrictl.cri.lists.lookup import Lookup
from pycrictl.diagnosis.troubles import shortened
from pycrictl.errors import MissingArgument, PycrictlError, UsageError
from pycrictl.streaming.forwarder import Forwarder, listen, parse_pair
from pycrictl.streaming.loop import run_in_loop
from pycrictl.streaming.standard import (
    CommandMissing,
    CommandRefused,
    not_started,
    stream_all,
    write_all,
)
from pycrictl.wire.command import ExitReported, Streams

if TYPE_CHECKING:
    from pycrictl._proto import cri_pb2
    from pycrictl.cri.calls.client import CriClient
    from pycrictl.cri.lists.lookup import ObjectRef
    from pycrictl.environ import Environment
    from pycrictl.streaming.standard import Outcome


_KILLED: Final = PycrictlError(
    "the runtime killed the command before it finished",
    hint="the time limit, --timeout, may have passed",
)
"""CRI-O reports status -1, which no command can have."""


def exec_(
    ctx: typer.Context,
    container: Annotated[
        str | None,
        typer.Argument(
            metavar="[CONTAINER]",
            help="ID or name of a container, unless options select.",
            autocompletion=complete.running_containers,
        ),
    ] = None,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COMMAND...",
            help="The command and its arguments.",
            autocompletion=complete.remote_paths,
        ),
    ] = None,
    of_container: options.OfContainer = None,
    ignore_errors: Annotated[
        bool,
        typer.Option(
            "--ignore-errors",
            "-e",
            help="Exit with 0 even if the command fails or no container is selected.",
        ),
    ] = False,
    image: list_options.OfImage = "",
    interactive: Annotated[
        bool, typer.Option("--interactive", "-i", help="Forward standard input to the command.")
    ] = False,
    labels: list_options.Labels = None,
    last: list_options.Last = 0,
    latest: list_options.Latest = False,
    name: list_options.Name = "",
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", metavar="NAMESPACE", help="The namespace of the pod."),
    ] = None,
    parallel: Annotated[
        bool, typer.Option("--parallel", "-x", help="Do not print the IDs of selected containers.")
    ] = False,
    pod: list_options.PodId = "",
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print nothing but the command's output.")
    ] = False,
    state: Annotated[
        Literal["created", "running", "exited", "unknown"] | None,
        typer.Option("--state", case_sensitive=False, help="Only containers in this state."),
    ] = None,
    sync: Annotated[
        bool,
        typer.Option(
            "--sync", "-s", help="Run without a stream; print the output when the command ends."
        ),
    ] = False,
    timeout: Annotated[
        int,
        options.int_option(
            "--timeout", help="With --sync: kill the command after N seconds; 0: never."
        ),
    ] = 0,
    tls_ca: stream_options.TlsCa = "",
    tls_cert: stream_options.TlsCert = "",
    tls_key: stream_options.TlsKey = "",
    tls_name: stream_options.TlsName = stream_options.TLS_NAME,
    transport: stream_options.StreamTransport = "auto",
    tty: Annotated[
        bool, typer.Option("--tty", "-t", help="Allocate a terminal; detach with Ctrl-P Ctrl-Q.")
    ] = False,
) -> None:
    """Run a command in containers.

    The exit status is the command's; with several containers, the first that is not 0.

    Example: pycrictl exec --name web ps
    """
    app: AppContext = ctx.obj
    is_selected = bool(image or labels or last or latest or name or pod or state)
    target = None if is_selected else container
    words = [*(() if container is None or not is_selected else (container,)), *(command or ())]
    if target == "":
        raise UsageError("the container ID is empty")
    if not words:
        where = "" if is_selected else " after the container ID"
        raise MissingArgument(f"no command is given{where}")
    if is_selected and (of_container or namespace):
        raise UsageError("--container and --namespace need the name of a pod")
    if timeout < 0:
        raise UsageError("--timeout must not be negative")
    if sync and (interactive or tty):
        raise UsageError("--sync cannot be combined with --interactive or --tty")
    stream_options.check_terminal(app.env, tty=tty, stdin=interactive, stdin_flag="--interactive")
    tls = stream_options.tls_files(ca=tls_ca, cert=tls_cert, key=tls_key, name=tls_name)
    query = queries.container_query(
        image=image,
        labels=options.split_pairs(labels, "--label"),
        last=last,
        latest=latest,
        name=name,
        pod=pod,
        state=state,
    )

    def run(client: CriClient, targets: Sequence[ObjectRef]) -> int:
        count = len(targets)
        if interactive and count > 1:
            raise UsageError(f"--interactive needs a single container, but {count} are selected")
        if is_selected and not quiet and not parallel:
            app.env.stdout.write("".join(f"{each.id}:\n" for each in targets))
            app.env.stdout.flush()
        if sync:
            outcomes = _run_sync(app.env, client, targets, words, limit_s=timeout)
        else:
            ask = partial(sessions.exec_url, client, command=words, stdin=interactive, tty=tty)
            with stream_options.first_signal_ignored(tty=tty) as spares:
                outcomes = stream_all(
                    app.env,
                    [partial(ask, each.id, shown=each.shown) for each in targets],
                    Streams(stdin=interactive, stderr=not tty, tty=tty),
                    choice=transport,
                    timeout_s=client.timeout_s,
                    tls=tls,
                    spares=spares,
                )
        if ignore_errors and crictl.is_called():  # crictl does not report failures either
            return 0
        codes = [
            _report(app.env, each, outcome, is_alone=count == 1)
            for each, outcome in zip(targets, outcomes, strict=True)
        ]
        return next(filter(None, codes), 0)

    code = 0
    if ignore_errors and not quiet:
        app.env.warn("failures of the command are ignored")
    if target is None:
        with app.open_clients(needs_images=bool(image)) as (client, images):
            found = queries.list_containers(client, images, query, labels_only=crictl.is_called())
            if found:
                code = run(client, [lookup.ObjectRef(each.id, each.id) for each in found])
            elif ignore_errors:
                app.env.warn("no container is selected")
            else:
                hint = "without --state, only running containers are selected"
                raise list_options.nothing_selected(client, pod, hint)
    else:
        with app.open_client("runtime") as client:
            word = options.qualified(target, container=of_container, namespace=namespace)
            code = run(client, [lookup.Lookup(client).found(word, "container")])
    raise typer.Exit(0 if ignore_errors else code)


def _run_sync(
    env: Environment,
    client: CriClient,
    targets: Sequence[ObjectRef],
    command: Sequence[str],
    *,
    limit_s: int,
) -> list[Outcome]:
    def act(client: CriClient, target: ObjectRef) -> cri_pb2.ExecSyncResponse | PycrictlError:
        shown = target.shown
        try:
            return sessions.exec_sync(client, target.id, command, limit_s=limit_s, shown=shown)
        except PycrictlError as error:
            return error

    outcomes: list[Outcome] = []
    for answer in each(client, act, targets, at_once=len(targets)):
        if isinstance(answer, PycrictlError):
            outcomes.append(answer)
        else:
            stdout, stderr = crictl.whole_output(answer.stdout, answer.stderr, answer.exit_code)
            write_all(env, stdout=stdout, stderr=stderr)
            outcomes.append(ExitReported(answer.exit_code) if answer.exit_code >= 0 else _KILLED)
    return outcomes


def _report(env: Environment, target: ObjectRef, outcome: Outcome, *, is_alone: bool) -> int:
    if outcome is None:
        return 0
    what = f"running a command in container {target.shown}"
    if not isinstance(outcome, PycrictlError):
        if outcome.exit_code is not None:
            # For a single container the exit status is enough, but crictl reduces it to 1.
            if outcome.exit_code and (not is_alone or crictl.is_called()):
                env.error(
                    f"the command in container {target.shown} ended with status {outcome.exit_code}"
                )
            return outcome.exit_code
        outcome = not_started(what, outcome)
        if isinstance(outcome, CommandMissing | CommandRefused) and not crictl.is_called():
            outcome.message = f"{what}: {shortened(outcome.details)}"
    # The runtime's errors name the container; those of a stream do not.
    is_named = is_alone or outcome.message.startswith(what)
    env.error(outcome.message if is_named else f"{what}: {outcome.message}", hint=outcome.hint)
    return outcome.exit_code


def attach(
    ctx: typer.Context,
    container: options.RunningContainer,
    of_container: options.OfContainer = None,
    namespace: options.InNamespace = None,
    stdin: Annotated[
        bool, typer.Option("--stdin", "-i", help="Forward standard input to the container.")
    ] = False,
    tls_ca: stream_options.TlsCa = "",
    tls_cert: stream_options.TlsCert = "",
    tls_key: stream_options.TlsKey = "",
    tls_name: stream_options.TlsName = stream_options.TLS_NAME,
    transport: stream_options.StreamTransport = "auto",
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
    if not container:
        raise UsageError("the container ID is empty")
    stream_options.check_terminal(app.env, tty=tty, stdin=stdin, stdin_flag="--stdin")
    tls = stream_options.tls_files(ca=tls_ca, cert=tls_cert, key=tls_key, name=tls_name)
    with (
        app.open_client("runtime") as client,
        stream_options.first_signal_ignored(tty=tty) as spares,
    ):
        word = options.qualified(container, container=of_container, namespace=namespace)
        target = Lookup(client).found(word, "container")
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


def port_forward(
    ctx: typer.Context,
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

    Runs until Ctrl-C, even if connections are refused.

    Example: pycrictl port-forward web 8080:80 :9090
    """
    app: AppContext = ctx.obj
    if not pod:
        raise UsageError("the pod sandbox ID is empty")
    pairs = [parse_pair(text) for text in ports]
    tls = stream_options.tls_files(ca=tls_ca, cert=tls_cert, key=tls_key, name=tls_name)
    print_line = partial(_print_line, app.env.stdout)

    def handled(port: int) -> None:
        with suppress(OSError):  # a full disk; it is reported at the end of the program
            print_line(f"Handling connection for {port}\n")

    with app.open_client("runtime") as client:
        listeners = listen(options.split_list(addresses) or ["localhost"], pairs, note=app.env.warn)
        target = Lookup(client).found(options.qualified(pod, namespace=namespace), "pod")
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
                print_line(f"Forwarding from {listener.label} -> {listener.remote}\n")

        try:
            run_in_loop(forwarder.run(listeners, ready=ready))
        except KeyboardInterrupt:
            pass  # how users end it


def _print_line(stdout: TextIO, line: str) -> None:
    """Write a line at once; drop all lines once the reader has closed standard output."""
    try:
        stdout.write(line)
        stdout.flush()
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stdout.fileno())
        os.close(nowhere)
