"""Connections of the stream server during a flood."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.fakecri.server import FakeServer
from tests.proxy.copier import Copier, stream
from tests.support.progress_streams import WEB, ask, read, sandboxes
from tests.waiting import wait_until
from tools.torture.attacks import attack


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
        wait_until(lambda: 'why="too many connections"' in proxy.log())
        for _ in range(3):
            stream(copier.ask_to()).close()
            begin(ask(proxy, WEB.id))
        assert [pull.layers for pull in read(ask(proxy, WEB.id))] == [()]
        copier.into(source, "/to/file")
        copier.out("/to/file", back)
        assert back.read_bytes() == source.read_bytes()
    assert "Traceback" not in proxy.log()
    assert proxy.log().count("\n") < 100


def begin(url: str) -> None:
    parts = urlsplit(url)
    assert parts.port
    with socket.create_connection(("127.0.0.1", parts.port), timeout=10) as sock:
        sock.sendall(f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
        assert sock.recv(13) == b"HTTP/1.1 200 "
