from __future__ import annotations

import asyncio
import io
import logging
import os
import socket
import tempfile
from pathlib import Path

import pytest

from pycrictl.base import limits
from pycrictl.base.servicelog import Log, RateLimitedLog, is_journal, notify, pairs, watchdog_s


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"image": "a.b/c:1", "n": 3, "s": 0.5}, "image=a.b/c:1 n=3 s=0.5"),
        ({"image": "x outcome=OK"}, 'image="x outcome=OK"'),
        ({"image": "x\nlevel=INFO pull"}, r'image="x\nlevel=INFO pull"'),
        ({"image": "\x1b[2J", "quote": 'a"b'}, r'image="\u001b[2J" quote="a\"b"'),
        ({"error": "", "n": 0}, "n=0"),
        ({"error": "x" * 10_000}, f'error="{"x" * 500}\\u2026"'),
    ],
    ids=["plain", "field", "line", "terminal", "empty", "long"],
)
def test_nothing_from_outside_begins_a_field_or_line(fields: dict[str, object], line: str) -> None:
    assert pairs("pull", fields) == f"pull {line}"


def test_of_a_flood_there_are_some_lines_and_a_number(caplog: pytest.LogCaptureFixture) -> None:
    async def flood() -> None:
        limited = RateLimitedLog(Log("test").warning, "pull", count_s=0.1, outcome="gone")
        for number in range(10_000):
            limited(number=number)
        await asyncio.sleep(0.3)
        assert limited.count == 10_000

    asyncio.run(flood())
    messages = [record.message for record in caplog.records]
    assert messages[: limits.FAULT_LINES] == [f"pull number={n}" for n in range(limits.FAULT_LINES)]
    assert messages[limits.FAULT_LINES :] == [
        f"pull outcome=gone left_out={10_000 - limits.FAULT_LINES}"
    ]


def test_lines_of_asyncio_are_lines_of_the_log(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """They come from callbacks that fail, and from tasks that are never awaited."""

    def fail(why: str) -> None:
        raise ValueError(f"{why}\nlevel=INFO forged=1")

    async def faults() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(100):
            loop.call_soon(fail, "of a callback")
        await asyncio.sleep(0)

    with Log("test").of_library("asyncio"):
        asyncio.run(faults())
        logging.getLogger("asyncio").warning("at the end")
    *lines, last = [record.message for record in caplog.records]
    assert len(lines) == limits.FAULT_LINES
    assert all(line.startswith('asyncio message="Exception in callback ') for line in lines)
    assert all("ValueError('of a callback\\\\nlevel" in line and "\n" not in line for line in lines)
    assert all("test_servicelog.py:" in line.partition(" at=")[2] for line in lines)
    assert last == 'asyncio message="at the end"'
    assert capsys.readouterr().err == ""


# systemd


@pytest.mark.parametrize("is_abstract", [False, True])
def test_systemd_is_told(tmp_path: Path, is_abstract: bool) -> None:
    address = f"\0{tmp_path}" if is_abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(10)
        assert notify("READY=1\nSTATUS=serving", {"NOTIFY_SOCKET": address.replace("\0", "@")})
        assert manager.recv(4096) == b"READY=1\nSTATUS=serving"
    for nobody in ("", "relative", "vsock:2:1", "/nonexistent/notify"):
        assert not notify("READY=1", {"NOTIFY_SOCKET": nobody})
    assert not notify("READY=1", {})


def test_when_a_keep_alive_is_due() -> None:
    assert watchdog_s({}) is None
    assert watchdog_s({"WATCHDOG_USEC": "30000000"}) == 30.0
    mine = {"WATCHDOG_USEC": "500000", "WATCHDOG_PID": str(os.getpid())}
    assert watchdog_s(mine) == 0.5
    assert watchdog_s({**mine, "WATCHDOG_PID": "1"}) is None
    assert watchdog_s({**mine, "WATCHDOG_USEC": "nonsense"}) is None


def test_which_stream_is_the_journal() -> None:
    with tempfile.TemporaryFile("w") as file:
        status = os.fstat(file.fileno())
        name = f"{status.st_dev}:{status.st_ino}"
        assert is_journal(file, {"JOURNAL_STREAM": name})
        assert not is_journal(file, {"JOURNAL_STREAM": "1:2"})
        assert not is_journal(file, {})
        assert not is_journal(io.StringIO(), {"JOURNAL_STREAM": name})
