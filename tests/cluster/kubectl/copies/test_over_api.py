"""Copies between a workstation and a fake container, through an agent."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from pycrictl.base.errors import ConnectError, CopyError, Exhausted, PycrictlError, StreamError
from pycrictl.cluster.kubectl.copies import Lost
from pycrictl.copy import methods
from pycrictl.copy.archive.pack import Measured
from pycrictl.copy.rules.outcome import Summary
from pycrictl.copy.rules.policy import Rules, Skipped
from pycrictl.copy.tree.walk import Watch
from pycrictl.streams.wire.tar.header import END_OF_ARCHIVE
from tests.cluster.agent.copies.small import Make, Write
from tests.cluster.kubectl.copies.workstation import Workstation
from tests.copy.hostile import FILE, member
from tests.copy.trees import Archive, times_in
from tests.proxy.copier import ARCHIVE, MIB
from tests.support.containers import stop
from tests.waiting import wait_until

pytestmark = pytest.mark.root

TO = {"direction": "To", "path": "/to/f", "size": 5, "checksum": 7}
FROM = {"direction": "From", "path": "/to/f"}


def test_options(work: Workstation) -> None:
    here, there = work.here / "f", work.there / "f"
    here.write_text("new")
    here.chmod(0o4755)
    os.utime(here, (1, 1))
    work.into(here, "/to", archive=True)
    assert (there.stat().st_mode & 0o7777, there.stat().st_mtime) == (0o4755, 1)
    with pytest.raises(CopyError, match="more than 2 bytes"):
        work.into(here, "/to", max_size_bytes=2)
    (work.there / "l").symlink_to("f")
    work.out("/to/l", work.here / "o", follow=True)
    assert (work.here / "o").read_text() == "new"


def test_fractions_of_times_arrive_where_they_are_kept(work: Workstation) -> None:
    (work.there / "f").write_text("new")
    os.utime(work.there / "f", ns=(0, 1_500_000_001))
    work.out("/to/f", work.here / "o", archive=True)
    assert (work.here / "o").stat().st_mtime_ns == 1_500_000_001
    with work.method().read(b"/to/f", Rules(), work.watch) as archive:
        assert times_in(archive.pieces()) == [10**9]
    assert times_in(methods.pack_from(work.method(), b"/to/f", Rules(), work.watch)) == [
        1_500_000_001
    ]


def test_what_is_left_out_is_said(work: Workstation) -> None:
    os.mkfifo(work.there / "pipe")
    work.out("/to", work.here / "o")
    (work.here / "d").mkdir()
    (work.here / "d/out").symlink_to("/etc")
    summary = work.into(work.here / "d", "/to")
    assert (summary.links, summary.skipped) == (0, 1)
    left_out = [(entry.path, entry.rule) for entry in work.skipped]
    assert left_out == [(b"to/pipe", "special"), (b"d/out", "outward-link")]


def test_more_than_is_allowed(work: Workstation) -> None:
    """A copy is refused at the first bytes that announce too much, in both directions."""
    rules, refused = Rules(max_size_bytes=MIB), r": more than 1048576 bytes would be copied$"
    with (work.there / "f").open("wb") as file:
        file.truncate(64 * MIB)
    reading, writing = os.pipe()
    os.write(writing, member(b"f", FILE, bytes(64 * MIB))[:1024])  # and nothing else
    with pytest.raises(CopyError, match=refused):
        methods.unpack_to(work.method(), reading, b"/to", rules, work.watch)
    assert work.agent.audits == []
    with pytest.raises(CopyError, match=refused):
        next(methods.pack_from(work.method(), b"/to/f", rules, work.watch))
    assert work.relay.passed < 16 * MIB
    assert (work.agent.audits, work.left()) == (["abandoned"], [])
    os.close(reading)
    os.close(writing)


# Failures


@pytest.mark.parametrize("seed", range(3))
def test_cuts_at_random_offsets(work: Workstation, seed: int) -> None:
    content = os.urandom(12 * MIB + seed)
    (work.here / "f").write_bytes(content)
    work.relay._random.seed(seed)
    work.relay.most, work.relay.cuts = 5 * MIB, 6
    work.into(work.here / "f", "/to")
    assert work.relay.cuts <= 3
    assert (work.there / "f").read_bytes() == content
    work.relay.cuts = 6
    work.out("/to/f", work.here / "g")
    assert (work.here / "g").read_bytes() == content
    assert work.notes
    assert work.left() == []
    # Only bytes in flight at a cut are sent again.
    assert work.relay.passed < 2 * len(content) + 9 * 3 * MIB


def test_bytes_that_change_on_their_way(work: Workstation) -> None:
    content = os.urandom(6 * MIB)
    (work.here / "f").write_bytes(content)
    for copy, words, made in (
        (work.into, (work.here / "f", "/to"), work.there / "f"),
        (work.out, ("/to/f", work.here / "g"), work.here / "g"),
    ):
        work.relay.damages = 3
        copy(*words)
        assert (made.read_bytes(), work.relay.damages) == (content, 0)


def test_a_container_that_is_replaced(work: Workstation) -> None:
    (work.here / "f").write_bytes(os.urandom(64 * MIB))

    def replace() -> None:
        stop(work.container.process)
        work.relay.bytes_per_s = 0
        work.relay.cut()

    work.relay.bytes_per_s = 4 * MIB  # the container is dead long before the copy could end
    with pytest.raises(Lost, match="has stopped"), work.meanwhile(4 * MIB, replace):
        work.into(work.here / "f", "/to")
    assert [*work.there.iterdir(), *work.left()] == []


def test_the_agent_stays_away(work: Workstation) -> None:
    """The copy ends after its retries, and the agent discards its part."""
    content = os.urandom(16 * MIB)
    (work.here / "f").write_bytes(content)
    work.retries = 3
    work.relay.bytes_per_s = 16 * MIB  # otherwise the copy may end first
    with pytest.raises(PycrictlError) as caught, work.meanwhile(5 * MIB, work.agent.stop):
        work.into(work.here / "f", "/to")
    assert isinstance(caught.value, StreamError | ConnectError)
    assert [note for note in work.notes if note.endswith("; retrying")]
    assert [*work.there.iterdir(), *work.left()] == []


# Killed agents


@pytest.mark.parametrize("way", ["to", "from"])
def test_an_agent_that_is_killed(way: str, work: Workstation) -> None:
    """The copy fails at the next agent, and nothing of it is left."""
    for top in (work.here, work.there):
        (top / "f").write_bytes(os.urandom(32 * MIB))
    work.retries = 1000
    work.relay.bytes_per_s = 4 * MIB  # the agent is dead long before the copy could end
    work.start_process(900)
    copy, words = (
        (work.into, (work.here / "f", "/to/g"))
        if way == "to"
        else (work.out, ("/to/f", work.here / "g"))
    )
    why = r"the agent was restarted, .*; start the copy again$"
    with pytest.raises(Lost, match=why), work.meanwhile(2 * MIB, lambda: work.start_process(900)):
        copy(*words)
    assert not (work.there / "g").exists()
    assert not (work.here / "g").exists()
    wait_until(lambda: work.left() == [])


# Owners and quotas


def test_a_session_belongs_to_its_pod(work: Workstation) -> None:
    """``test_too_many`` in ``agent/copies`` shows that it also belongs to its user."""
    session = work.api.begin({**TO, "container": ""})
    name = session["metadata"]["name"]
    assert len(name) == 32
    assert (session["status"]["phase"], session["spec"]["container"]) == ("Transferring", "main")
    for other in (("shop", "db"), ("bank", "web")):
        with pytest.raises(Lost, match="is not known"):
            work.api_of(*other).get(name)
    assert work.api.get(name)["status"]["offset"] == 0
    with pytest.raises(CopyError, match="only 0 of 5 bytes have arrived"):
        work.api.commit(name)
    work.api.abandon(name)
    with pytest.raises(Lost):
        work.api.get(name)


def test_the_quota_of_the_disk(work: Workstation) -> None:
    agent = work.start(spool_limit=3 * MIB)
    with pytest.raises(Exhausted, match=r"of its disk, but the limit is 3\.0 MiB; try again later"):
        work.api.begin({**TO, "size": 4 * MIB})
    (work.there / "f").write_bytes(os.urandom(4 * MIB))
    # The excess is found before the answer, or when the bytes are requested.
    with pytest.raises((Exhausted, CopyError), match="of its disk"):
        work.out("/to/f", work.here / "g")
    assert agent.audits == ["refused", "failed"]


def test_what_is_not_a_copy(work: Workstation) -> None:
    changes: tuple[dict[str, Any], ...] = (
        {"direction": "Up"},
        *({"path": path} for path in ("to", "/a/../b", "/a\0b", 5, "/\ud800")),
        *({"size": size} for size in (-1, 1 << 64, True)),
        {"checksum": 1 << 32},
        {"options": {"archive": 1}},
        {"options": []},
    )
    for bad in changes:
        with pytest.raises(CopyError):
            work.api.begin({**TO, **bad})
    with pytest.raises(CopyError, match="larger than 64 KiB"):
        work.api.begin({**TO, "more": "x" * 100_000})
    assert work.agent.copies.current == {}
    assert work.agent.copies.slots.held_bytes == 0


class Changed(Archive):
    def measured(self, *_: object) -> Measured:
        return Measured(len(ARCHIVE), 1, Summary())


def test_an_archive_that_is_not_what_was_announced(work: Workstation) -> None:
    """It is refused as a whole; no part of it may become visible."""
    with pytest.raises(CopyError, match="does not have the announced checksum"):
        work.write(Changed([ARCHIVE]))
    assert list(work.there.iterdir()) == []


# While the archive is made

CONTENT = os.urandom(8 * MIB)


WHOLE = memoryview(member(b"f", FILE, CONTENT) + END_OF_ARCHIVE)


def making(half_way: Callable[[], object]) -> Make:
    """Return a function that makes an archive and calls ``half_way`` in the middle."""

    def make(write: Write, watch: Watch) -> None:
        watch.on_skip(Skipped(b"to/pipe", "special", "it is a FIFO"))
        assert watch.on_archive is not None
        watch.on_archive(len(WHOLE))
        half = len(WHOLE) // 2
        write(WHOLE[:half])
        half_way()
        write(WHOLE[half:])

    return make


def test_bytes_go_before_all_are_there(work: Workstation) -> None:
    work.start(make=making(lambda: work.wait_for(3 * MIB)))
    work.out("/to/f", work.here / "g")
    assert len(work.skipped) == 1
    assert (work.here / "g").read_bytes() == CONTENT
    assert work.totals == [work.bytes, work.bytes]
    assert (work.left(), work.notes) == ([], [])
    work.totals.clear()
    work.bytes = 0
    pieces = b"".join(map(bytes, methods.pack_from(work.method(), b"/to/f", Rules(), work.watch)))
    assert pieces == WHOLE
    assert work.totals == [work.bytes, work.bytes] == [len(pieces)] * 2


@pytest.mark.parametrize("options", [{}, {"size_limit": 6 * MIB}], ids=["source", "quota"])
def test_what_cannot_be_made_to_its_end(work: Workstation, options: dict[str, int]) -> None:
    """The copy fails at once, with the reason, and leaves nothing.

    Once bytes have been sent, a retry would exceed the same quota again, so there is none.
    """
    why = "the quota ContainerCopySizeLimit" if options else "a file became shorter"

    def half_way() -> None:
        work.wait_for(3 * MIB)
        if not options:
            raise CopyError(why)

    agent = work.start(make=making(half_way), **options)
    with pytest.raises(CopyError, match=why):
        work.out("/to/f", work.here / "g")
    assert work.relay.passed < 5 * MIB
    assert (agent.audits, work.notes, work.left()) == (["failed"], [], [])
    assert not (work.here / "g").exists()
