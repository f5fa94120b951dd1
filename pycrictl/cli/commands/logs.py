"""``pycrictl logs``: the log of one container, or those of all containers of a pod."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated, Literal, TextIO

import typer

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import PycrictlError
from pycrictl.base.output import descriptor_of, write_bytes
from pycrictl.cli import complete, options
from pycrictl.cli.context import AppContext
from pycrictl.node.logs.log_reader import LogReader, Selection, parse_since, pause_for
from pycrictl.node.logs.logline import Chunk
from pycrictl.node.logs.together import Together
from pycrictl.runtime.cri.calls.client import CriClient
from pycrictl.runtime.cri.inspection import containerlog


def logs(
    ctx: typer.Context,
    container: Annotated[
        str,
        typer.Argument(
            metavar="CONTAINER",
            autocompletion=complete.logs,
            help="ID or name of a container, or of a pod for all of its containers.",
        ),
    ],
    of_container: options.OfContainer = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            "-f",
            help="Follow until the container, or all containers of the pod, have ended.",
        ),
    ] = False,
    limit_bytes: Annotated[
        int,
        options.int_option("--limit-bytes", help="Stop after this many bytes; negative: no limit."),
    ] = -1,
    namespace: options.InNamespace = None,
    previous: Annotated[
        bool, typer.Option("--previous", "-p", help="Show the log of the previous attempt.")
    ] = False,
    reopen: Annotated[
        bool, typer.Option("--reopen", "-r", help="First ask the runtime to reopen the log file.")
    ] = False,
    since: Annotated[
        str,
        typer.Option(
            "--since",
            metavar="TIME",
            help="Only lines since a time: 10m, 1d, 2024-01-31, 2024-01-31T15:04:05Z or seconds"
            " since 1970.",
        ),
    ] = "",
    stream: Annotated[
        Literal["stdout", "stderr"] | None, typer.Option("--stream", "-s", help="Only this stream.")
    ] = None,
    tail: Annotated[
        int, options.int_option("--tail", help="Only the last N lines; negative: all.")
    ] = -1,
    timestamps: Annotated[
        bool, typer.Option("--timestamps", "-t", help="Start each line with its time.")
    ] = False,
) -> None:
    """Show the logs of containers.

    Writes the container's stdout to stdout and its stderr to stderr, byte for byte, including
    terminal control sequences. Logs are files on the node, so the command must run there. Lines in
    neither the CRI's format nor Docker's are printed as they are, with a warning.

    For a pod, merges the logs of its containers by time; each line starts with the container's
    name, and all options but --limit-bytes apply to each log.

    Rotated log files, including compressed ones, are part of a log.

    With --follow, also follows logs that are rotated or truncated, until the containers end; the
    exit status after Ctrl-C is 0.

    Example: pycrictl logs --follow --tail 20 --timestamps web
    """
    app: AppContext = ctx.obj
    is_strict = app.persona.is_crictl
    now = app.env.wall_clock()
    wanted = Selection(
        only=stream,
        since_ns=parse_since(since, now=now, is_strict=is_strict) if since else None,
        tail_lines=tail if tail >= 0 else None,
        limit_bytes=limit_bytes if limit_bytes >= 0 else None,
        has_timestamps=timestamps,
        grouping="merged" if _is_same_file(app.env.stdout, app.env.stderr) else "by stream",
        is_strict=is_strict,
    )

    options.named(container, "container")
    with app.open_client("runtime") as client:
        output = _Output(app, client, wanted, follow, previous, reopen)
        word = options.qualified(container, container=of_container, namespace=namespace)
        target = containerlog.find(client, word)
        if isinstance(target, str):
            output.show_container(target)
        else:
            output.show_pod(target)


@dataclass(frozen=True, slots=True)
class _Output:
    app: AppContext
    client: CriClient
    wanted: Selection
    follow: bool = False
    previous: bool = False
    reopen: bool = False

    def show_container(self, container_id: str) -> None:
        if self.reopen:
            containerlog.reopen_log(self.client, container_id)
            self.app.persona.inform(self.app.env, "the container's log was reopened")
        log = containerlog.container_log(self.client, container_id, previous=self.previous)
        reader = LogReader(log.path, self.wanted, warn=self.app.env.warn)
        if not self.follow:
            self._write(reader.read())
            if reader.is_unfinished:
                self.app.persona.inform(self.app.env, "the last line of the log is unfinished")
            return
        try:
            lasts = containerlog.life(self.client, log)
            self._write(reader.follow(lasts, pause_for(descriptor_of(self.app.env.stdout))))
        except KeyboardInterrupt:
            pass  # how users end it

    def show_pod(self, pod: cri_pb2.PodSandbox) -> None:
        warn = self.app.env.warn
        logs = containerlog.logs_of(self.client, pod, previous=self.previous, warn=warn)
        if self.previous and not logs:
            raise PycrictlError("no container of the pod has an earlier attempt")
        together = Together(self.wanted, warn=warn)
        for name, log in logs:
            if self.reopen and log.is_alive:
                containerlog.reopen_log(self.client, log.container_id)
            lasts = containerlog.life(self.client, log)
            is_alive = lasts if self.follow else lambda: False
            together.add(log.path, prefix=f"[{name}] ", is_alive=is_alive)
        try:
            self._write(together.follow(pause_for(descriptor_of(self.app.env.stdout))))
        except KeyboardInterrupt:
            pass  # how users end it

    def _write(self, chunks: Generator[Chunk, None, None]) -> None:
        """Write without delay, which keeps both outputs in order on a shared terminal."""
        streams = {"stdout": self.app.env.stdout, "stderr": self.app.env.stderr}
        with closing(chunks):
            for stream, data in chunks:
                write_bytes(streams[stream], data)


def _is_same_file(stdout: TextIO, stderr: TextIO) -> bool:
    """Return whether both outputs end up in one file, such as a terminal or a pipe."""
    try:
        return os.path.sameopenfile(stdout.fileno(), stderr.fileno())
    except (OSError, ValueError):  # closed, or without a descriptor
        return False
