"""``pycrictl exec``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

from pycrictl.cli import crictl, list_options, options, stream_options
from pycrictl.cli.context import AppContext, Exit
from pycrictl.cli.declare import Argument, Option
from pycrictl.errors import MissingArgument, PycrictlError, UsageError

if TYPE_CHECKING:
    from pycrictl._proto import cri_pb2
    from pycrictl.cri.calls.client import CriClient
    from pycrictl.cri.lists.lookup import Target
    from pycrictl.environ import Environment
    from pycrictl.streaming.standard import Outcome


_KILLED: Final = PycrictlError(
    "the runtime ended the command before it was over",
    hint="that may be the time limit, --timeout",
)
"""CRI-O reports the status -1, which no command has."""


def exec_(
    app: AppContext,
    words: Annotated[
        list[str] | None,
        Argument(
            metavar="[CONTAINER] COMMAND...",
            help="The command and its arguments; after an ID or name, unless options select.",
            show_default=False,
        ),
    ] = None,
    ignore_errors: Annotated[
        bool,
        Option(
            "--ignore-errors",
            "-e",
            help="Exit with 0 even if the command fails or no container is selected.",
        ),
    ] = False,
    image: list_options.OfImage = "",
    interactive: Annotated[
        bool, Option("--interactive", "-i", help="Pass standard input on to the command.")
    ] = False,
    labels: list_options.Labels = None,
    last: list_options.Last = 0,
    latest: list_options.Latest = False,
    name: list_options.Name = "",
    parallel: Annotated[
        bool, Option("--parallel", "-x", help="Do not print the IDs of selected containers.")
    ] = False,
    pod: list_options.PodId = "",
    quiet: Annotated[
        bool, Option("--quiet", "-q", help="Print nothing but the command's output.")
    ] = False,
    state: Annotated[
        str,
        Option(
            "--state",
            metavar="created|running|exited|unknown",
            help="Only containers in this state.",
        ),
    ] = "",
    sync: Annotated[
        bool,
        Option(
            "--sync", "-s", help="Fetch the output when the command has ended, without a stream."
        ),
    ] = False,
    timeout: Annotated[
        int,
        Option(
            "--timeout",
            **options.INTEGER,
            help="With --sync: kill the command after this many seconds; 0: never.",
        ),
    ] = 0,
    tls_ca: stream_options.TlsCa = "",
    tls_cert: stream_options.TlsCert = "",
    tls_key: stream_options.TlsKey = "",
    tls_name: stream_options.TlsName = stream_options.TLS_NAME,
    transport: stream_options.StreamTransport = "auto",
    tty: Annotated[
        bool,
        Option("--tty", "-t", help="Give the command a terminal; Ctrl-P Ctrl-Q detaches."),
    ] = False,
) -> None:
    """Run a command in containers.

    The exit status is the command's; with several containers, the first that is not 0.

    Example: pycrictl exec --name web ps
    """
    from pycrictl.cri import sessions
    from pycrictl.cri.lists import containers, lookup
    from pycrictl.streaming.standard import stream_all
    from pycrictl.wire.command import Streams

    is_selected = bool(image or labels or last or latest or name or pod or state)
    command = list(words or ())
    target = command.pop(0) if command and not is_selected else None
    if target == "":
        raise UsageError("the container ID is empty")
    if not command:
        where = "" if is_selected else " after the container ID"
        raise MissingArgument(f"no command is given{where}")
    if timeout < 0:
        raise UsageError("--timeout must not be negative")
    if sync and (interactive or tty):
        raise UsageError("--sync cannot be combined with --interactive or --tty")
    stream_options.check_terminal(app.env, tty=tty, stdin=interactive, stdin_flag="--interactive")
    choice = stream_options.check_transport(transport)
    tls = stream_options.tls_files(ca=tls_ca, cert=tls_cert, key=tls_key, name=tls_name)
    query = containers.container_query(
        image=image,
        labels=options.split_pairs(labels, "--label"),
        last=last,
        latest=latest,
        name=name,
        pod=pod,
        state=state,
    )

    def run(client: CriClient, targets: Sequence[Target]) -> int:
        count = len(targets)
        if interactive and count > 1:
            raise UsageError(f"--interactive needs a single container, but {count} are selected")
        if is_selected and not quiet and not parallel:
            app.env.stdout.write("".join(f"{each.id}:\n" for each in targets))
            app.env.stdout.flush()
        if sync:
            outcomes = _run_sync(app.env, client, targets, command, limit_s=timeout)
        else:
            ask = partial(sessions.exec_url, client, command=command, stdin=interactive, tty=tty)
            with stream_options.patience() as spares:
                outcomes = stream_all(
                    app.env,
                    [partial(ask, each.id, shown=each.shown) for each in targets],
                    Streams(stdin=interactive, stderr=not tty, tty=tty),
                    choice=choice,
                    timeout_s=client.timeout_s,
                    tls=tls,
                    spares=spares,
                )
        if crictl.passes_over(ignored=ignore_errors):
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
            found = containers.list_containers(client, images, query)
            if found:
                code = run(client, [lookup.Target(each.id, each.id) for each in found])
            elif ignore_errors:
                app.env.warn("no container is selected")
            else:
                hint = "without --state, only running containers are selected"
                raise list_options.nothing_selected(client, pod, hint)
    else:
        with app.open_client("runtime") as client:
            code = run(client, [lookup.Lookup(client).found(target, "container")])
    raise Exit(0 if ignore_errors else code)


def _run_sync(
    env: Environment,
    client: CriClient,
    targets: Sequence[Target],
    command: Sequence[str],
    *,
    limit_s: int,
) -> list[Outcome]:
    """Run a command in all containers at once, and write its output where it has ended."""
    from pycrictl.cri import sessions
    from pycrictl.cri.calls.many import each
    from pycrictl.streaming.standard import write_all
    from pycrictl.wire.command import ExitReported

    def act(client: CriClient, target: Target) -> cri_pb2.ExecSyncResponse | PycrictlError:
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


def _report(env: Environment, target: Target, outcome: Outcome, *, is_alone: bool) -> int:
    """Say what went wrong in a container; return the exit status that it stands for."""
    from pycrictl.streaming.outcome import not_started

    if outcome is None:
        return 0
    what = f"running a command in container {target.shown}"
    if not isinstance(outcome, PycrictlError):
        if outcome.exit_code is not None:
            # Of one alone the exit status says it, which crictl does not pass on.
            if outcome.exit_code and (not is_alone or crictl.is_called()):
                env.error(
                    f"the command in container {target.shown} ended with status {outcome.exit_code}"
                )
            return outcome.exit_code
        outcome = not_started(what, outcome)
    # The runtime's errors name the container; those of a stream do not.
    is_named = is_alone or outcome.message.startswith(what)
    env.error(outcome.message if is_named else f"{what}: {outcome.message}", hint=outcome.hint)
    return outcome.exit_code
