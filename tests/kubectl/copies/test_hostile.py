"""The corpus of hostile archives by way of an agent, in both directions."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path

import pytest

from pycrictl.agent.copies.engine import Engine
from pycrictl.agent.copies.session import CopySpec, Place
from pycrictl.copy.tree.walk import Watch
from pycrictl.cri.calls.client import CriClient
from pycrictl.errors import CopyError
from pycrictl.kubectl.copies.patience import Patience
from pycrictl.kubectl.copies.transfer import Reconnecting
from tests.agent.copies.small import InThread, SmallAgent
from tests.copy.hostile import HOSTILE, build_surroundings, snapshot
from tests.copy.trees import needs_root, stages_in
from tests.fakecri.server import FakeServer
from tests.kubectl.copies.conftest import sessions
from tests.kubectl.copies.workstation import Workstation
from tests.proxy.copier import Pretended

pytestmark = needs_root

SMALL = {name: case for name, case in HOSTILE.items() if len(case.data) < 8 << 20}


def send(work: Workstation, data: bytes, path: str, **options: bool) -> dict[str, object]:
    """Put any bytes into the container; return how it ended."""

    def pieces(offset: int) -> Generator[memoryview, None, None]:
        for start in range(offset, len(data), 1 << 20):
            yield memoryview(data)[start : start + (1 << 20)]

    name = work.begin_to(data, path, **options)
    patience = Patience(work.notes.append, retries=3)
    with suppress(CopyError):  # it may be refused before all of it is sent
        Reconnecting(work.api, name, patience, lambda _: None, idle_s=30).send(pieces, len(data))
        work.api.commit(name)
    status: dict[str, object] = work.api.get(name)["status"]
    return status


def test_into_a_container(
    agent: InThread, work: Workstation, container: Pretended, folder: Path
) -> None:
    """What a client sends that does not look at it, and wants owners kept.

    Without that, it is sent to a container of a real node (``tests/node/test_container_cp.py``).
    """
    assert len(SMALL) >= 50
    for index, (name, case) in enumerate(SMALL.items()):
        parent = container.root / f"case{index}"
        parent.mkdir()
        build_surroundings(parent)
        if case.before:
            case.before(parent / "dest")
        before = snapshot(parent)
        status = send(work, case.data, f"/case{index}/dest/.", archive=True)
        assert status["phase"] == "Failed", name
        assert snapshot(parent) == before, name
        message = str(status["message"])
        assert "\x1b" not in message, name
        assert "agent failed" not in message, (name, message)
    assert sessions(folder) == []
    assert stages_in(container.root) == []


class Hostile(Engine):
    """A node that sends what it likes."""

    data = b""

    def pack(
        self, place: Place, spec: CopySpec, write: Callable[[memoryview], None], watch: Watch
    ) -> None:
        if self.data:
            write(memoryview(self.data))


def test_out_of_a_node(
    work: Workstation, container: Pretended, fake: FakeServer, folder: Path, tmp_path: Path
) -> None:
    engine = Hostile(lambda: CriClient(fake.path, timeout_s=10))
    agent = InThread(SmallAgent(str(folder / "agent"), str(folder / "store"), fake.path, engine))
    try:
        for index, (name, case) in enumerate(SMALL.items()):
            parent = tmp_path / f"case{index}"
            parent.mkdir()
            build_surroundings(parent)
            if case.before:
                case.before(parent / "dest")
            before = snapshot(parent)
            engine.data = case.data
            # The archive of "DIR/." has no top of its own, as the corpus has none.
            with pytest.raises(CopyError) as caught:
                work.out("/to/.", f"{parent}/dest")
            assert snapshot(parent) == before, name
            assert "\x1b" not in caught.value.message, name
        assert work.notes == []
        assert work.kept == []
    finally:
        agent.close()
    assert os.listdir(container.root / "to") == []  # noqa: PTH208 (names alone)
