"""A client of an agent of a pretended node, with a connection between them that can break."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pycrictl.copy.method import Watch
from pycrictl.copy.rules.policy import Rules, Skipped
from pycrictl.copy.rules.summary import Summary
from pycrictl.kubectl.copies.api import CopyApi
from pycrictl.kubectl.copies.over_api import OverApi
from pycrictl.kubectl.copies.patience import Patience
from pycrictl.kubectl.copies.saved import CopyRecord, Saved
from pycrictl.streaming.target import Target
from tests.agent.copies.relay import Relay
from tests.agent.copies.small import InThread, SmallAgent
from tests.fakecri.server import FakeServer
from tests.proxy.copier import Pretended, container

__all__ = ["container"]


class Workstation:
    """Copies as ``kubectl container-cp`` does.

    Attributes:
        relay: between it and the agent.
        notes, skipped, totals, bytes: what was shown.
    """

    def __init__(self, folder: Path, relay: Relay, state: Path) -> None:
        self.relay = relay
        self.state = state
        self.notes: list[str] = []
        self.skipped: list[Skipped] = []
        self.totals: list[int] = []
        self.bytes = 0
        self.retries: int | None = 50
        self.resume = False
        self._path = str(folder / "relay")
        self.watch = Watch(self._count, self.skipped.append, self.totals.append, self.notes.append)

    @property
    def api(self) -> CopyApi:
        return CopyApi(
            lambda path: Target("http", "localhost", 80, path, self._path), "shop", "web"
        )

    def method(self) -> OverApi:
        self.saved = Saved({"XDG_STATE_HOME": str(self.state)}, self.notes.append)
        return OverApi(
            self.api,
            CopyRecord((), "shop", "web", "", "", "", ""),
            self.saved,
            Patience(self.notes.append, retries=self.retries, sleep=_short),
            resume=self.resume,
        )

    def into(self, local: Path | str, path: str, **rules: Any) -> Summary:
        return self.method().copy_to(os.fsencode(local), path.encode(), Rules(**rules), self.watch)

    def out(self, path: str, local: Path | str, **rules: Any) -> Summary:
        return self.method().copy_from(
            path.encode(), os.fsencode(local), Rules(**rules), self.watch
        )

    @property
    def kept(self) -> list[str]:
        """What is kept of copies."""
        folder = self.state / "pycrictl/copies"
        return sorted(one.name for one in folder.iterdir()) if folder.exists() else []

    def _count(self, count: int) -> None:
        self.bytes += count


def _short(_: float) -> None:
    time.sleep(0.02)


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


def sessions(folder: Path) -> list[str]:
    """What the agent has on its disk."""
    return sorted(one.name for one in (folder / "store").iterdir() if one.name != "lock")
