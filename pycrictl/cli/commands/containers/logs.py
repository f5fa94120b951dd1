"""``pycrictl logs``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

from pycrictl.cli import crictl, options
from pycrictl.cli.context import AppContext
from pycrictl.cli.declare import Argument, Option
from pycrictl.errors import MissingArgument, NotFound, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import BinaryIO, TextIO

    from pycrictl.cri.calls.client import CriClient
    from pycrictl.cri.inspection.podlogs import Pods
    from pycrictl.logs.selection import Selection
    from pycrictl.wire.logline import Chunk


def logs(
    app: AppContext,
    container: Annotated[
        str | None,
        Argument(
            metavar="[CONTAINER]",
            help="ID or name of a container, or of a pod for all of its containers.",
            show_default=False,
        ),
    ] = None,
    all_: Annotated[
        bool,
        Option("--all", "-a", help="All containers: of the pod that is named, else of the node."),
    ] = False,
    follow: Annotated[
        bool, Option("--follow", "-f", help="Keep following until the container or the pod ends.")
    ] = False,
    labels: Annotated[
        list[str] | None,
        Option(
            "--label",
            "-l",
            metavar="KEY=VALUE",
            help="All containers of the pods with this label; repeatable.",
        ),
    ] = None,
    limit_bytes: Annotated[
        int,
        Option(
            "--limit-bytes",
            **options.INTEGER,
            help="Stop after this many bytes; negative: no limit.",
        ),
    ] = -1,
    previous: Annotated[
        bool, Option("--previous", "-p", help="Show the log of the previous attempt.")
    ] = False,
    reopen: Annotated[
        bool,
        Option("--reopen", "-r", help="First ask the runtime to reopen the log file."),
    ] = False,
    since: Annotated[
        str,
        Option(
            "--since",
            metavar="TIME",
            help="Only lines since a time: 10m, 2024-01-31, 2024-01-31T15:04:05Z or seconds since"
            " 1970.",
        ),
    ] = "",
    stream: Annotated[
        str, Option("--stream", "-s", metavar="stdout|stderr", help="Only this output.")
    ] = "",
    tail: Annotated[
        int,
        Option("--tail", **options.INTEGER, help="Only the last N lines; negative: all."),
    ] = -1,
    timestamps: Annotated[
        bool, Option("--timestamps", "-t", help="Start each line with its time.")
    ] = False,
) -> None:
    """Show the logs of containers.

    Its stdout goes to stdout and its stderr to stderr, byte for byte, terminal control sequences
    included. Logs are files on the node, so the command must run there. Lines in neither the CRI's
    format nor Docker's are printed as they are, with a warning.

    The logs of a pod with several containers, of a node or of pods with a label are shown in the
    order of their times. Each line begins with its container. Other options apply to each log.

    With --follow, rotated and truncated logs are followed too, and containers that are started
    meanwhile, for as long as a pod is ready; the exit status after Ctrl-C is 0.

    Example: pycrictl logs --follow --tail 20 --timestamps web
    """
    from pycrictl.cri.inspection import containerlog, podlogs
    from pycrictl.logs.reader import LogReader
    from pycrictl.logs.selection import select
    from pycrictl.logs.waiting import LogWatch

    wanted = select(
        stream=stream,
        since=since,
        tail_lines=tail,
        limit_bytes=limit_bytes,
        has_timestamps=timestamps,
        is_strict=crictl.is_called(),
        now=app.env.wall_clock(),
    )

    def warn(first_bad: str) -> None:
        app.env.warn(f"the log has lines in an unknown format, the first is {first_bad}")

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
        found: str | podlogs.Pods = podlogs.Pods(labels=pods)
        if container is not None:
            found = podlogs.find(client, container, whole_pod=all_)
        several = partial(
            _several,
            app,
            client,
            wanted=wanted,
            follow=follow,
            previous=previous,
            reopen=reopen,
            warn=warn,
        )
        if isinstance(found, podlogs.Pods):
            several(found)
            return
        container_id = found
        if reopen:
            containerlog.reopen_log(client, container_id)
            crictl.inform(app.env, "the container's log was reopened")
        try:
            log = containerlog.container_log(client, container_id, previous=previous)
        except NotFound:
            pod = podlogs.pod_of_id(client, container_id)
            if pod is None:
                raise
            several(pod)
            return
        reader = LogReader(log.path, wanted, on_bad=warn)
        if not follow:
            _write(reader.read(), app.env.stdout, app.env.stderr)
            if reader.is_unfinished:
                crictl.inform(app.env, "the last line of the log is unfinished")
            return
        life = containerlog.Life(client, log)
        try:
            with LogWatch(log.path, reader_fd=_descriptor(app.env.stdout)) as watch:
                chunks = reader.follow(life.lasts, watch.wait)
                _write(chunks, app.env.stdout, app.env.stderr)
        except KeyboardInterrupt:
            pass  # how users end it


def _several(
    app: AppContext,
    client: CriClient,
    pods: Pods,
    *,
    wanted: Selection,
    follow: bool,
    previous: bool,
    reopen: bool,
    warn: Callable[[str], None],
) -> None:
    """Show the logs of all containers of pods."""
    from pycrictl.cri.inspection import containerlog
    from pycrictl.cri.inspection.podlogs import NamedLog, PodLogs
    from pycrictl.errors import PycrictlError
    from pycrictl.logs.together import Together
    from pycrictl.logs.waiting import LogWatch

    logs = PodLogs(client, pods, warn=app.env.warn)
    together = Together(wanted, on_bad=warn, warn=app.env.warn)

    def add(named: NamedLog, *, is_new: bool = False) -> None:
        # One pod's lines begin as kubectl's do; its namespace is known.
        name = "/".join(("pod", *named.name.split("/")[1:])) if pods.name else named.name
        container_id = named.log.container_id
        together.add(
            named.log.path,
            prefix=f"[{name}] ",
            is_alive=lambda: logs.is_running(container_id),
            is_new=is_new,
        )

    present = logs.present(previous=previous)
    if previous and not present:
        raise PycrictlError("no container has an earlier attempt")
    for named in present:
        if reopen and logs.is_running(named.log.container_id):
            containerlog.reopen_log(client, named.log.container_id)
        add(named)
    if not follow:
        _write(together.read(), app.env.stdout, app.env.stderr)
        return
    paths = [named.log.path for named in present]
    with LogWatch(*paths, reader_fd=_descriptor(app.env.stdout)) as watch:

        def goes_on() -> bool:
            for named in logs.new():
                app.env.note(f"{named.name} was started")
                watch.add(named.log.path)
                add(named, is_new=True)
            return logs.lasts()

        try:
            _write(together.follow(goes_on, watch.wait), app.env.stdout, app.env.stderr)
        except KeyboardInterrupt:
            pass  # how users end it


def _write(chunks: Iterable[Chunk], stdout: TextIO, stderr: TextIO) -> None:
    """Write at once, so that both outputs keep their order where they go to one terminal."""
    writers = {"stdout": _writer(stdout), "stderr": _writer(stderr)}
    for stream, data in chunks:
        writers[stream](data)


def _writer(stream: TextIO) -> Callable[[bytes], object]:
    """Return a function that writes bytes to a stream, below its text layer if it has one."""
    buffer: BinaryIO | None = getattr(stream, "buffer", None)
    if buffer is None:
        return lambda data: stream.write(data.decode(errors="replace"))

    def write(data: bytes) -> None:
        buffer.write(data)
        buffer.flush()

    return write


def _descriptor(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, ValueError):  # closed or without one
        return None
