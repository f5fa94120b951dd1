"""What all processes of one run of pytest share, made by whichever wants it first."""

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
    """Alone with `path` among all processes that ask in this way."""
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def made_once(path: Path, make: Callable[[], _Made]) -> _Made:
    """What `make` returned in the first process that asked; whoever asks meanwhile waits.

    Where it raised, the next one tries again, and is told why.
    """
    with locked(path):
        if path.exists():
            made: _Made = pickle.loads(path.read_bytes())
            return made
        made = make()
        path.write_bytes(pickle.dumps(made))
        return made
