"""Connections of the stream server: shares of users, owners, and a flood."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.proxy.serve.http_server import ROOT, UNKNOWN, Pending, Shares, owner
from pycrictl.wire import limits
from tests.fakecri.server import FakeServer
from tests.proxy.copier import Copier, stream
from tests.proxy.pulls.test_progress_streams import WEB, ask, read, sandboxes
from tests.waiting import wait_until
from tools.torture.attacks import NOBODY, attack


def guest(owner: int, since: float) -> Pending:
    return Pending(cast("socket.socket", None), owner, since)


def test_patience_is_short_when_half_is_taken_with_root_when_it_has_half() -> None:
    made = Shares(10)

    def overdue(now: float) -> list[float]:
        return [each.since for each in made.overdue(now)]

    for number in range(4):
        made.enter(guest(NOBODY, float(number)))
    assert overdue(limits.HEAD_S - 0.1) == []
    assert overdue(limits.HEAD_S) == [0]
    made.enter(guest(ROOT, 4.0))
    soon = 4.0 + limits.CROWDED_HEAD_S
    assert overdue(soon) == [0, 1, 2, 3]
    assert overdue(4.0 + limits.HEAD_S) == [0, 1, 2, 3, 4]
    for _ in range(4):
        made.enter(guest(ROOT, soon))
    assert overdue(soon) == [0, 1, 2, 3, 4]


@given(st.lists(st.tuples(st.sampled_from([ROOT, 1, 2, 3]), st.booleans()), max_size=200))
def test_shares(arrivals: list[tuple[int, bool]]) -> None:
    """Only the user with the most pending connections loses one; root only if it is alone."""
    made = Shares(10)
    for uid, settles in arrivals:
        held = Counter(each.owner for each in made.waiting) + Counter((uid,))
        new = guest(uid, 0.0)
        loser = made.enter(new)
        if loser is not None:
            assert len(made.waiting) + made.settled == 10
            assert loser not in made.waiting
            if loser.owner == ROOT:
                assert set(held) == {ROOT}
            else:
                assert held[loser.owner] == max(n for uid, n in held.items() if uid != ROOT)
        assert Counter(each.owner for each in made.waiting) == held - Counter(
            () if loser is None else (loser.owner,)
        )
        if settles and new in made.waiting and made.settled < 9:
            made.settle(new)


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
    family: socket.AddressFamily, client_family: socket.AddressFamily, host: str
) -> None:
    here = "::1" if family == socket.AF_INET6 else "127.0.0.1"
    with (
        socket.create_server((here, 0), family=family) as listener,
        socket.socket(client_family) as client,
    ):
        client.connect((host, listener.getsockname()[1]))
        accepted, _ = listener.accept()
        with accepted:
            assert owner(accepted) == os.geteuid()
            client.close()
            assert owner(accepted) == UNKNOWN
    assert owner(accepted) == UNKNOWN


@pytest.mark.root
def test_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
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
                assert owner(accepted) == NOBODY
                monkeypatch.setattr(socket, "AF_NETLINK", -1)  # the query to the kernel fails
                assert owner(accepted) == UNKNOWN
            process.communicate(b"\n")


@pytest.mark.root
def test_flood_by_nobody_keeps_root_out_of_nothing(
    copier: Copier, fake: FakeServer, tmp_path: Path
) -> None:
    """Root can still copy files and watch pulls, each within the timeout of its connection."""
    fake.offer("ListPodSandbox", sandboxes)
    proxy = copier.proxy
    source, back = tmp_path / "source", tmp_path / "back"
    source.write_bytes(os.urandom(3_000_000))
    with attack("half-requests", proxy.streams):
        wait_until(lambda: f'why="too many connections" uid={NOBODY}' in proxy.log())
        for _ in range(3):
            stream(copier.ask_to()).close()
            begin(ask(proxy, WEB.id))
        assert [pull.layers for pull in read(ask(proxy, WEB.id))] == [()]
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
