"""Whose the other end of a TCP connection is."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pycrictl.proxy.serve.owner import UNKNOWN, Owners
from tools.torture.attacks import NOBODY


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


@pytest.mark.skipif(os.geteuid() != 0, reason="needs the rights to become nobody")
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
            process.communicate(b"\n")


def test_nobody_can_be_asked(owners: Owners) -> None:
    owners.close()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()):
            accepted, _ = listener.accept()
            with accepted:
                assert owners.owner(accepted) == UNKNOWN
