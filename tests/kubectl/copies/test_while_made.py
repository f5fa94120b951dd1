"""Copies out of a container whose bytes go to the workstation while the archive is being made."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from pycrictl.copy import ends
from pycrictl.copy.rules.policy import Rules, Skipped
from pycrictl.copy.tree.walk import Watch
from pycrictl.errors import CopyError
from pycrictl.wire.tar.writer import END_OF_ARCHIVE
from tests.agent.copies.small import Make, Write
from tests.copy.hostile import FILE, member
from tests.copy.trees import needs_root, stages_in
from tests.kubectl.copies.conftest import Start
from tests.kubectl.copies.workstation import Workstation
from tests.proxy.copier import MIB
from tests.waiting import wait_until

pytestmark = [needs_root, pytest.mark.usefixtures("container")]

Leftovers = Callable[[], list[Path | str]]
CONTENT = os.urandom(8 * MIB)


def archive(content: bytes = CONTENT) -> memoryview:
    return memoryview(member(b"f", FILE, content) + END_OF_ARCHIVE)


def making(half_way: Callable[[], object], data: memoryview = archive()) -> Make:  # noqa: B008 (the same each time)
    """Make an archive, and do something in the middle of it."""

    def make(write: Write, watch: Watch) -> None:
        watch.on_skip(Skipped(b"to/pipe", "special", "it is a FIFO"))
        assert watch.on_archive is not None
        watch.on_archive(len(data))
        half = len(data) // 2
        write(data[:half])
        half_way()
        write(data[half:])

    return make


def test_bytes_go_before_all_are_there(
    start: Start, work: Workstation, tmp_path: Path, leftovers: Leftovers
) -> None:
    start(make=making(lambda: wait_until(lambda: work.relay.passed > 3 * MIB)))
    work.out("/to/f", tmp_path / "g")
    assert len(work.skipped) == 1
    assert (tmp_path / "g").read_bytes() == CONTENT
    assert work.totals == [work.bytes, work.bytes]
    assert (leftovers(), work.notes) == ([], [])
    work.totals.clear()
    work.bytes = 0
    pieces = b"".join(map(bytes, ends.pack_from(work.method(), b"/to/f", Rules(), work.watch)))
    assert pieces == archive()
    assert work.totals == [work.bytes, work.bytes] == [len(pieces)] * 2


@pytest.mark.parametrize(
    ("why", "options"),
    [
        ("a file became shorter", {}),
        # It began, so the same session would never succeed: nobody waits for that.
        ("the quota ContainerCopySizeLimit", {"size_limit": 6 * MIB}),
    ],
)
def test_what_cannot_be_made_to_its_end(
    start: Start,
    work: Workstation,
    tmp_path: Path,
    leftovers: Leftovers,
    why: str,
    options: dict[str, int],
) -> None:
    """The copy fails at once, with the reason, and leaves nothing."""

    def half_way() -> None:
        wait_until(lambda: work.relay.passed > 3 * MIB)
        if not options:
            raise CopyError(why)

    agent = start(make=making(half_way), **options)
    with pytest.raises(CopyError, match=why):
        work.out("/to/f", tmp_path / "g")
    assert work.relay.passed < 5 * MIB
    assert (agent.audits, work.notes) == (["failed"], [])
    assert not (tmp_path / "g").exists()
    assert [*stages_in(tmp_path), *leftovers()] == []


def test_a_restart_of_the_agent(
    start: Start, work: Workstation, tmp_path: Path, leftovers: Leftovers
) -> None:
    """The archive is made again, and nothing of the first counts."""
    is_over: list[bool] = []

    def restart() -> None:
        wait_until(lambda: work.relay.passed > 3 * MIB)
        agent.stop()
        agent.engine.make = making(lambda: None, archive(bytes(8 * MIB)))
        agent.start()
        is_over.append(True)

    work.retries = 1000  # its pauses are short
    agent = start(make=making(restart))
    work.out("/to/f", tmp_path / "g")
    assert (tmp_path / "g").read_bytes() == bytes(8 * MIB)
    assert [note for note in work.notes if "it begins anew" in note]
    assert is_over == [True]
    assert stages_in(tmp_path) == []
    wait_until(lambda: leftovers() == [])


def test_the_answer_has_size_and_checksum_unless_it_is_wanted_early(
    start: Start, work: Workstation
) -> None:
    start(make=making(lambda: time.sleep(0.5)))
    spec = {"direction": "From", "path": "/to/f"}
    whole = work.api.begin(spec, "1" * 32)["status"]
    early = work.api.begin(spec | {"options": {"early": True}}, "2" * 32)["status"]
    assert (whole["phase"], early["phase"]) == ("Transferring", "Measuring")
    assert (whole["size"], whole["checksum"]) == (len(archive()), zlib.crc32(archive()))
    assert early["expectedSize"] == len(archive())
    assert "size" not in early
