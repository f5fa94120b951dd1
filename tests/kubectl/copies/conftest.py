"""A client of an agent of a pretended node, with a connection between them that can break."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.agent.copies.conftest import spooled
from tests.agent.copies.relay import Relay
from tests.agent.copies.small import SmallAgent
from tests.fakecri.server import FakeServer
from tests.kubectl.copies.workstation import Workstation
from tests.proxy.copier import Pretended, container

__all__ = ["container"]

Start = Callable[..., SmallAgent]


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cc-", dir="/var/tmp") as path:
        yield Path(path)


@pytest.fixture
def start(folder: Path, fake: FakeServer, container: Pretended) -> Iterator[Start]:
    """Starts an agent; the last one that was started is stopped with the test."""
    with ExitStack() as stack:

        def run(**options: object) -> SmallAgent:
            stack.close()
            agent = SmallAgent(folder, fake.path, **options)  # type: ignore[arg-type]  # as they are there
            stack.callback(agent.close)
            return agent

        yield run


@pytest.fixture
def agent(start: Start) -> SmallAgent:
    return start()


@pytest.fixture
def work(folder: Path) -> Iterator[Workstation]:
    work = Workstation(folder)
    work.relay = Relay(str(folder / "relay"), str(folder / "agent"))
    yield work
    work.relay.close()


@pytest.fixture
def leftovers(folder: Path, work: Workstation) -> Callable[[], list[Path | str]]:
    """What agent and client have on their disks."""
    return lambda: [*spooled(folder / "store"), *work.kept]
