"""Copies into a container that are put beside their place while they arrive."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from pycrictl.agent.copies import job
from pycrictl.agent.copies.engine import Engine
from pycrictl.agent.copies.session import CopySpec, Place
from pycrictl.copy.archive.checksum import crc32
from pycrictl.copy.archive.pack import pack
from pycrictl.copy.rules.summary import Summary
from pycrictl.copy.tree.places import LocalRoot, open_source
from pycrictl.copy.tree.watch import Watch
from pycrictl.cri.calls.client import CriClient
from pycrictl.kubectl.copies.api import Lost
from tests.agent.copies.small import InThread, SmallAgent
from tests.copy.node.test_on_node import needs_root
from tests.copy.trees import stages_in
from tests.fakecri.server import FakeServer
from tests.kubectl.copies.test_frames import KEY, acknowledged, connected, piece
from tests.kubectl.copies.workstation import Workstation
from tests.proxy.copier import Pretended
from tests.proxy.copies.test_service import listing, make_tree
from tests.waiting import WAIT_S, wait_until
from tests.wire.frames import BINARY, frame

pytestmark = needs_root

HALF = 500_000


@pytest.fixture
def archive(tmp_path: Path) -> bytes:
    make_tree(tmp_path / "tree")
    with open_source(LocalRoot(), os.fsencode(tmp_path / "tree")) as source:
        return b"".join(map(bytes, pack(source, on_skip=print)))


def begin(work: Workstation, archive: bytes, path: str = "/to") -> str:
    spec = {"direction": "To", "path": path, "size": len(archive), "checksum": crc32(archive)}
    return str(work.api.begin(spec)["metadata"]["name"])


def send(sock: socket.socket, archive: bytes, begin: int, end: int) -> None:
    for at in range(begin, end, HALF):
        sock.sendall(frame(BINARY, piece(at, archive[at : at + HALF]), key=KEY))


def send_rest(folder: Path, session: str, archive: bytes, begin: int = 0) -> None:
    with connected(folder, session) as sock:
        send(sock, archive, begin, len(archive))
        while acknowledged(sock) < len(archive):
            pass


def test_nothing_stays_beside_without_a_connection(
    agent: InThread,
    work: Workstation,
    container: Pretended,
    folder: Path,
    tmp_path: Path,
    archive: bytes,
) -> None:
    session = begin(work, archive)
    with connected(folder, session) as sock:
        send(sock, archive, 0, HALF)
        wait_until(lambda: len(stages_in(container.root)) == 1)
    wait_until(lambda: stages_in(container.root) == [])
    send_rest(folder, session, archive, HALF)
    assert not (container.root / "to/tree").exists()
    assert len(stages_in(container.root)) == 1
    assert work.api.commit(session)["status"]["phase"] == "Succeeded"
    assert listing(container.root / "to/tree") == listing(tmp_path / "tree")
    assert stages_in(container.root) == []


def test_what_could_not_be_put_there_is_put_there_in_the_end(
    agent: InThread,
    work: Workstation,
    container: Pretended,
    folder: Path,
    tmp_path: Path,
    archive: bytes,
) -> None:
    session = begin(work, archive, "/to/late/.")
    send_rest(folder, session, archive)
    (container.root / "to/late").mkdir()
    found = work.api.commit(session)["status"]
    assert (found["phase"], found["outcome"]["status"]) == ("Succeeded", "Success")
    assert listing(container.root / "to/late/tree") == listing(tmp_path / "tree")


class Leaving(Engine):
    """A node that takes its time to give up what it puts into a container."""

    def __init__(self, runtime: str) -> None:
        super().__init__(lambda: CriClient(runtime, timeout_s=10))
        self.leaves = threading.Event()

    def place(
        self, place: Place, spec: CopySpec, pieces: Iterable[memoryview], watch: Watch
    ) -> Summary:
        def slowly() -> Iterator[memoryview]:
            try:
                yield from pieces
            finally:
                self.leaves.set()
                time.sleep(0.5)

        return super().place(place, spec, slowly(), watch)


def test_what_is_given_up_twice_is_waited_for(
    fake: FakeServer, work: Workstation, container: Pretended, folder: Path, archive: bytes
) -> None:
    engine = Leaving(fake.path)
    agent = InThread(SmallAgent(str(folder / "agent"), str(folder / "store"), fake.path, engine))
    try:
        session = begin(work, archive)
        with connected(folder, session) as sock:
            send(sock, archive, 0, HALF)
            wait_until(lambda: len(stages_in(container.root)) == 1)
        assert engine.leaves.wait(WAIT_S)
        work.api.abandon(session)
        assert stages_in(container.root) == []
    finally:
        agent.close()


@pytest.mark.parametrize("end", ["abandon", "stop", "nobody"])
def test_without_a_commit_nothing_stays(
    start: Callable[..., InThread],
    work: Workstation,
    container: Pretended,
    folder: Path,
    archive: bytes,
    monkeypatch: pytest.MonkeyPatch,
    end: str,
) -> None:
    if end == "nobody":
        monkeypatch.setattr(job, "_COMMIT_S", 0.5)
    agent = start()
    session = begin(work, archive)
    send_rest(folder, session, archive)
    if end == "abandon":
        work.api.abandon(session)
        assert stages_in(container.root) == []
        return
    if end == "stop":
        agent.do(agent.agent.stop())
        assert stages_in(container.root) == []
        agent.do(agent.agent.start())
        with pytest.raises(Lost, match="the agent was restarted"):
            work.api.commit(session)
        return
    wait_until(lambda: stages_in(container.root) == [])
    assert work.api.commit(session)["status"]["phase"] == "Succeeded"
    assert (container.root / "to/tree").is_dir()
