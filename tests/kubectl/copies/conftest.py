"""A client of an agent of a pretended node, with a connection between them that can break."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.agent.copies.relay import Relay
from tests.agent.copies.small import InThread, SmallAgent
from tests.agent.copies.spooled import spooled
from tests.fakecri.server import FakeServer
from tests.kubectl.copies.workstation import Workstation
from tests.proxy.copier import Pretended, container

__all__ = ["container"]


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cc-", dir="/var/tmp") as path:
        yield Path(path)


@pytest.fixture
def start(
    folder: Path, fake: FakeServer, container: Pretended
) -> Iterator[Callable[..., InThread]]:
    """Starts an agent; the last one that was started is stopped with the test."""
    with ExitStack() as stack:

        def run(**options: float) -> InThread:
            stack.close()
            agent = InThread(
                SmallAgent(str(folder / "agent"), str(folder / "store"), fake.path, **options)
            )
            stack.callback(agent.close)
            return agent

        yield run


@pytest.fixture
def agent(start: Callable[..., InThread]) -> InThread:
    return start()


@pytest.fixture
def work(folder: Path) -> Iterator[Workstation]:
    relay = Relay(str(folder / "relay"), str(folder / "agent"))
    yield Workstation(folder, relay, folder / "state")
    relay.close()


def sessions(folder: Path) -> list[Path]:
    """What the agent has on its disk."""
    return spooled(folder / "store")
