"""Profiles of the program's own run, written to files that the user names."""

from __future__ import annotations

import cProfile
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pycrictl.errors import UsageError


@contextmanager
def profiled(*, cpu: str, memory: str, note: Callable[[str], object]) -> Iterator[None]:
    """Profile calls (pstats) and memory in use at the end (tracemalloc) into files, if named."""
    for path in filter(None, (cpu, memory)):
        with _writing(path):
            Path(path).open("ab").close()
    profile = cProfile.Profile()
    if memory:
        tracemalloc.start()
    if cpu:
        profile.enable()
    try:
        yield
    finally:
        if cpu:
            profile.disable()
            with _writing(cpu):
                profile.dump_stats(cpu)
            note(f"CPU profile written to {Path(cpu).absolute()}; see python3 -m pstats")
        if memory:
            with _writing(memory):
                tracemalloc.take_snapshot().dump(memory)
            tracemalloc.stop()
            note(f"memory snapshot written to {Path(memory).absolute()}; see tracemalloc")


@contextmanager
def _writing(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise UsageError(f'cannot write profile "{path}": {exc.strerror}') from None
