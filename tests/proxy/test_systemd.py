"""States and keep-alives, as systemd has them."""

from __future__ import annotations

import io
import os
import socket
import tempfile
from pathlib import Path

import pytest

from pycrictl.servicelog import is_journal, notify, watchdog_s


@pytest.mark.parametrize("is_abstract", [False, True])
def test_systemd_is_told(folder: Path, is_abstract: bool) -> None:
    address = f"\0{folder}" if is_abstract else str(folder / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(10)
        environ = {"NOTIFY_SOCKET": address.replace("\0", "@")}
        assert notify("READY=1\nSTATUS=serving", environ)
        assert manager.recv(4096) == b"READY=1\nSTATUS=serving"


@pytest.mark.parametrize("address", [None, "", "relative", "vsock:2:1", "/nonexistent/notify"])
def test_nobody_to_tell(address: str | None) -> None:
    assert not notify("READY=1", {} if address is None else {"NOTIFY_SOCKET": address})


def test_when_a_keep_alive_is_due() -> None:
    assert watchdog_s({}) is None
    assert watchdog_s({"WATCHDOG_USEC": "30000000"}) == 30.0
    mine = {"WATCHDOG_USEC": "500000", "WATCHDOG_PID": str(os.getpid())}
    assert watchdog_s(mine) == 0.5
    assert watchdog_s({**mine, "WATCHDOG_PID": "1"}) is None
    assert watchdog_s({**mine, "WATCHDOG_USEC": "nonsense"}) is None


def test_which_stream_is_the_journal() -> None:
    with tempfile.TemporaryFile("w") as file:
        found = os.fstat(file.fileno())
        name = f"{found.st_dev}:{found.st_ino}"
        assert is_journal(file, {"JOURNAL_STREAM": name})
        assert not is_journal(file, {"JOURNAL_STREAM": "1:2"})
        assert not is_journal(file, {})
        assert not is_journal(io.StringIO(), {"JOURNAL_STREAM": name})
