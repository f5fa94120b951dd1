"""Places at the stream server: shares by user, whose a connection is, and a flood."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.proxy.serve.http_server import ROOT, Shares
from pycrictl.proxy.serve.owner import UNKNOWN, Owners
from pycrictl.wire import limits
from tests.fakecri.server import FakeServer
from tests.proxy.copier import Copier, stream
from tests.proxy.pulls.test_progress_streams import WEB, ask, read, sandboxes
from tests.waiting import wait_until
from tools.torture.attacks import NOBODY, attack

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs the rights to become nobody")


def shares(*owners: int, count: int) -> Shares[int]:
    """One with a guest of each owner, numbered as they came."""
    made = Shares[int](count)
    for number, owner in enumerate(owners):
        assert made.enter(number, owner, float(number)) is None
    return made


def test_patience_is_short_when_half_is_taken() -> None:
    made = shares(*[NOBODY] * 4, count=10)
    assert made.overdue(limits.HEAD_S - 0.1) == []
    assert made.overdue(limits.HEAD_S) == [0]
    made.enter(4, ROOT, 4.0)
    assert made.overdue(4.0) == [0, 1, 2, 3]
    assert made.overdue(4.0 + limits.HEAD_S) == [0, 1, 2, 3, 4]


def test_patience_with_root_is_short_when_its_own_guests_are_many() -> None:
    made = shares(*[ROOT] * 5, *[NOBODY] * 5, count=10)
    assert made.overdue(4.0 + limits.CROWDED_HEAD_S) == [0, 1, 2, 3, 4]
    made.leave(4, ROOT)
    assert made.overdue(4.0 + limits.CROWDED_HEAD_S) == []


@given(st.lists(st.tuples(st.sampled_from([ROOT, 1, 2, 3]), st.booleans()), max_size=200))
def test_shares(arrivals: list[tuple[int, bool]]) -> None:
    """No user who holds less than another loses a guest, and root none while others hold any."""
    made = Shares[int](10)
    owners: dict[int, int] = {}
    for number, (owner, settles) in enumerate(arrivals):
        loser = made.enter(number, owner, float(number))
        owners[number] = owner
        held = Counter(owners.values())
        if loser is not None:
            assert len(owners) + made.settled == 11
            loser_of = owners.pop(loser)
            if loser_of == ROOT:
                assert set(held) == {ROOT}
            else:
                assert held[loser_of] == max(n for uid, n in held.items() if uid != ROOT)
        if settles and number in owners and made.settled < 9:
            made.settle(number, owner)
            del owners[number]
        assert sorted(made.waiting) == list(owners)


@pytest.fixture
def owners() -> Iterator[Owners]:
    made = Owners()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("family", "client_family", "host"),
    [
        (socket.AF_INET, socket.AF_INET, "127.0.0.1"),
        (socket.AF_INET6, socket.AF_INET6, "::1"),
        (socket.AF_INET, socket.AF_INET6, "::ffff:127.0.0.1"),
    ],
    ids=["4", "6", "4in6"],
)
def test_owner_of_a_connection(
    owners: Owners, family: socket.AddressFamily, client_family: socket.AddressFamily, host: str
) -> None:
    here = "::1" if family == socket.AF_INET6 else "127.0.0.1"
    with (
        socket.create_server((here, 0), family=family) as listener,
        socket.socket(client_family) as client,
    ):
        client.connect((host, listener.getsockname()[1]))
        accepted, _ = listener.accept()
        with accepted:
            assert owners.owner(accepted) == os.geteuid()
            client.close()
            assert owners.owner(accepted) == UNKNOWN
    assert owners.owner(accepted) == UNKNOWN


@needs_root
def test_another_user(owners: Owners) -> None:
    script = (
        f"import os, socket, sys; os.setuid({NOBODY});"
        "held = socket.socket(); held.connect(('127.0.0.1', int(sys.argv[1]))); input()"
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        command = [sys.executable, "-c", script, str(listener.getsockname()[1])]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
            accepted, _ = listener.accept()
            with accepted:
                assert owners.owner(accepted) == NOBODY
                owners.close()  # the kernel cannot be asked
                assert owners.owner(accepted) == UNKNOWN
            process.communicate(b"\n")


@needs_root
def test_flood_by_nobody_keeps_root_out_of_nothing(
    copier: Copier, fake: FakeServer, tmp_path: Path
) -> None:
    """Neither of copies nor of progress; each connection has a time limit of its own."""
    fake.offer("ListPodSandbox", sandboxes)
    proxy = copier.proxy
    source, back = tmp_path / "source", tmp_path / "back"
    source.write_bytes(os.urandom(3_000_000))
    with attack("half-requests", proxy.streams):
        wait_until(lambda: f'why="too many connections" uid={NOBODY}' in proxy.log())
        for _ in range(3):
            stream(copier.ask_to()).close()
            begin(ask(proxy, WEB.id))
        assert read(ask(proxy, WEB.id)) == []
        copier.into(source, "/to/file")
        copier.out("/to/file", back)
        assert back.read_bytes() == source.read_bytes()
    dropped = re.findall(r"stream_dropped .*uid=(\d+)", proxy.log())
    assert set(dropped) == {str(NOBODY)}
    assert "Traceback" not in proxy.log()
    assert proxy.log().count("\n") < 100


def begin(url: str) -> None:
    parts = urlsplit(url)
    assert parts.port
    with socket.create_connection(("127.0.0.1", parts.port), timeout=10) as sock:
        sock.sendall(f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
        assert sock.recv(13) == b"HTTP/1.1 200 "
