"""``pycrictl cp``, and its parts that are also used by ``kubectl container-cp``.

The parent process may have closed the standard streams, or made them non-blocking for all processes
that share them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any, Final, Literal

import typer

from pycrictl.base.environ import Environment
from pycrictl.base.errors import (
    CopyError,
    ExitCode,
    MissingArgument,
    PycrictlError,
    UsageError,
    reason_of,
)
from pycrictl.base.output import write_pieces
from pycrictl.base.units import plural, quote
from pycrictl.cli import complete, options, stream_options
from pycrictl.cli.context import AppContext
from pycrictl.copy import methods
from pycrictl.copy.methods import Method, Opened, first_to_serve, on_this_node
from pycrictl.copy.rules import spec
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import MAX_ENTRIES, Rules, Skipped
from pycrictl.copy.tree.walk import Watch
from pycrictl.pulls.meter import Speed
from pycrictl.pulls.state import Sums
from pycrictl.show.displays.copies import CopyDisplay, open_copy_display
from pycrictl.show.displays.outlet import Silent, Stdout

_SPEED_WINDOW_S: Final = 5.0


def copy_ends(completer: complete.Completer | None = None) -> Any:
    return typer.Argument(
        metavar="SRC... DST",
        help="What to copy, and where to; -: an archive on stdin or stdout.",
        autocompletion=completer,
    )


@dataclass(frozen=True, slots=True)
class CopyForm:
    """The options of both ``cp`` and ``kubectl container-cp``."""

    archive: Annotated[
        bool,
        typer.Option("--archive", "-a", help="Keep owners, times, and set-id and sticky bits."),
    ] = False
    follow_link: Annotated[
        bool, typer.Option("--follow-link", "-L", help="If SRC is a link, copy its target.")
    ] = False
    max_size: Annotated[
        int | None,
        typer.Option(
            "--max-size",
            parser=options.size,
            metavar="SIZE",
            help="Refuse to copy more than this, such as 10Gi.",
        ),
    ] = None
    max_entries: Annotated[
        int,
        typer.Option(
            "--max-entries",
            parser=options.natural,
            metavar="N",
            help="Refuse to copy more files, directories and links than this; 0: no limit.",
        ),
    ] = MAX_ENTRIES
    progress: options.Progress = "auto"
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False

    @property
    def rules(self) -> Rules:
        return Rules(self.archive, self.max_size, self.max_entries, follow=self.follow_link)


def split_ends(ctx: typer.Context, paths: Sequence[str] | None) -> tuple[Sequence[str], str]:
    """Split the arguments of a copy into its sources and its destination."""
    if not paths or len(paths) == 1:
        raise MissingArgument(
            f"missing argument '{'DST' if paths else 'SRC'}'",
            hint=f"see '{ctx.command_path} --help'",
        )
    return paths[:-1], paths[-1]


@options.with_records
def cp(
    ctx: typer.Context,
    *,
    paths: Annotated[list[str] | None, copy_ends(complete.container_paths)] = None,
    form: CopyForm,
    of_container: options.OfContainer = None,
    namespace: options.InNamespace = None,
    method: Annotated[
        Literal["auto", "rpc", "node"],
        typer.Option("--method", help="Use the runtime's RPCs, or this node's file systems."),
    ] = "auto",
    tls: stream_options.TlsOptions,
) -> None:
    """Copy files to or from a running container.

    One side is CONTAINER:PATH: a container (ID, start of an ID, name or POD/NAME) and a path from
    its root, which may have wildcards in quotes. The other is a local path. DIR/. stands for
    the contents of DIR. Several sources go into a directory. Nothing appears at the destination
    before everything has arrived. The exit status is also 1 if something was left out.

    Example: pycrictl cp -a web:/etc/nginx ./nginx
    """
    app: AppContext = ctx.obj
    sources, destination = split_ends(ctx, paths)

    @contextmanager
    def opened(named: spec.ContainerPath, _watch: Watch) -> Iterator[Iterable[Method]]:
        name = "/".join(filter(None, (named.pod, named.container)))
        name = options.qualified(name, container=of_container, namespace=namespace)
        pod, _, container = name.rpartition("/")
        named = named._replace(pod=pod, container=container)
        with app.open_client("runtime") as client:
            yield on_this_node(client, named, method, tls.files(app.persona))

    request, way = spec.parse(sources, destination), app.copies_elsewhere or opened
    raise typer.Exit(carry_out(app, request, form, way))


def carry_out(
    app: AppContext, request: spec.CopyTo | spec.CopyFrom, form: CopyForm, opened: Opened
) -> int:
    """Copy, report it, and return the exit status; ``opened`` yields the methods to try."""
    _check_streams(app.env, request, form)
    display: CopyDisplay = Silent()
    if not form.quiet:
        has_result = isinstance(request, spec.CopyFrom) and request.destination.is_stream
        stdout: Stdout = "result" if has_result else "nothing"
        outlet = app.outlet(form.progress, stdout=stdout)
        display = open_copy_display(outlet, has_result=has_result)
    if not app.config.debug:
        app.env.configure_logging(debug=False)  # to warn of failed clean-up

    with _Meter(display, app.env) as meter:
        errors = _copy_all(app.env, request, form.rules, opened, meter)
    if form.quiet and meter.skipped:
        left_out = plural(meter.skipped, "entry", "entries")
        app.env.error(f"left out {left_out}", hint="without --quiet, each entry is listed")
    for error in errors:
        app.env.error(error.message, hint=error.hint)
    return ExitCode.FAILURE if meter.skipped or errors else ExitCode.OK


def _copy_all(
    env: Environment,
    request: spec.CopyTo | spec.CopyFrom,
    rules: Rules,
    opened: Opened,
    meter: _Meter,
) -> list[PycrictlError]:
    """Copy; return the errors of failed sources if there are several sources in containers.

    Sources on this machine are one copy, all or nothing; each one in a container is its own copy.
    """
    if isinstance(request, spec.CopyTo):
        with opened(request.destination, meter.watch) as usable:
            act = partial(_into, env, request, rules, meter.watch)
            summary = first_to_serve(usable, act)
        meter.finish([summary])
        return []
    target = request.destination
    if len(request.sources) > 1 and not os.path.isdir(target.path):
        raise CopyError(f"{quote(os.fsdecode(target.path))} is not a directory")
    summaries: list[Summary] = []
    errors: list[PycrictlError] = []
    for source in request.sources:
        act = partial(_out_of, env, source.path, target, rules, meter.watch)
        meter.begin()
        try:
            with opened(source, meter.watch) as usable:
                summaries.append(first_to_serve(usable, act))
        except PycrictlError as exc:
            if len(request.sources) == 1:
                raise
            errors.append(exc)
    if summaries:
        meter.finish(summaries)
    return errors


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
        self._total_bytes = 0
        self._begun_bytes = 0
        self._began_s = env.clock()
        # For the display, used by both threads. Numbers need no lock: one thread writes each.
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> _Meter:
        if self._display.interval_s is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def begin(self) -> None:
        """Begin the copy of the next source, whose total is not known yet."""
        self._begun_bytes, self._total_bytes = self.done_bytes, 0

    def finish(self, summaries: Sequence[Summary]) -> None:
        """Show the result of one or more copies."""
        self._end()
        rows = [asdict(summary) for summary in summaries]
        copied = {key: sum(row[key] for row in rows) for key in rows[0]}
        elapsed_s = round(self._clock() - self._began_s, 3)
        self.skipped = max(self.skipped, copied["skipped"])  # a server names only some
        self._display.end({**copied, "skipped": self.skipped, "elapsed_s": elapsed_s})

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
        self._total_bytes = self._begun_bytes + size_bytes

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
            rate, left_bytes = speed.rate, self._total_bytes - done_bytes
            eta_s = left_bytes / rate if rate and self._total_bytes and left_bytes >= 0 else None
            sums = Sums(progress=done_bytes, total=self._total_bytes, rate=rate, eta_s=eta_s)
            with self._lock:
                self._display.show(sums, now - self._began_s)


def _check_streams(env: Environment, request: spec.CopyTo | spec.CopyFrom, form: CopyForm) -> None:
    if isinstance(request, spec.CopyFrom):
        if not request.destination.is_stream:
            return
        if env.stdout_is_terminal:
            raise UsageError(
                "refusing to write an archive to a terminal", hint="redirect standard output"
            )
        _require_open(lambda: os.write(env.stdout.fileno(), b""), "standard output", "writing")
    elif request.sources[0].is_stream:
        if env.stdin_is_terminal:
            raise UsageError("refusing to read an archive from a terminal")
        if form.follow_link:
            raise UsageError("--follow-link does not apply to an archive on standard input")
        _require_open(lambda: os.read(env.stdin.fileno(), 0), "standard input", "reading")


def _into(
    env: Environment, request: spec.CopyTo, rules: Rules, watch: Watch, method: Method
) -> Summary:
    path = request.destination.path
    if request.sources[0].is_stream:
        kind = None if spec.SINGLE_VARIABLE in env.environ else spec.SourceKind.ARCHIVE
        return methods.unpack_to(method, env.stdin.fileno(), path, rules, watch, kind=kind)
    local = [source.path for source in request.sources]
    return methods.copy_to(method, local, path, rules, watch)


def _out_of(
    env: Environment,
    path: bytes,
    local: spec.LocalPath,
    rules: Rules,
    watch: Watch,
    method: Method,
) -> Summary:
    if not local.is_stream:
        rules = rules._replace(umask=_umask())
        return methods.copy_from(method, path, local.path, rules, watch)
    with closing(methods.pack_from(method, path, rules, watch)) as pieces:
        while True:
            try:
                piece = next(pieces)
            except StopIteration as end:
                packed: Summary = end.value
                return packed
            try:
                write_pieces(env.stdout.fileno(), [piece])
            except OSError as exc:
                reason = reason_of(exc)
                raise CopyError(
                    f"cannot write to standard output: {reason}",
                    hint="the archive is not complete",
                ) from exc


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def _require_open(use: Callable[[], object], name: str, purpose: str) -> None:
    try:
        use()  # transfers zero bytes
    except (OSError, ValueError):
        raise UsageError(f"{name} is not open for {purpose}", hint="an archive needs it") from None
