"""Objects that all processes of a run of pytest share, made by the first that needs them."""

from __future__ import annotations

import fcntl
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

_Made = TypeVar("_Made")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of `path`, which excludes other processes that call this."""
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def made_once(path: Path, make: Callable[[], _Made]) -> _Made:
    """Return what `make` returned in the first process that called this; others wait for it.

    If it raised, the next process calls it again, and so gets the error too.
    """
    with locked(path):
        if path.exists():
            made: _Made = pickle.loads(path.read_bytes())
            return made
        made = make()
        path.write_bytes(pickle.dumps(made))
        return made
