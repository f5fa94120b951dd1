"""Logs, written as they come: that of one container, or those of all containers of pods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pycrictl.cli import crictl
from pycrictl.cri.inspection import containerlog, podlogs
from pycrictl.errors import NotFound, PycrictlError
from pycrictl.logs.reader import LogReader
from pycrictl.logs.together import Together
from pycrictl.logs.waiting import LogWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import BinaryIO, TextIO

    from pycrictl.cri.calls.client import CriClient
    from pycrictl.environ import Environment
    from pycrictl.logs.selection import Selection
    from pycrictl.wire.logline import Chunk


@dataclass(frozen=True, slots=True)
class LogOutput:
    """How logs are shown."""

    env: Environment
    client: CriClient
    wanted: Selection
    follow: bool = False
    previous: bool = False
    reopen: bool = False

    def show_container(self, container_id: str) -> None:
        """Show the log of a container, or those of the pod with that ID."""
        if self.reopen:
            containerlog.reopen_log(self.client, container_id)
            crictl.inform(self.env, "the container's log was reopened")
        try:
            log = containerlog.container_log(self.client, container_id, previous=self.previous)
        except NotFound:
            pod = podlogs.pod_of_id(self.client, container_id)
            if pod is None:
                raise
            self.show_pods(pod)
            return
        reader = LogReader(log.path, self.wanted, on_bad=self._report_format)
        if not self.follow:
            self._write(reader.read())
            if reader.is_unfinished:
                crictl.inform(self.env, "the last line of the log is unfinished")
            return
        life = containerlog.Life(self.client, log)
        try:
            with LogWatch(log.path, reader_fd=_descriptor(self.env.stdout)) as watch:
                self._write(reader.follow(life.lasts, watch.wait))
        except KeyboardInterrupt:
            pass  # how users end it

    def show_pods(self, pods: podlogs.Pods) -> None:
        """Show the logs of all containers of pods, in the order of their times."""
        logs = podlogs.PodLogs(self.client, pods, warn=self.env.warn)
        together = Together(self.wanted, on_bad=self._report_format, warn=self.env.warn)

        def add(named: podlogs.NamedLog, *, is_new: bool = False) -> None:
            # One pod's lines begin as kubectl's do; its namespace is known.
            name = "/".join(("pod", *named.name.split("/")[1:])) if pods.name else named.name
            container_id = named.log.container_id
            together.add(
                named.log.path,
                prefix=f"[{name}] ",
                is_alive=lambda: logs.is_running(container_id),
                is_new=is_new,
            )

        present = logs.present(previous=self.previous)
        if self.previous and not present:
            raise PycrictlError("no container has an earlier attempt")
        for named in present:
            if self.reopen and logs.is_running(named.log.container_id):
                containerlog.reopen_log(self.client, named.log.container_id)
            add(named)
        if not self.follow:
            self._write(together.read())
            return
        paths = [named.log.path for named in present]
        with LogWatch(*paths, reader_fd=_descriptor(self.env.stdout)) as watch:

            def goes_on() -> bool:
                for named in logs.new():
                    self.env.note(f"{named.name} was started")
                    watch.add(named.log.path)
                    add(named, is_new=True)
                return logs.lasts()

            try:
                self._write(together.follow(goes_on, watch.wait))
            except KeyboardInterrupt:
                pass  # how users end it

    def _report_format(self, first_bad: str) -> None:
        self.env.warn(f"the log has lines in an unknown format, the first is {first_bad}")

    def _write(self, chunks: Iterable[Chunk]) -> None:
        """Write at once: on one terminal, both outputs keep their order."""
        writers = {"stdout": _writer(self.env.stdout), "stderr": _writer(self.env.stderr)}
        for stream, data in chunks:
            writers[stream](data)


def _writer(stream: TextIO) -> Callable[[bytes], object]:
    """Return a function that writes bytes below a stream's text layer, if it has one."""
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
