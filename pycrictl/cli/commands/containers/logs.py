"""``pycrictl logs``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pycrictl.cli import crictl, options
from pycrictl.cli.context import AppContext
from pycrictl.cli.declare import Argument, Option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import BinaryIO, TextIO

    from pycrictl.wire.logline import Chunk


def logs(
    app: AppContext,
    container: Annotated[
        str,
        Argument(
            metavar="CONTAINER",
            help="ID or its beginning, name, POD/NAME or NAMESPACE/POD/NAME.",
            show_default=False,
        ),
    ],
    follow: Annotated[
        bool, Option("--follow", "-f", help="Keep following until the container ends.")
    ] = False,
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
    """Show the logs of a container.

    Its stdout goes to stdout and its stderr to stderr, byte for byte, terminal control sequences
    included. Logs are files on the node, so the command must run there. Lines in neither the CRI's
    format nor Docker's are printed as they are, with a warning.

    With --follow, rotated and truncated logs are followed too; the exit status after Ctrl-C is 0.

    Example: pycrictl logs --follow --tail 20 --timestamps web
    """
    from pycrictl.cri.inspection import containerlog
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

    with app.open_client("runtime") as client:
        container_id = containerlog.resolve(client, container)
        if reopen:
            containerlog.reopen_log(client, container_id)
            crictl.inform(app.env, "the container's log was reopened")
        log = containerlog.container_log(client, container_id, previous=previous)
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
