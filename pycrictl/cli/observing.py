"""Looking at a run of the program itself: its traces and its profiles."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pycrictl.errors import PycrictlError, UsageError

if TYPE_CHECKING:
    from pycrictl.cli.context import AppContext


@contextmanager
def observed(
    app: AppContext,
    command: str,
    *,
    collector: str,
    sampling_rate: int,
    profile_cpu: str,
    profile_mem: str,
) -> Iterator[None]:
    """Observes what is done inside; an empty text or a rate of 0 switches that part off.

    Args:
        command: names the root span.
        collector: ``HOST:PORT`` that takes traces.
        sampling_rate: runs in a million that are traced, negative for all.
        profile_cpu: file for a profile.
        profile_mem: file for a snapshot of the memory in use at the end.

    Raises:
        UsageError: a file cannot be written.
    """
    with ExitStack() as stack:
        for path in filter(None, (profile_cpu, profile_mem)):
            _check_writable(path)
        if profile_cpu:
            stack.enter_context(_cpu_profile(app, profile_cpu))
        if profile_mem:
            stack.enter_context(_memory_snapshot(app, profile_mem))
        if collector:
            stack.enter_context(_traced(app, command, collector, sampling_rate))
        yield


def _check_writable(path: str) -> None:
    with _writing(path):
        Path(path).open("ab").close()


@contextmanager
def _writing(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise UsageError(f'cannot write profile "{path}": {exc.strerror}') from None


@contextmanager
def _cpu_profile(app: AppContext, path: str) -> Iterator[None]:
    import cProfile

    profile = cProfile.Profile()
    profile.enable()
    try:
        yield
    finally:
        profile.disable()
        with _writing(path):
            profile.dump_stats(path)
        app.env.note(f"CPU profile written to {Path(path).absolute()}; see python3 -m pstats")


@contextmanager
def _memory_snapshot(app: AppContext, path: str) -> Iterator[None]:
    import tracemalloc

    tracemalloc.start()
    try:
        yield
    finally:
        with _writing(path):
            tracemalloc.take_snapshot().dump(path)
        tracemalloc.stop()
        app.env.note(f"memory snapshot written to {Path(path).absolute()}; see tracemalloc")


@contextmanager
def _traced(app: AppContext, command: str, collector: str, rate: int) -> Iterator[None]:
    from pycrictl.cri.calls.tracing import Tracer, is_sampled

    if not is_sampled(rate):
        yield
        return
    tracer = app.tracer = Tracer(collector, wall_clock=app.env.wall_clock)
    span = tracer.begin(command)
    try:
        yield
    finally:
        # A failure to export must not cover the error of the command itself, nor its status.
        tracer.end(span, str(sys.exception() or ""))
        try:
            tracer.export()
        except PycrictlError as exc:
            app.env.warn(exc.message)
