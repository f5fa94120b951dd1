"""A copy, from its command-line arguments to the exit status.

The parent process may have closed the standard streams, or made them non-blocking for all processes
that share them.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from pycrictl.copy import ends
from pycrictl.copy.method import CopyOptions, Method, first_to_serve, on_this_node
from pycrictl.copy.rules import spec
from pycrictl.copy.rules.policy import Skipped
from pycrictl.copy.tree.walk import Watch
from pycrictl.errors import ConnectError, CopyError, ExitCode, RuntimeFault, UsageError
from pycrictl.pulls.sums import Speed
from pycrictl.show.displays.copies import CopyDisplay, Progress, open_copy_display
from pycrictl.show.displays.outlet import Silent
from pycrictl.units import plural

if TYPE_CHECKING:
    from pycrictl.cli.context import AppContext
    from pycrictl.copy.rules.outcome import Summary
    from pycrictl.environ import Environment
    from pycrictl.show.displays.outlet import Mode, Stdout


_SPEED_WINDOW_S: Final = 5.0

Opened: TypeAlias = Callable[[spec.ContainerPath, Watch], AbstractContextManager[Iterable[Method]]]
"""Yields the methods for a container."""


def copy(
    app: AppContext,
    source: str,
    destination: str,
    options: CopyOptions,
    *,
    quiet: bool = False,
    progress: Mode = "auto",
) -> int:
    @contextmanager
    def opened(container: spec.ContainerPath, watch: Watch) -> Iterator[Iterable[Method]]:
        with app.open_client("runtime") as client:
            yield on_this_node(client, container, options)

    request = spec.parse(source, destination)
    return carry_out(app, request, options, opened, quiet=quiet, progress=progress)


def sweep(app: AppContext) -> int:
    from pycrictl.containerd import views  # noqa: PLC0415 - only for --sweep
    from pycrictl.containerd.grpc_client import ContainerdClient  # noqa: PLC0415 - the same
    from pycrictl.copy import on_node  # noqa: PLC0415 - the same

    with app.open_client("runtime") as client:
        count = on_node.sweep(partial(on_node.locate_here, client))
        sessions = 0
        with suppress(RuntimeFault, ConnectError):  # another runtime, which has no debug sessions
            sessions = views.sweep(ContainerdClient(client.path))
    what = plural(count, "killed copy", "killed copies")
    if sessions:
        what += f" and {plural(sessions, 'killed debug session')}"
    app.env.stdout.write(f"removed what {what} had left\n")
    return ExitCode.OK


def carry_out(
    app: AppContext,
    request: spec.CopyTo | spec.CopyFrom,
    options: CopyOptions,
    opened: Opened,
    *,
    quiet: bool,
    progress: Mode,
) -> int:
    _check_streams(app.env, request, options)
    display: CopyDisplay = Silent()
    if not quiet:
        has_result = isinstance(request, spec.CopyFrom) and request.destination.is_stream
        stdout: Stdout = "result" if has_result else "nothing"
        outlet = app.outlet(progress, stdout=stdout)
        display = open_copy_display(outlet, has_result=has_result)
    if not app.config.debug:
        app.env.configure_logging(debug=False)  # to warn of failed clean-up

    with _Meter(display, app.env) as meter:
        container = request.source if isinstance(request, spec.CopyFrom) else request.destination
        act = partial(_act, app.env, request, options, meter.watch)
        with opened(container, meter.watch) as methods:
            summary = first_to_serve(methods, act)
        meter.finish(summary)
    if quiet and meter.skipped:
        left_out = plural(meter.skipped, "entry", "entries")
        app.env.error(f"left out {left_out}", hint="without --quiet, each is named")
    return ExitCode.FAILURE if meter.skipped else ExitCode.OK


class _Meter:
    """Counts what is copied, and shows it at regular intervals, even without progress."""

    def __init__(self, display: CopyDisplay, env: Environment) -> None:
        on_total = None if display.interval_s is None else self._set_total
        self.watch = Watch(self._count, self._skip, on_total, self._note)
        self.done_bytes = 0
        self.skipped = 0
        self._display = display
        self._program = env.program
        self._clock = env.clock
        self._total_bytes: int | None = None
        self._began_s = env.clock()
        # For the display, used by both threads. Numbers need none: one thread alone writes each.
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> _Meter:
        if self._display.interval_s is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def finish(self, summary: Summary) -> None:
        self._end()
        elapsed_s = round(self._clock() - self._began_s, 3)
        self.skipped = max(self.skipped, summary.skipped)  # a server names only some
        copied = {**asdict(summary), "skipped": self.skipped, "elapsed_s": elapsed_s}
        self._display.end(copied)

    def _count(self, count: int) -> None:
        self.done_bytes += count

    def _skip(self, skipped: Skipped) -> None:
        self.skipped += 1
        with self._lock:
            self._display.skip(os.fsdecode(skipped.path), skipped.reason)

    def _note(self, text: str) -> None:
        with self._lock:
            self._display.note(f"{self._program}: {text}")

    def _set_total(self, size_bytes: int) -> None:
        self._total_bytes = size_bytes

    def _end(self) -> None:
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()
        self._display.close()

    def _run(self) -> None:
        speed, shown_bytes = Speed(_SPEED_WINDOW_S), 0
        speed.start(self._began_s)
        while not self._is_over.wait(self._display.interval_s):
            now, done_bytes = self._clock(), self.done_bytes
            speed.record(done_bytes - shown_bytes, now)
            shown_bytes = done_bytes
            progress = Progress(done_bytes, self._total_bytes, speed.rate(now), now - self._began_s)
            with self._lock:
                self._display.show(progress)


def _check_streams(
    env: Environment, request: spec.CopyTo | spec.CopyFrom, options: CopyOptions
) -> None:
    if isinstance(request, spec.CopyFrom):
        if not request.destination.is_stream:
            return
        if env.stdout_is_terminal:
            raise UsageError(
                "refusing to write an archive to a terminal", hint="redirect standard output"
            )
        if options.rules.no_clobber:
            raise UsageError("--no-clobber does not apply to an archive")
        _require_open(lambda: os.write(env.stdout.fileno(), b""), "standard output", "writing")
    elif request.source.is_stream:
        if env.stdin_is_terminal:
            raise UsageError("refusing to read an archive from a terminal")
        if options.follow:
            raise UsageError("--follow-link does not apply to an archive on standard input")
        _require_open(lambda: os.read(env.stdin.fileno(), 0), "standard input", "reading")


def _act(
    env: Environment,
    request: spec.CopyTo | spec.CopyFrom,
    options: CopyOptions,
    watch: Watch,
    method: Method,
) -> Summary:
    rules, follow = options.rules, options.follow
    if isinstance(request, spec.CopyTo):
        local, path = request.source, request.destination.path
        if local.is_stream:
            return ends.unpack_to(method, env.stdin.fileno(), path, rules, watch)
        return ends.copy_to(method, local.path, path, rules, watch, follow=follow)
    path, local = request.source.path, request.destination
    if not local.is_stream:
        rules = rules._replace(umask=_umask())
        return ends.copy_from(method, path, local.path, rules, watch, follow=follow)
    with closing(ends.pack_from(method, path, rules, watch, follow=follow)) as pieces:
        while True:
            try:
                _write(env.stdout.fileno(), next(pieces))
            except StopIteration as end:
                packed: Summary = end.value
                return packed


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def _require_open(use: Callable[[], object], name: str, purpose: str) -> None:
    try:
        use()  # transfers zero bytes
    except (OSError, ValueError):
        raise UsageError(f"{name} is not open for {purpose}", hint="an archive needs it") from None


def _write(fd: int, piece: memoryview) -> None:
    while piece:
        try:
            piece = piece[os.write(fd, piece) :]
        except BlockingIOError:
            select.select((), (fd,), ())
        except OSError as exc:
            reason = os.strerror(exc.errno or 0).lower()
            raise CopyError(
                f"cannot write to standard output: {reason}", hint="the archive is not complete"
            ) from exc
