"""``pycrictl exec``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import MissingArgument, NothingSelected, PycrictlError, UsageError
from pycrictl.base.output import write_bytes
from pycrictl.cli import complete, list_options, options, stream_options
from pycrictl.cli.context import AppContext
from pycrictl.cli.stream_options import StreamTransport, TlsOptions
from pycrictl.runtime.cri import sessions
from pycrictl.runtime.cri.calls.client import CriClient, for_each
from pycrictl.runtime.cri.lists import queries
from pycrictl.runtime.cri.lists.lookup import Lookup, ObjectRef
from pycrictl.runtime.cri.sessions import Outcome

if TYPE_CHECKING:
    from pycrictl.streams.target import TlsFiles

_KILLED: Final = PycrictlError(
    "the runtime killed the command before it finished",
    hint="the time limit, --timeout, may have passed",
)
"""CRI-O reports status -1, which no command can have."""


@dataclass(frozen=True, slots=True)
class ExecOptions:
    """The options about how a command runs in the selected containers."""

    ignore_errors: Annotated[
        bool,
        typer.Option(
            "--ignore-errors",
            "-e",
            help="Exit with 0 even if the command fails or no container is selected.",
        ),
    ] = False
    interactive: Annotated[
        bool, typer.Option("--interactive", "-i", help="Forward standard input to the command.")
    ] = False
    parallel: Annotated[
        bool,
        typer.Option(
            "--parallel",
            "-x",
            help="Omit the containers' IDs from the output, as crictl's -x does. The command runs"
            " in all containers in parallel even without this option.",
        ),
    ] = False
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print nothing but the command's output.")
    ] = False
    sync: Annotated[
        bool,
        typer.Option(
            "--sync", "-s", help="Run without a stream; print the output when the command ends."
        ),
    ] = False
    timeout: Annotated[
        int,
        options.int_option(
            "--timeout", help="With --sync: kill the command after N seconds; 0: never."
        ),
    ] = 0
    transport: StreamTransport = "spdy"
    tty: Annotated[
        bool, typer.Option("--tty", "-t", help="Allocate a terminal; detach with Ctrl-P Ctrl-Q.")
    ] = False

    def check(self, app: AppContext) -> None:
        if self.timeout < 0:
            raise UsageError("--timeout must not be negative")
        if self.sync and (self.interactive or self.tty):
            raise UsageError("--sync cannot be combined with --interactive or --tty")
        stream_options.check_terminal(
            app.env, tty=self.tty, stdin=self.interactive, stdin_flag="--interactive"
        )


@options.with_records
def exec_(
    ctx: typer.Context,
    *,
    container: Annotated[
        str | None,
        typer.Argument(
            metavar="[CONTAINER]",
            help="ID or name of a container, unless options select containers.",
            autocompletion=complete.running_containers,
        ),
    ] = None,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND...", help="The command and its arguments."),
    ] = None,
    of_container: options.OfContainer = None,
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", metavar="NAMESPACE", help="The namespace of the pod."),
    ] = None,
    selection: list_options.ContainerSelection,
    state: Annotated[
        Literal["created", "running", "exited", "unknown"] | None,
        typer.Option("--state", case_sensitive=False, help="Only containers in this state."),
    ] = None,
    how: ExecOptions,
    tls: TlsOptions,
) -> None:
    """Run a command in containers.

    The exit status is the command's; with several containers, the first that is not 0.

    Example: pycrictl exec --name web ps
    """
    app: AppContext = ctx.obj
    is_selected = selection.is_given or state is not None
    target = None if is_selected else container
    words = [*(() if container is None or not is_selected else (container,)), *(command or ())]
    options.named(target, "container")
    if not words:
        where = "" if is_selected else " after the container ID"
        raise MissingArgument(f"no command is given{where}")
    if is_selected and (of_container or namespace):
        raise UsageError("--container and --namespace need the name of a pod")
    how.check(app)
    run = partial(_run, app, words, how, tls.files(app.persona))
    query = selection.query(app, state)
    code = 0
    if how.ignore_errors and not how.quiet:
        app.env.warn("failures of the command are ignored")
    if target is not None:
        with app.open_client("runtime") as client:
            word = options.qualified(target, container=of_container, namespace=namespace)
            code = run(client, [Lookup(client).resolve(word, "container")])
        raise typer.Exit(0 if how.ignore_errors else code)
    with app.open_clients(needs_images=bool(selection.image)) as (client, images):
        containers = queries.list_containers(
            client, images, query, labels_only=app.persona.is_crictl
        )
        if containers:
            refs = [ObjectRef(target.id, target.id) for target in containers]
            code = run(client, refs, prints_ids=not how.quiet and not how.parallel)
        elif how.ignore_errors:
            app.env.warn("no container is selected")
        else:
            hint = "without --state, only running containers are selected"
            raise NothingSelected("no container is selected", hint=hint)
    raise typer.Exit(0 if how.ignore_errors else code)


def _run(
    app: AppContext,
    command: Sequence[str],
    how: ExecOptions,
    tls: TlsFiles | None,
    client: CriClient,
    targets: Sequence[ObjectRef],
    *,
    prints_ids: bool = False,
) -> int:
    """Run a command in containers, report failures, and return the first status that is not 0."""
    count = len(targets)
    if how.interactive and count > 1:
        raise UsageError(f"--interactive needs a single container, but {count} are selected")
    if prints_ids:
        app.env.stdout.write("".join(f"{target.id}:\n" for target in targets))
        app.env.stdout.flush()
    if how.sync:
        outcomes = _run_sync(app, client, targets, command, limit_s=how.timeout)
    else:
        outcomes = _run_streams(app, client, targets, command, how, tls)
    if how.ignore_errors and app.persona.is_crictl:  # crictl does not report failures either
        return 0
    codes = [
        _report(app, target, outcome, is_alone=count == 1)
        for target, outcome in zip(targets, outcomes, strict=True)
    ]
    return next(filter(None, codes), 0)


def _run_sync(
    app: AppContext,
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
    for answer in for_each(client, act, targets, at_once=len(targets)):
        if isinstance(answer, PycrictlError):
            outcomes.append(answer)
        else:
            stdout, stderr = app.persona.whole_output(
                answer.stdout, answer.stderr, answer.exit_code
            )
            write_bytes(app.env.stdout, stdout)
            write_bytes(app.env.stderr, stderr)
            outcomes.append(answer.exit_code if answer.exit_code >= 0 else _KILLED)
    return outcomes


def _run_streams(
    app: AppContext,
    client: CriClient,
    targets: Sequence[ObjectRef],
    command: Sequence[str],
    how: ExecOptions,
    tls: TlsFiles | None,
) -> list[Outcome]:
    """Run a command in containers at the same time, connected to our own standard streams."""
    # All protocols of streams, which --sync does not need.
    from pycrictl.diagnosis.error_causes import shortened  # noqa: PLC0415
    from pycrictl.streams import remote_command  # noqa: PLC0415
    from pycrictl.streams.wire.command import ExitReported, Streams  # noqa: PLC0415

    tty = how.tty
    ask = partial(sessions.exec_url, client, command=command, stdin=how.interactive, tty=tty)
    with stream_options.first_signal_ignored(app.persona, tty=tty) as spares:
        ends = remote_command.stream_all(
            app.env,
            [partial(ask, target.id, shown=target.shown) for target in targets],
            Streams(stdin=how.interactive, stderr=not tty, tty=tty),
            wanted=how.transport,
            timeout_s=client.timeout_s,
            tls=tls,
            spares=spares,
        )
    outcomes: list[Outcome] = []
    for target, end in zip(targets, ends, strict=True):
        if isinstance(end, ExitReported) and end.exit_code is None:
            action = sessions.running(target.shown)
            error = remote_command.not_started(action, end)
            known = remote_command.CommandMissing | remote_command.CommandRefused
            if isinstance(error, known) and not app.persona.is_crictl:
                error.message = f"{action}: {shortened(error.details)}"
            outcomes.append(error)
        else:
            outcomes.append(end.exit_code if isinstance(end, ExitReported) else end)
    return outcomes


def _report(app: AppContext, target: ObjectRef, outcome: Outcome, *, is_alone: bool) -> int:
    if isinstance(outcome, PycrictlError):
        # The runtime's errors name the container; those of a stream do not.
        prefix = f"{sessions.running(target.shown)}: "
        is_named = is_alone or outcome.message.startswith(prefix)
        app.env.error(
            outcome.message if is_named else f"{prefix}{outcome.message}", hint=outcome.hint
        )
        return outcome.exit_code
    # For a single container the exit status is enough, but crictl reduces it to 1.
    if outcome and (not is_alone or app.persona.is_crictl):
        app.env.error(f"the command in container {target.shown} ended with status {outcome}")
    return outcome or 0
