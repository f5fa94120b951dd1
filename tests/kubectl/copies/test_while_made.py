"""Copies out of a container whose bytes go to the workstation while the archive is being made."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from pycrictl.agent.copies.engine import Engine
from pycrictl.agent.copies.session import CopySpec, Place
from pycrictl.copy import ends
from pycrictl.copy.rules.policy import Rules, Skipped
from pycrictl.copy.tree.walk import Watch
from pycrictl.cri.calls.client import CriClient
from pycrictl.errors import CopyError
from pycrictl.wire.tar.writer import END_OF_ARCHIVE
from tests.agent.copies.small import InThread, SmallAgent
from tests.copy.hostile import FILE, member
from tests.copy.trees import needs_root, stages_in
from tests.fakecri.server import FakeServer
from tests.kubectl.copies.conftest import sessions
from tests.kubectl.copies.workstation import Workstation
from tests.proxy.copier import MIB
from tests.waiting import wait_until

pytestmark = [needs_root, pytest.mark.usefixtures("container")]

CONTENT = os.urandom(8 * MIB)


def archive(content: bytes = CONTENT) -> memoryview:
    return memoryview(member(b"f", FILE, content) + END_OF_ARCHIVE)


class Halting(Engine):
    """A node that makes an archive, and does something in the middle of it."""

    data = archive()

    def __init__(self, runtime: str, half_way: Callable[[], None]) -> None:
        super().__init__(lambda: CriClient(runtime, timeout_s=10))
        self._half_way = half_way

    def pack(
        self, place: Place, spec: CopySpec, write: Callable[[memoryview], None], watch: Watch
    ) -> None:
        watch.on_skip(Skipped(b"to/pipe", "special", "it is a FIFO"))
        assert watch.on_archive is not None
        watch.on_archive(len(self.data))
        half = len(self.data) // 2
        write(self.data[:half])
        self._half_way()
        write(self.data[half:])


@pytest.fixture
def begin(folder: Path, fake: FakeServer) -> Iterator[Callable[..., InThread]]:
    with ExitStack() as stack:

        def start(half_way: Callable[[], None], **options: float) -> InThread:
            engine = Halting(fake.path, half_way)
            words = str(folder / "agent"), str(folder / "store"), fake.path
            made = InThread(SmallAgent(*words, engine, **options))
            stack.callback(made.close)
            return made

        yield start


@contextmanager
def refused(work: Workstation, folder: Path, tmp_path: Path, why: str) -> Iterator[None]:
    """Expect that a copy fails at once, with its reason, and leaves nothing."""
    with pytest.raises(CopyError, match=why):
        work.out("/to/f", tmp_path / "g")
    yield
    assert work.notes == []
    assert stages_in(tmp_path) == []
    assert not (tmp_path / "g").exists()
    assert work.kept == []
    assert sessions(folder) == []


def test_bytes_go_before_all_are_there(
    begin: Callable[..., InThread], work: Workstation, folder: Path, tmp_path: Path
) -> None:
    begin(lambda: wait_until(lambda: work.relay.passed > 3 * MIB))
    work.out("/to/f", tmp_path / "g")
    assert len(work.skipped) == 1
    assert (tmp_path / "g").read_bytes() == CONTENT
    assert work.totals == [work.bytes, work.bytes]
    assert (work.kept, sessions(folder), work.notes) == ([], [], [])
    work.totals.clear()
    work.bytes = 0
    pieces = b"".join(map(bytes, ends.pack_from(work.method(), b"/to/f", Rules(), work.watch)))
    assert pieces == archive()
    assert work.totals == [work.bytes, work.bytes] == [len(pieces)] * 2


def test_what_cannot_be_made_to_its_end(
    begin: Callable[..., InThread], work: Workstation, folder: Path, tmp_path: Path
) -> None:
    def fail() -> None:
        wait_until(lambda: work.relay.passed > 3 * MIB)
        raise CopyError("a file became shorter")

    agent = begin(fail)
    with refused(work, folder, tmp_path, "a file became shorter"):
        assert [str(end) for _, end in agent.agent.audits] == ["failed"]


def test_more_than_a_quota_allows(
    begin: Callable[..., InThread], work: Workstation, folder: Path, tmp_path: Path
) -> None:
    """It began, so the same session would never succeed: nobody waits for that."""
    begin(lambda: wait_until(lambda: work.relay.passed > 3 * MIB), size_limit=6 * MIB)
    with refused(work, folder, tmp_path, "the quota ContainerCopySizeLimit"):
        assert work.relay.passed < 5 * MIB


def test_a_restart_of_the_agent(
    begin: Callable[..., InThread],
    work: Workstation,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The archive is made again, and nothing of the first counts."""
    is_over: list[bool] = []

    def restart() -> None:
        wait_until(lambda: work.relay.passed > 3 * MIB)
        old.do(old.agent.stop())
        monkeypatch.setattr(Halting, "data", archive(bytes(8 * MIB)))
        monkeypatch.setattr(old.agent._engine, "_half_way", lambda: None)
        old.do(old.agent.start())
        is_over.append(True)

    work.retries = 1000  # its pauses are short
    old = begin(restart)
    work.out("/to/f", tmp_path / "g")
    assert (tmp_path / "g").read_bytes() == bytes(8 * MIB)
    assert [note for note in work.notes if "it begins anew" in note]
    assert is_over == [True]
    assert stages_in(tmp_path) == []
    assert work.kept == []
    wait_until(lambda: sessions(folder) == [])


def test_the_answer_has_size_and_checksum_unless_it_is_wanted_early(
    begin: Callable[..., InThread], work: Workstation
) -> None:
    begin(lambda: time.sleep(0.5))
    spec = {"direction": "From", "path": "/to/f"}
    whole = work.api.begin(spec, "1" * 32)["status"]
    early = work.api.begin(spec | {"options": {"early": True}}, "2" * 32)["status"]
    assert (whole["phase"], early["phase"]) == ("Transferring", "Measuring")
    assert (whole["size"], whole["checksum"]) == (len(archive()), zlib.crc32(archive()))
    assert early["expectedSize"] == len(archive())
    assert "size" not in early
