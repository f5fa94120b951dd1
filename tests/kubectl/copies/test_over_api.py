"""Copies between a workstation and a pretended container, by an agent."""

from __future__ import annotations

import os
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pycrictl.agent.copies.admission import REST_S
from pycrictl.copy import ends
from pycrictl.copy.archive.measure import Measured
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import Rules, Skipped
from pycrictl.copy.tree.walk import Watch
from pycrictl.errors import CopyError, Exhausted, PycrictlError
from pycrictl.kubectl.copies.api import Lost
from pycrictl.wire.tar.writer import END_OF_ARCHIVE
from tests.agent.copies.small import Make, SmallAgent, Write
from tests.copy.hostile import FILE, member
from tests.copy.trees import Archive, needs_root, stages_in
from tests.kubectl.copies.conftest import Start
from tests.kubectl.copies.workstation import Workstation
from tests.proxy.copier import ARCHIVE, MIB, Pretended
from tests.waiting import wait_until

pytestmark = [needs_root, pytest.mark.usefixtures("agent")]
Leftovers = Callable[[], list[Path | str]]
SPEC = {"direction": "To", "path": "/to/f", "size": 5, "checksum": 7}


def test_options(work: Workstation, container: Pretended, tmp_path: Path) -> None:
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


def test_what_is_left_out_is_said(work: Workstation, container: Pretended, tmp_path: Path) -> None:
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
    agent: SmallAgent, work: Workstation, container: Pretended, leftovers: Leftovers
) -> None:
    """It is refused at the first bytes that say so, whichever way an archive goes."""
    with (container.root / "to/f").open("wb") as file:
        file.truncate(64 * MIB)
    reading, writing = os.pipe()
    os.write(writing, member(b"f", FILE, bytes(64 * MIB))[:1024])  # and no more comes
    refused = r": more than 1048576 bytes would be copied$"
    with pytest.raises(CopyError, match=refused):
        ends.unpack_to(work.method(), reading, b"/to", Rules(max_size_bytes=MIB), work.watch)
    assert agent.audits == []
    with pytest.raises(CopyError, match=refused):
        next(ends.pack_from(work.method(), b"/to/f", Rules(max_size_bytes=MIB), work.watch))
    assert work.relay.passed < 16 * MIB
    assert (agent.audits, leftovers()) == (["abandoned"], [])
    os.close(reading)
    os.close(writing)


# What breaks


@pytest.mark.parametrize("seed", range(3))
def test_cuts_at_random_offsets(
    work: Workstation, container: Pretended, tmp_path: Path, leftovers: Leftovers, seed: int
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
    assert [*stages_in(container.root), *leftovers()] == []
    # What was on its way when the connection broke goes again, and nothing else.
    assert work.relay.passed < 2 * len(content) + 9 * 3 * MIB


def test_bytes_that_change_on_their_way(
    work: Workstation, container: Pretended, tmp_path: Path
) -> None:
    content = os.urandom(6 * MIB)
    (tmp_path / "f").write_bytes(content)
    for copy, arguments, made in (
        (work.into, (tmp_path / "f", "/to"), container.root / "to/f"),
        (work.out, ("/to/f", tmp_path / "g"), tmp_path / "g"),
    ):
        work.relay.damages = 3
        copy(*arguments)
        assert (made.read_bytes(), work.relay.damages) == (content, 0)


def test_a_container_that_is_replaced(
    work: Workstation, container: Pretended, tmp_path: Path, leftovers: Leftovers
) -> None:
    (tmp_path / "f").write_bytes(os.urandom(64 * MIB))

    def replace() -> None:
        wait_until(lambda: work.relay.passed > 4 * MIB)
        container.pods = {"e" * 64: "pod1"}
        work.relay.cut()

    thread = threading.Thread(target=replace)
    thread.start()
    with pytest.raises(Lost, match="was stopped or replaced since the copy began"):
        work.into(tmp_path / "f", "/to")
    thread.join()
    assert [*(container.root / "to").iterdir(), *leftovers()] == []


@pytest.mark.parametrize("is_replaced", [True, False])
def test_a_client_that_was_killed_before_it_knew_the_size(
    work: Workstation,
    container: Pretended,
    tmp_path: Path,
    leftovers: Leftovers,
    is_replaced: bool,
) -> None:
    """The copy is not resumed into another container."""
    content = os.urandom(3 * MIB)
    (container.root / "to/f").write_bytes(content)
    work.begun_by_a_killed_program("/to/f", tmp_path / "g")
    if is_replaced:
        container.pods = {"e" * 64: "pod1"}
        with pytest.raises(Lost, match="was stopped or replaced since the copy began"):
            work.out("/to/f", tmp_path / "g")
        assert not (tmp_path / "g").exists()
    else:
        work.out("/to/f", tmp_path / "g")
        assert (tmp_path / "g").read_bytes() == content
    assert [note for note in work.notes if "anew" in note] == []
    assert leftovers() == []


def test_the_agent_stays_away(
    agent: SmallAgent,
    work: Workstation,
    container: Pretended,
    tmp_path: Path,
    leftovers: Leftovers,
) -> None:
    """The copy ends after a while; with --resume it begins anew with another agent."""
    content = os.urandom(16 * MIB)
    (tmp_path / "f").write_bytes(content)
    work.retries = 3
    work.relay.bytes_per_s = 16 * MIB  # else it may be over first

    def stop() -> None:
        wait_until(lambda: work.relay.passed > 5 * MIB)
        agent.stop()

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(PycrictlError) as caught:
        work.into(tmp_path / "f", "/to")
    thread.join()
    assert "--resume" in (caught.value.hint or "")
    assert len(work.kept) == 1
    assert stages_in(container.root) == []
    agent.start()
    work.relay.bytes_per_s = 0
    work.resume = True
    work.into(tmp_path / "f", "/to")
    assert (container.root / "to/f").read_bytes() == content
    assert leftovers() == []
    work.into(tmp_path / "f", "/to")
    assert "begins anew" in work.notes[-1]


# Who, and how much


def test_a_session_belongs_to_its_pod(work: Workstation, folder: Path) -> None:
    """And to its user: see ``test_too_many`` of agents."""
    found = work.api.begin({**SPEC, "container": ""})
    name = found["metadata"]["name"]
    assert len(name) == 32
    assert found["status"]["phase"] == "Transferring"
    assert found["spec"]["container"] == "main"
    for other in (("shop", "db"), ("bank", "web")):
        with pytest.raises(Lost, match="is not known"):
            work.api_of(*other, folder / "agent").get(name)
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
    with pytest.raises(Exhausted, match=r"of its disk, and may take 3\.0 MiB; try again later"):
        work.api.begin({**SPEC, "size": 4 * MIB})
    (container.root / "to/f").write_bytes(os.urandom(4 * MIB))
    # What is too much is known before the answer, or when its bytes are asked for.
    with pytest.raises((Exhausted, CopyError), match="of its disk"):
        work.out("/to/f", tmp_path / "g")
    assert (agent.audits, work.kept) == (["refused", "failed"], [])


def test_a_session_without_a_sign_goes(start: Start, work: Workstation) -> None:
    agent = start(lifetime_s=0.6)
    agent.now_s = 0.0
    name = work.api.begin(SPEC)["metadata"]["name"]
    for _ in range(3):
        agent.now_s += 0.5
        time.sleep(0.2)  # it looks more often
        work.api.get(name)
    agent.now_s += 0.7
    wait_until(lambda: agent.audits == ["expired"])
    with pytest.raises(Lost, match="is not known"):
        work.api.get(name)


def test_a_copy_that_rests_gives_its_place_up(start: Start, work: Workstation) -> None:
    """See ``agent/copies/test_parts`` for all who do."""
    agent = start(per_pod=1)
    agent.now_s = 0.0
    first = work.api.begin(SPEC)["metadata"]["name"]
    with pytest.raises(Exhausted, match="ContainerCopiesPerPod"):
        work.api.begin(SPEC)
    agent.now_s = REST_S
    work.api.begin(SPEC)
    assert agent.audits == ["refused", "expired"]
    with pytest.raises(Lost, match="is not known"):
        work.api.get(first)


def test_what_is_not_a_copy(agent: SmallAgent, work: Workstation) -> None:
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
            work.api.begin({**SPEC, **bad})
    with pytest.raises(CopyError, match="too large"):
        work.api.begin({**SPEC, "more": "x" * 100_000})
    assert agent.copies.snapshot() == {"copies": 0, "spool_bytes": 0}


class Changed(Archive):
    def measured(self, *_: object) -> Measured:
        return Measured(len(ARCHIVE), 1, Summary())


def test_an_archive_that_is_not_what_was_announced(work: Workstation, container: Pretended) -> None:
    """It is refused as a whole, and nothing of it was visible."""
    with pytest.raises(CopyError, match="another checksum than announced"):
        work.method().write(Changed([ARCHIVE]), b"/to", Rules(), work.watch)
    assert list((container.root / "to").iterdir()) == []


# While the archive is made

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
