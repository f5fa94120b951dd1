"""A copy from its words on the command line to its exit status."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple

from pycrictl._proto import cri_pb2
from pycrictl.cli.archive_streams import check_input, input_of, output_of, write_all
from pycrictl.cli.stuck import ended_if_stuck
from pycrictl.copy.method import NAMES, Method, Watch, first_to_serve
from pycrictl.copy.rules import spec
from pycrictl.copy.rules.policy import Rules, Skipped
from pycrictl.cri.lists.lookup import CONTAINERS_HINT, find_container, find_pod
from pycrictl.errors import CopyError, ExitCode, FailedPrecondition, NotFound, UsageError
from pycrictl.progress.speed import Speed
from pycrictl.show.displays.copies import CopyDisplay, Progress, open_copy_display
from pycrictl.show.displays.writers import Silent
from pycrictl.units import quote

if TYPE_CHECKING:
    from pycrictl.cli.context import AppContext
    from pycrictl.copy.rules.summary import Summary
    from pycrictl.cri.calls.client import CriClient
    from pycrictl.environ import Environment
    from pycrictl.show.displays.modes import Stdout
    from pycrictl.streaming.session import Choice
    from pycrictl.streaming.target import TlsFiles

_SPEED_WINDOW_S: Final = 5.0


class Settings(NamedTuple):
    """What the user wants of a copy.

    Attributes:
        rules: what is allowed and kept.
        method: one of ``NAMES``, or ``auto``.
        follow: copy what the source points to, if it is a link.
        quiet: tell nothing but errors.
        progress: how progress is shown.
        choice: the transport of streams; tls: its files.
    """

    rules: Rules
    method: str = "auto"
    follow: bool = False
    quiet: bool = False
    progress: str = "auto"
    choice: Choice = "auto"
    tls: TlsFiles | None = None


def copy(app: AppContext, source: str, destination: str, settings: Settings) -> int:
    """Copy, and tell of it; return the exit status: not 0 if anything was left out.

    Raises:
        UsageError: the words make no copy; nothing was sent.
        PycrictlError: the copy did not happen.
    """
    if settings.method not in ("auto", *NAMES):
        raise UsageError(
            f"unknown method {quote(settings.method)}", hint=f"one of auto, {', '.join(NAMES)}"
        )
    request = spec.parse(source, destination)
    _check_streams(app.env, request, settings)
    display: CopyDisplay = Silent()
    if not settings.quiet:
        has_result = isinstance(request, spec.CopyFrom) and request.destination.is_stream
        stdout: Stdout = "result" if has_result else "nothing"
        display = open_copy_display(app.outlet(settings.progress, stdout=stdout))
    if not app.config.debug.value:
        app.env.configure_logging(debug=False)  # what could not be tidied up is a warning

    def give_up(number: int) -> None:
        display.close()
        if number == signal.SIGINT:
            app.env.error("interrupted", hint="a file system does not answer")

    with (
        ended_if_stuck(give_up),
        app.open_client("runtime") as client,
        _Meter(display, app.env.clock) as meter,
    ):
        path = request.source if isinstance(request, spec.CopyFrom) else request.destination
        methods = _methods(client, _find(client, path), settings)
        if isinstance(request, spec.CopyFrom):
            summary = _copy_from(app.env, methods, request, settings, meter)
        else:
            summary = _copy_to(app.env, methods, request, settings, meter.watch)
        meter.finish(summary)
    return ExitCode.FAILURE if meter.skipped else ExitCode.OK


class _Meter:
    """Counts what is copied, and shows it at a steady pace, also while nothing moves.

    Attributes:
        watch: what a copy is to tell.
        done_bytes: how much has been copied; skipped: how much was left out.
    """

    def __init__(self, display: CopyDisplay, clock: Callable[[], float]) -> None:
        on_total = None if display.interval_s is None else self._set_total
        self.watch = Watch(self._count, self._skip, on_total)
        self.done_bytes = 0
        self.skipped = 0
        self._display = display
        self._clock = clock
        self._total_bytes: int | None = None
        self._began_s = clock()
        # The display is shared with the thread; so are numbers, of which one thread writes each.
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> _Meter:
        if self._display.interval_s is not None:
            self._thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    def finish(self, summary: Summary | None) -> None:
        """The copy has succeeded; None tells nothing of it."""
        self._end()
        if summary is not None:
            elapsed_s = round(self._clock() - self._began_s, 3)
            copied = {**asdict(summary), "skipped": self.skipped, "elapsed_s": elapsed_s}
            self._display.end(copied)

    def _count(self, count: int) -> None:
        self.done_bytes += count

    def _skip(self, skipped: Skipped) -> None:
        self.skipped += 1
        with self._lock:
            self._display.skip(os.fsdecode(skipped.path), skipped.reason)

    def _set_total(self, size_bytes: int) -> None:
        self._total_bytes = size_bytes

    def _end(self) -> None:
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()
        self._display.close()

    def _run(self) -> None:
        speed, told_bytes = Speed(_SPEED_WINDOW_S), 0
        speed.start(self._began_s)
        while not self._is_over.wait(self._display.interval_s):
            now, done_bytes = self._clock(), self.done_bytes
            speed.record(done_bytes - told_bytes, now)
            told_bytes = done_bytes
            progress = Progress(done_bytes, self._total_bytes, speed.rate(now), now - self._began_s)
            with self._lock:
                self._display.show(progress)


def _check_streams(
    env: Environment, request: spec.CopyTo | spec.CopyFrom, settings: Settings
) -> None:
    if isinstance(request, spec.CopyFrom):
        if not request.destination.is_stream:
            return
        if env.stdout_is_terminal:
            raise UsageError(
                "refusing to write an archive to a terminal", hint="redirect standard output"
            )
        if settings.rules.no_clobber or settings.rules.in_place:
            raise UsageError("--no-clobber and --in-place are not for an archive that is written")
        output_of(env)
    elif request.source.is_stream:
        if env.stdin_is_terminal:
            raise UsageError("standard input is a terminal, where no archive comes from")
        if settings.follow:
            raise UsageError("--follow-link is not for an archive that is read")
        check_input(env)


def _find(client: CriClient, path: spec.ContainerPath) -> str:
    """The ID of the container that was named, which runs."""
    pod_id = find_pod(client, path.pod).id if path.pod else ""
    container = find_container(client, path.container, pod_sandbox_id=pod_id)
    if container is None:
        where = f" in pod {quote(path.pod)}" if path.pod else ""
        raise NotFound(
            f"no container {quote(path.container)}{where}",
            hint=CONTAINERS_HINT,
        )
    if container.state != cri_pb2.CONTAINER_RUNNING:
        raise FailedPrecondition(
            f"container {quote(path.container)} is not running",
            code="FailedPrecondition",
            hint="only running containers can be copied from or to",
        )
    return container.id


def _methods(client: CriClient, container_id: str, settings: Settings) -> Iterator[Method]:
    """The ways that are to be tried. What each takes is loaded when its turn comes."""
    names = NAMES if settings.method == "auto" else (settings.method,)
    if "rpc" in names:
        from pycrictl.copy.stream.over_rpc import OverRpc

        has_others = len(names) > 1
        yield OverRpc(client, container_id, tls=settings.tls, has_others=has_others)
    if "node" in names:
        from pycrictl.copy.node import on_node

        yield on_node.for_client(client, container_id)
    if "exec" in names:
        from pycrictl.copy.exec.over_exec import OverExec
        from pycrictl.copy.exec.remote import Remote

        remote = Remote(client, container_id, choice=settings.choice, tls=settings.tls)
        yield OverExec(remote)


def _copy_from(
    env: Environment,
    methods: Iterable[Method],
    request: spec.CopyFrom,
    settings: Settings,
    meter: _Meter,
) -> Summary | None:
    path, local = request.source.path, request.destination
    if local.is_stream:
        first_to_serve(methods, lambda method: _write(env, method, path, settings, meter))
        return None
    return first_to_serve(
        methods,
        lambda method: method.copy_from(
            path,
            local.path,
            settings.rules._replace(umask=_umask()),
            meter.watch,
            follow=settings.follow,
        ),
    )


def _copy_to(
    env: Environment,
    methods: Iterable[Method],
    request: spec.CopyTo,
    settings: Settings,
    watch: Watch,
) -> Summary:
    local, path = request.source, request.destination.path
    if local.is_stream:
        with input_of(env) as stream:
            return first_to_serve(
                methods, lambda method: method.unpack_to(stream, path, settings.rules, watch)
            )
    return first_to_serve(
        methods,
        lambda method: method.copy_to(
            local.path, path, settings.rules, watch, follow=settings.follow
        ),
    )


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def _write(
    env: Environment, method: Method, path: bytes, settings: Settings, meter: _Meter
) -> None:
    """Write an archive to standard output.

    Raises:
        CopyError: it cannot be written, or would be larger than is allowed.
    """
    limit = settings.rules.max_size_bytes
    pieces = method.pack_from(path, meter.watch, follow=settings.follow)
    with closing(pieces):
        for piece in pieces:
            if limit is not None and meter.done_bytes > limit:
                raise CopyError(f"more than {limit} bytes would be copied")
            write_all(output_of(env), piece)
