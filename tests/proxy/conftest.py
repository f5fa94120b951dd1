"""A fake runtime with a proxy in front of it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakecri.fixtures import fake
from tests.fakecri.server import FakeServer
from tests.proxy.copier import container, copier
from tests.proxy.program import Program
from tests.proxy.runtime import channel, runtime, serve, stack

__all__ = ["channel", "container", "copier", "fake", "runtime", "serve", "stack"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path: the path of a socket may have at most 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="px-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def start(folder: Path, fake: FakeServer) -> Iterator[Callable[..., Program]]:
    """A function that starts a proxy with some flags in front of ``fake``, until the test ends."""
    started: list[Program] = []

    def run(*flags: str, upstream: str = fake.endpoint, **options: Any) -> Program:
        program = Program(folder, upstream, *flags, **options)
        started.append(program)
        return program.__enter__()

    yield run
    for program in started:
        program.__exit__(None, None, None)
