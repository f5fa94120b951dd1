"""Copies into a container, whose bytes are staged beside their place as they arrive."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from pycrictl.copy.archive.pack import pack
from pycrictl.copy.transfer import serving
from pycrictl.copy.tree.places import THIS_MACHINE, open_source
from pycrictl.errors import CopyError
from pycrictl.kubectl.copies.api import Lost
from tests.agent.copies.small import InThread
from tests.copy.trees import needs_root, stages_in
from tests.kubectl.copies.test_frames import KEY, acknowledged, connected, piece
from tests.kubectl.copies.workstation import Workstation
from tests.proxy.copier import Pretended
from tests.proxy.copies.test_copy_service import listing, make_tree
from tests.waiting import wait_until
from tests.wire.frames import BINARY, frame

pytestmark = needs_root

HALF = 500_000


@pytest.fixture
def archive(tmp_path: Path) -> bytes:
    make_tree(tmp_path / "tree")
    with open_source(THIS_MACHINE, os.fsencode(tmp_path / "tree")) as source:
        return b"".join(map(bytes, pack(source, on_skip=print)))


def send(sock: socket.socket, archive: bytes, begin: int, end: int) -> None:
    for at in range(begin, end, HALF):
        sock.sendall(frame(BINARY, piece(at, archive[at : at + HALF]), key=KEY))


def send_rest(folder: Path, session: str, archive: bytes, begin: int = 0) -> None:
    with connected(folder, session) as sock:
        send(sock, archive, begin, len(archive))
        while acknowledged(sock) < len(archive):
            pass


def test_what_has_arrived_waits_for_the_next_connection(
    agent: InThread,
    work: Workstation,
    container: Pretended,
    folder: Path,
    tmp_path: Path,
    archive: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving, "HEARTBEAT_S", 0.05)
    session = work.begin_to(archive)
    with connected(folder, session) as sock:
        send(sock, archive, 0, HALF)
        wait_until(lambda: work.api.get(session)["status"]["offset"] == HALF)
    assert len(stages_in(container.root)) == 1
    send_rest(folder, session, archive, HALF)
    assert not (container.root / "to/tree").exists()
    assert work.api.commit(session)["status"]["phase"] == "Succeeded"
    assert listing(container.root / "to/tree") == listing(tmp_path / "tree")
    assert stages_in(container.root) == []


def test_a_client_that_cannot_copy_there_learns_it_before_it_sends(
    agent: InThread, work: Workstation, container: Pretended, archive: bytes
) -> None:
    session = work.begin_to(archive, "/to/none/.")
    wait_until(lambda: work.api.get(session)["status"]["phase"] == "Failed")
    with pytest.raises(CopyError, match="there is no directory"):
        work.api.open(session, 0)
    assert [str(end) for _, end in agent.agent.audits] == ["failed"]


@pytest.mark.parametrize("end", ["abandon", "stop"])
def test_without_a_commit_nothing_stays(
    start: Callable[..., InThread],
    work: Workstation,
    container: Pretended,
    folder: Path,
    archive: bytes,
    end: str,
) -> None:
    agent = start()
    session = work.begin_to(archive)
    send_rest(folder, session, archive)
    if end == "abandon":
        work.api.abandon(session)
        assert stages_in(container.root) == []
        return
    agent.do(agent.agent.stop())
    assert stages_in(container.root) == []
    agent.do(agent.agent.start())
    with pytest.raises(Lost, match="the agent was restarted"):
        work.api.commit(session)
