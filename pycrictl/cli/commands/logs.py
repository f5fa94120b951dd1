"""``pycrictl logs``."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from pycrictl.cli import complete, crictl, options
from pycrictl.cli.context import AppContext
from pycrictl.cli.log_output import LogOutput
from pycrictl.cri.inspection import podlogs
from pycrictl.errors import MissingArgument, UsageError
from pycrictl.logs.selection import select


def logs(
    ctx: typer.Context,
    container: Annotated[
        str | None,
        typer.Argument(
            metavar="[CONTAINER]",
            autocompletion=complete.logs,
            help="ID or name of a container, or of a pod for all of its containers.",
            show_default=False,
        ),
    ] = None,
    all_: Annotated[
        bool,
        typer.Option(
            "--all", "-a", help="All containers: of the pod that is named, else of the node."
        ),
    ] = False,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Keep following until the container or the pod ends."),
    ] = False,
    labels: Annotated[
        list[str] | None,
        typer.Option(
            "--label",
            "-l",
            metavar="KEY=VALUE",
            help="All containers of the pods with this label; repeatable.",
        ),
    ] = None,
    limit_bytes: Annotated[
        int,
        typer.Option(
            "--limit-bytes",
            parser=options.integer,
            metavar="INT",
            help="Stop after this many bytes; negative: no limit.",
        ),
    ] = -1,
    previous: Annotated[
        bool, typer.Option("--previous", "-p", help="Show the log of the previous attempt.")
    ] = False,
    reopen: Annotated[
        bool,
        typer.Option("--reopen", "-r", help="First ask the runtime to reopen the log file."),
    ] = False,
    since: Annotated[
        str,
        typer.Option(
            "--since",
            metavar="TIME",
            help="Only lines since a time: 10m, 2024-01-31, 2024-01-31T15:04:05Z or seconds since"
            " 1970.",
        ),
    ] = "",
    stream: Annotated[
        Literal["stdout", "stderr"] | None,
        typer.Option("--stream", "-s", help="Only this output."),
    ] = None,
    tail: Annotated[
        int,
        typer.Option(
            "--tail",
            parser=options.integer,
            metavar="INT",
            help="Only the last N lines; negative: all.",
        ),
    ] = -1,
    timestamps: Annotated[
        bool, typer.Option("--timestamps", "-t", help="Start each line with its time.")
    ] = False,
) -> None:
    """Show the logs of containers.

    Writes the container's stdout to stdout and its stderr to stderr, byte for byte, including
    terminal control sequences. Logs are files on the node, so the command must run there. Lines in
    neither the CRI's format nor Docker's are printed as they are, with a warning.

    Merges the logs of several containers (of a pod, of the node, or of pods with a label) by time;
    each line starts with the container's name. Other options apply to each log.

    With --follow, it follows rotated and truncated logs as well, and containers started later, as
    long as a pod is ready; the exit status after Ctrl-C is 0.

    Example: pycrictl logs --follow --tail 20 --timestamps web
    """
    app: AppContext = ctx.obj
    wanted = select(
        stream=stream,
        since=since,
        tail_lines=tail,
        limit_bytes=limit_bytes,
        has_timestamps=timestamps,
        is_strict=crictl.is_called(),
        now=app.env.wall_clock(),
    )

    pods = options.split_pairs(labels, "--label")
    if container == "":
        raise UsageError("a container ID is empty", hint="is a script's variable not set?")
    if container is not None and pods:
        raise UsageError("a name and --label cannot be combined")
    if container is None and not pods and not all_:
        raise MissingArgument(
            "no container is named", hint="--all shows the logs of all containers"
        )
    with app.open_client("runtime") as client:
        output = LogOutput(app.env, client, wanted, follow, previous, reopen)
        found: str | podlogs.Pods = podlogs.Pods(labels=pods)
        if container is not None:
            found = podlogs.find(client, container, whole_pod=all_)
        if isinstance(found, podlogs.Pods):
            output.show_pods(found)
        else:
            output.show_container(found)
