from __future__ import annotations

import asyncio
import logging

import pytest

from pycrictl.servicelog import Log, Seldom, pairs
from pycrictl.wire import limits


def test_plain_words_stay_plain() -> None:
    fields = {"image": "a.b/c:1", "pod": "ns/name", "n": 3, "s": 0.5}
    assert pairs("pull", fields) == "pull image=a.b/c:1 pod=ns/name n=3 s=0.5"


def test_nothing_from_outside_begins_a_field_or_line() -> None:
    assert pairs("pull", {"image": "x outcome=OK"}) == 'pull image="x outcome=OK"'
    assert pairs("pull", {"image": "x\nlevel=INFO pull"}) == r'pull image="x\nlevel=INFO pull"'
    assert pairs("pull", {"image": "\x1b[2J", "quote": 'a"b'}) == (
        r'pull image="\u001b[2J" quote="a\"b"'
    )


def test_empty_fields_are_left_out() -> None:
    assert pairs("pull", {"error": "", "n": 0}) == "pull n=0"


def test_long_values_are_cut() -> None:
    assert len(pairs("pull", {"error": "x" * 10_000})) < 600


def test_of_a_flood_there_are_some_lines_and_a_number(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "FAULT_COUNT_S", 0.1)

    async def flood() -> None:
        seldom = Seldom(Log("test").warning, "pull", outcome="gone")
        for number in range(10_000):
            seldom(number=number)
        await asyncio.sleep(0.3)
        assert seldom.count == 10_000

    asyncio.run(flood())
    messages = [record.message for record in caplog.records]
    assert messages[: limits.FAULT_LINES] == [f"pull number={n}" for n in range(limits.FAULT_LINES)]
    assert messages[limits.FAULT_LINES :] == [
        f"pull outcome=gone left_out={10_000 - limits.FAULT_LINES}"
    ]


def test_lines_of_asyncio_are_lines_of_the_log(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Of callbacks that fail, and of tasks that nobody waits for."""

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
