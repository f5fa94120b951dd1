"""``pycrictl exec``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal

import typer

from pycrictl._proto import cri_pb2
from pycrictl.base.environ import write_bytes
from pycrictl.base.errors import MissingArgument, NothingSelected, PycrictlError, UsageError
from pycrictl.cli import complete, list_options, options, stream_options
from pycrictl.cli.context import AppContext
from pycrictl.runtime.cri import sessions
from pycrictl.runtime.cri.calls.client import CriClient, each
from pycrictl.runtime.cri.lists import queries
from pycrictl.runtime.cri.lists.lookup import Lookup, ObjectRef
from pycrictl.runtime.cri.sessions import Outcome

_KILLED: Final = PycrictlError(
    "the runtime killed the command before it finished",
    hint="the time limit, --timeout, may have passed",
)
"""CRI-O reports status -1, which no command can have."""


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
    selection: list_options.ContainerSelection,
    interactive: Annotated[
        bool, typer.Option("--interactive", "-i", help="Forward standard input to the command.")
    ] = False,
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", metavar="NAMESPACE", help="The namespace of the pod."),
    ] = None,
    parallel: Annotated[
        bool,
        typer.Option(
            "--parallel", "-x", help="Run in all selected containers without printing their IDs."
        ),
    ] = False,
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
    tls: stream_options.TlsOptions,
    transport: stream_options.StreamTransport = "spdy",
    tty: Annotated[
        bool, typer.Option("--tty", "-t", help="Allocate a terminal; detach with Ctrl-P Ctrl-Q.")
    ] = False,
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
    if timeout < 0:
        raise UsageError("--timeout must not be negative")
    if sync and (interactive or tty):
        raise UsageError("--sync cannot be combined with --interactive or --tty")
    stream_options.check_terminal(app.env, tty=tty, stdin=interactive, stdin_flag="--interactive")
    tls_files = tls.files(app.persona)
    query = selection.query(app, state)

    def run(client: CriClient, targets: Sequence[ObjectRef]) -> int:
        count = len(targets)
        if interactive and count > 1:
            raise UsageError(f"--interactive needs a single container, but {count} are selected")
        if is_selected and not quiet and not parallel:
            app.env.stdout.write("".join(f"{target.id}:\n" for target in targets))
            app.env.stdout.flush()
        if sync:
            outcomes = _run_sync(app, client, targets, words, limit_s=timeout)
        else:
            # Not needed with --sync, and it loads all protocols of streams.
            from pycrictl.cli.exec_streams import run_streams  # noqa: PLC0415

            outcomes = run_streams(
                app,
                client,
                targets,
                words,
                stdin=interactive,
                tty=tty,
                transport=transport,
                tls=tls_files,
            )
        if ignore_errors and app.persona.is_plain:  # crictl does not report failures either
            return 0
        codes = [
            _report(app, target, outcome, is_alone=count == 1)
            for target, outcome in zip(targets, outcomes, strict=True)
        ]
        return next(filter(None, codes), 0)

    code = 0
    if ignore_errors and not quiet:
        app.env.warn("failures of the command are ignored")
    if target is None:
        with app.open_clients(needs_images=bool(selection.image)) as (client, images):
            containers = queries.list_containers(
                client, images, query, labels_only=app.persona.is_literal
            )
            if containers:
                code = run(client, [ObjectRef(target.id, target.id) for target in containers])
            elif ignore_errors:
                app.env.warn("no container is selected")
            else:
                hint = "without --state, only running containers are selected"
                raise NothingSelected("no container is selected", hint=hint)
    else:
        with app.open_client("runtime") as client:
            word = options.qualified(target, container=of_container, namespace=namespace)
            code = run(client, [Lookup(client).found(word, "container")])
    raise typer.Exit(0 if ignore_errors else code)


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
    for answer in each(client, act, targets, at_once=len(targets)):
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


def _report(app: AppContext, target: ObjectRef, outcome: Outcome, *, is_alone: bool) -> int:
    if isinstance(outcome, PycrictlError):
        # The runtime's errors name the container; those of a stream do not.
        what = f"{sessions.running(target.shown)}: "
        is_named = is_alone or outcome.message.startswith(what)
        app.env.error(
            outcome.message if is_named else f"{what}{outcome.message}", hint=outcome.hint
        )
        return outcome.exit_code
    # For a single container the exit status is enough, but crictl reduces it to 1.
    if outcome and (not is_alone or app.persona.is_plain):
        app.env.error(f"the command in container {target.shown} ended with status {outcome}")
    return outcome or 0
