"""Copies between a workstation and a pretended container, by an agent."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from pycrictl.copy import ends
from pycrictl.copy.rules.policy import Rules
from pycrictl.errors import CopyError, Exhausted, PycrictlError
from pycrictl.kubectl.copies.api import CopyApi, Lost
from pycrictl.kubectl.copies.patience import Patience
from pycrictl.kubectl.copies.saved import CopyRecord
from pycrictl.kubectl.copies.transfer import Reconnecting
from pycrictl.streaming.target import Target
from pycrictl.wire.tar.writer import END_OF_ARCHIVE
from tests.agent.copies.small import InThread
from tests.copy.hostile import FILE, member
from tests.copy.trees import needs_root, stages_in
from tests.kubectl.copies.conftest import sessions
from tests.kubectl.copies.workstation import Workstation
from tests.proxy.copier import MIB, Pretended
from tests.waiting import wait_until

pytestmark = needs_root

Start = Callable[..., InThread]


def test_options(agent: InThread, work: Workstation, container: Pretended, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("new")
    (tmp_path / "f").chmod(0o4755)
    os.utime(tmp_path / "f", (1, 1))
    (container.root / "to/f").write_text("old")
    assert work.into(tmp_path / "f", "/to", no_clobber=True).kept == 1
    assert (container.root / "to/f").read_text() == "old"
    work.into(tmp_path / "f", "/to", archive=True)
    status = (container.root / "to/f").stat()
    assert (status.st_mode & 0o7777, status.st_mtime) == (0o4755, 1)
    with pytest.raises(CopyError, match="more than 2 bytes"):
        work.into(tmp_path / "f", "/to", max_size_bytes=2)
    (container.root / "to/l").symlink_to("f")
    method = work.method()
    ends.copy_from(method, b"/to/l", os.fsencode(tmp_path / "o"), Rules(), work.watch, follow=True)
    assert (tmp_path / "o").read_text() == "new"


def test_what_is_left_out_is_said(
    agent: InThread, work: Workstation, container: Pretended, tmp_path: Path
) -> None:
    os.mkfifo(container.root / "to/pipe")
    work.out("/to", tmp_path / "o")
    (tmp_path / "d").mkdir()
    (tmp_path / "d/out").symlink_to("/etc")
    summary = work.into(tmp_path / "d", "/to")
    assert (summary.links, summary.skipped) == (0, 1)
    assert [(one.path, one.rule) for one in work.skipped] == [
        (b"to/pipe", "special"),
        (b"d/out", "outward-link"),
    ]


def test_more_than_is_allowed(
    agent: InThread, work: Workstation, container: Pretended, folder: Path
) -> None:
    """It is refused at the first bytes that say so, whichever way an archive goes."""
    with (container.root / "to/f").open("wb") as file:
        file.truncate(64 * MIB)
    reading, writing = os.pipe()
    os.write(writing, member(b"f", FILE, bytes(64 * MIB))[:1024])  # and no more comes
    with pytest.raises(CopyError, match=r": more than 1048576 bytes would be copied$"):
        ends.unpack_to(work.method(), reading, b"/to", Rules(max_size_bytes=MIB), work.watch)
    assert agent.agent.audits == []
    with pytest.raises(CopyError, match=r": more than 1048576 bytes would be copied$"):
        next(ends.pack_from(work.method(), b"/to/f", Rules(max_size_bytes=MIB), work.watch))
    assert work.relay.passed < 16 * MIB
    assert [how for _, how in agent.agent.audits] == ["abandoned"]
    assert (work.kept, sessions(folder)) == ([], [])
    os.close(reading)
    os.close(writing)


# What breaks


@pytest.mark.parametrize("seed", range(3))
def test_cuts_at_random_offsets(
    agent: InThread,
    work: Workstation,
    container: Pretended,
    tmp_path: Path,
    folder: Path,
    seed: int,
) -> None:
    content = os.urandom(12 * MIB + seed)
    (tmp_path / "f").write_bytes(content)
    work.relay._random.seed(seed)
    work.relay.most, work.relay.cuts = 5 * MIB, 6
    work.into(tmp_path / "f", "/to")
    assert work.relay.cuts <= 3
    assert (container.root / "to/f").read_bytes() == content
    work.relay.cuts = 6
    work.out("/to/f", tmp_path / "g")
    assert (tmp_path / "g").read_bytes() == content
    assert work.notes
    assert stages_in(container.root) == []
    assert (work.kept, sessions(folder)) == ([], [])
    # What was on its way when the connection broke goes again, and nothing else.
    assert work.relay.passed < 2 * len(content) + 9 * 3 * MIB


def test_bytes_that_change_on_their_way(
    agent: InThread, work: Workstation, container: Pretended, tmp_path: Path
) -> None:
    content = os.urandom(6 * MIB)
    (tmp_path / "f").write_bytes(content)
    work.relay.damages = 3
    work.into(tmp_path / "f", "/to")
    assert (container.root / "to/f").read_bytes() == content
    assert work.relay.damages == 0
    work.relay.damages = 3
    work.out("/to/f", tmp_path / "g")
    assert (tmp_path / "g").read_bytes() == content
    assert work.relay.damages == 0


def test_a_container_that_is_replaced(
    agent: InThread, work: Workstation, container: Pretended, tmp_path: Path, folder: Path
) -> None:
    content = os.urandom(64 * MIB)
    (tmp_path / "f").write_bytes(content)

    def replace() -> None:
        wait_until(lambda: work.relay.passed > 4 * MIB)
        container.pods = {"e" * 64: "pod1"}
        work.relay.cut()

    thread = threading.Thread(target=replace)
    thread.start()
    with pytest.raises(Lost, match="was stopped or replaced since the copy began"):
        work.into(tmp_path / "f", "/to")
    thread.join()
    assert os.listdir(container.root / "to") == []  # noqa: PTH208 (names alone)
    assert (work.kept, sessions(folder)) == ([], [])
    agent.agent.uid = "uid2"
    with pytest.raises(CopyError, match="not known"):
        work.api.get("0" * 32)


def test_a_copy_is_not_resumed_into_another_container(
    agent: InThread, work: Workstation, container: Pretended, tmp_path: Path, folder: Path
) -> None:
    local = str(tmp_path / "g")
    record = CopyRecord((), "shop", "web", "", "/to/f", local, "From", session="a" * 32)
    work.method()
    work.saved.keep(record).release()
    (container.root / "to/f").write_bytes(b"content")
    work.api.begin({"direction": "From", "path": "/to/f"}, record.session)
    container.pods = {"e" * 64: "pod1"}
    work.resume = True
    with pytest.raises(Lost, match="was stopped or replaced since the copy began"):
        work.out("/to/f", local)
    assert not (tmp_path / "g").exists()
    assert (work.kept, sessions(folder)) == ([], [])


def test_the_agent_stays_away(
    start: Start, work: Workstation, container: Pretended, tmp_path: Path, folder: Path
) -> None:
    """The copy ends after a while; with --resume it begins anew with another agent."""
    agent = start()
    content = os.urandom(16 * MIB)
    (tmp_path / "f").write_bytes(content)
    work.retries = 3
    work.relay.bytes_per_s = 16 * MIB  # else it may be over first
    stopped = threading.Event()

    def stop() -> None:
        wait_until(lambda: work.relay.passed > 5 * MIB)
        agent.do(agent.agent.stop())
        stopped.set()

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(PycrictlError) as caught:
        work.into(tmp_path / "f", "/to")
    thread.join()
    assert "--resume" in (caught.value.hint or "")
    assert len(work.kept) == 1
    agent.do(agent.agent.start())
    work.relay.bytes_per_s = 0
    work.resume = True
    work.into(tmp_path / "f", "/to")
    assert (container.root / "to/f").read_bytes() == content
    assert (work.kept, sessions(folder)) == ([], [])
    work.into(tmp_path / "f", "/to")
    assert "begins anew" in work.notes[-1]


def test_a_client_that_was_killed_before_it_knew_the_size(
    agent: InThread, work: Workstation, container: Pretended, tmp_path: Path, folder: Path
) -> None:
    content = os.urandom(3 * MIB)
    (container.root / "to/f").write_bytes(content)
    work.method()
    local = str(tmp_path / "g")
    record = CopyRecord((), "shop", "web", "", "/to/f", local, "From", session="a" * 32)
    work.saved.keep(record).release()
    work.api.begin({"direction": "From", "path": "/to/f"}, record.session)
    work.resume = True
    work.out("/to/f", local)
    assert (tmp_path / "g").read_bytes() == content
    assert [note for note in work.notes if "anew" in note] == []
    assert (work.kept, sessions(folder)) == ([], [])


# Who, and how much


def test_a_session_belongs_to_its_pod(agent: InThread, work: Workstation, folder: Path) -> None:
    """And to its user: see ``test_too_many`` of agents."""
    spec = {"direction": "To", "path": "/to/f", "size": 5, "checksum": 7, "container": ""}
    found = work.api.begin(spec)
    name = found["metadata"]["name"]
    assert len(name) == 32
    assert found["status"]["phase"] == "Transferring"
    assert found["spec"]["container"] == "main"

    def target(path: str) -> Target:
        return Target("http", "localhost", 80, path, str(folder / "agent"))

    for other in (CopyApi(target, "shop", "db"), CopyApi(target, "bank", "web")):
        with pytest.raises(Lost, match="is not known"):
            other.get(name)
    assert work.api.get(name)["status"]["offset"] == 0
    with pytest.raises(CopyError, match="only 0 of 5 bytes have arrived"):
        work.api.commit(name)
    work.api.abandon(name)
    with pytest.raises(Lost):
        work.api.get(name)


def test_the_quota_of_the_disk(
    start: Start, work: Workstation, container: Pretended, tmp_path: Path
) -> None:
    agent = start(spool_limit=3 * MIB)
    spec = {"direction": "To", "path": "/to/f", "size": 4 * MIB, "checksum": 7}
    with pytest.raises(Exhausted, match=r"of its disk, and may take 3\.0 MiB; try again later"):
        work.api.begin(spec)
    (container.root / "to/f").write_bytes(os.urandom(4 * MIB))
    # What is too much is known before the answer, or when its bytes are asked for.
    with pytest.raises((Exhausted, CopyError), match="of its disk"):
        work.out("/to/f", tmp_path / "g")
    assert [str(end) for _, end in agent.agent.audits] == ["refused", "failed"]
    assert work.kept == []


def test_a_session_without_a_sign_goes(start: Start, work: Workstation, folder: Path) -> None:
    agent = start(lifetime_s=0.6)
    spec = {"direction": "To", "path": "/to/f", "size": 5, "checksum": 7}
    agent.agent.now_s = 0.0
    name = work.api.begin(spec)["metadata"]["name"]
    for _ in range(3):
        agent.agent.now_s += 0.5
        time.sleep(0.2)  # it looks more often
        work.api.get(name)
    agent.agent.now_s += 0.7
    wait_until(lambda: [how for _, how in agent.agent.audits] == ["expired"])
    with pytest.raises(Lost, match="is not known"):
        work.api.get(name)


def test_what_is_not_a_copy(agent: InThread, work: Workstation) -> None:
    good = {"direction": "To", "path": "/to/f", "size": 5, "checksum": 7}
    bad: dict[str, Any]
    for bad in (
        {"direction": "Up"},
        {"path": "to"},
        {"path": "/a/../b"},
        {"path": "/a\0b"},
        {"path": 5},
        {"path": "/\ud800"},
        {"size": -1},
        {"size": 1 << 64},
        {"size": True},
        {"checksum": 1 << 32},
        {"options": {"archive": 1}},
        {"options": []},
    ):
        with pytest.raises(CopyError):
            work.api.begin({**good, **bad})
    with pytest.raises(CopyError, match="too large"):
        work.api.begin({**good, "more": "x" * 100_000})
    assert agent.agent.copies.snapshot() == {"copies": 0, "spool_bytes": 0}


def test_an_archive_that_is_not_what_was_announced(
    agent: InThread, work: Workstation, container: Pretended, tmp_path: Path
) -> None:
    """It is refused as a whole, and nothing of it was visible."""
    content = member(b"f", FILE, b"content") + END_OF_ARCHIVE
    spec = {"direction": "To", "path": "/to/.", "size": len(content), "checksum": 1}
    name = work.api.begin(spec)["metadata"]["name"]
    transfer = Reconnecting(
        work.api, name, Patience(work.notes.append, retries=2), lambda _: None, idle_s=10
    )

    def pieces(offset: int) -> Generator[memoryview, None, None]:
        yield memoryview(content)[offset:]

    transfer.send(pieces, len(content))
    found = work.api.commit(name)
    assert found["status"]["phase"] == "Failed"
    assert "another checksum than announced" in found["status"]["message"]
    assert os.listdir(container.root / "to") == []  # noqa: PTH208 (names alone)
    assert work.api.commit(name)["status"]["phase"] == "Failed"
