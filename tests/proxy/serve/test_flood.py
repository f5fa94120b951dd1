"""A flood of connections to the stream server, by a user who may do nothing else."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.fakecri.server import FakeServer
from tests.proxy.copier import Copier, stream
from tests.proxy.pulls.test_progress_streams import WEB, ask, read, sandboxes
from tests.waiting import wait_until
from tools.torture.attacks import NOBODY, attack

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs the rights to become nobody")

LIMIT_S = 1.0


@pytest.fixture
def flooded(copier: Copier) -> Iterator[Copier]:
    log = copier.proxy.log
    streams = log().partition(" streams=")[2].split()[0]
    with attack("half-requests", streams):
        wait_until(lambda: f'why="too many connections" uid={NOBODY}' in log())
        yield copier
    assert "Traceback" not in log()
    assert log().count("\n") < 100


def duration_of(begin: Callable[[], object]) -> float:
    began = time.monotonic()
    begin()
    return time.monotonic() - began


def test_flood_by_nobody_does_not_keep_roots_copies_out(flooded: Copier, tmp_path: Path) -> None:
    for _ in range(20):
        url = flooded.ask_to()
        assert duration_of(partial(opened_and_closed, url)) < LIMIT_S
    source, back = tmp_path / "source", tmp_path / "back"
    source.write_bytes(os.urandom(3_000_000))
    assert duration_of(lambda: flooded.into(source, "/to/file")) < 5 * LIMIT_S
    assert duration_of(lambda: flooded.out("/to/file", back)) < 5 * LIMIT_S
    assert back.read_bytes() == source.read_bytes()


def test_flood_by_nobody_does_not_keep_roots_progress_out(
    flooded: Copier, fake: FakeServer
) -> None:
    fake.prepare("ListPodSandbox", sandboxes, repeat=True)
    for _ in range(20):
        url = ask(flooded.proxy, WEB.id)
        assert duration_of(partial(first_byte, url)) < LIMIT_S
    assert read(ask(flooded.proxy, WEB.id)) == []


def opened_and_closed(url: str) -> None:
    stream(url).close()


def first_byte(url: str) -> None:
    parts = urlsplit(url)
    assert parts.port
    with socket.create_connection(("127.0.0.1", parts.port), timeout=10) as sock:
        sock.sendall(f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
        assert sock.recv(13) == b"HTTP/1.1 200 "
