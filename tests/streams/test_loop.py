"""The event loop of a command: signals end it cleanly, and no thread delays its end."""

from __future__ import annotations

import asyncio
import signal
import threading
from typing import Any

import pytest

from pycrictl.base.signals import ENDING
from pycrictl.streams.loop import end_tasks, in_thread, run_in_loop


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_cancels_and_goes_on(number: signal.Signals) -> None:
    seen: list[str] = []

    async def session() -> None:
        try:
            signal.raise_signal(number)
            await asyncio.sleep(20)
        finally:
            seen.append("cleaned")

    def ended(number: int, frame: object) -> None:
        seen.append("ended")

    handler = signal.signal(number, ended)
    try:
        with pytest.raises(asyncio.CancelledError):
            run_in_loop(session())
        assert signal.getsignal(number) is ended
    finally:
        signal.signal(number, handler)
    assert seen == ["cleaned", "ended"]


def test_a_second_signal_does_not_disturb_the_clearing_up() -> None:
    seen: list[str] = []

    async def session() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(20)
        finally:
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(0.01)
            seen.append("cleaned")

    with pytest.raises(KeyboardInterrupt):
        run_in_loop(session())
    assert seen == ["cleaned"]


def test_a_later_signal_ends_a_clearing_up_that_hangs() -> None:
    async def session() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(20)
        finally:
            asyncio.get_running_loop().call_later(1, signal.raise_signal, signal.SIGINT)
            await asyncio.Event().wait()

    with pytest.raises(KeyboardInterrupt):
        run_in_loop(session())


def test_a_signal_while_handlers_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """It meets its former handler, never the default action."""
    seen: list[str] = []
    handler = signal.signal(signal.SIGTERM, lambda *_: seen.append("ended"))
    change = signal.signal

    def disturbed(number: int, handler: Any) -> Any:
        if "cleaned" in seen:
            seen.clear()
            signal.raise_signal(signal.SIGTERM)
        return change(number, handler)

    async def session() -> None:
        monkeypatch.setattr(signal, "signal", disturbed)
        seen.append("cleaned")

    try:
        run_in_loop(session())
        assert seen == ["ended"]
    finally:
        monkeypatch.undo()
        signal.signal(signal.SIGTERM, handler)


def test_what_is_ignored_stays_so() -> None:
    async def session() -> str:
        signal.raise_signal(signal.SIGHUP)
        await asyncio.sleep(0)
        return "done"

    handler = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run_in_loop(session()) == "done"
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, handler)


def test_tasks_end_whatever_they_raise() -> None:
    async def stay() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            raise ValueError("no")

    async def session() -> list[bool]:
        tasks = [asyncio.create_task(stay()) for _ in range(2)]
        await asyncio.sleep(0)
        await end_tasks(tasks)
        return [isinstance(task.exception(), ValueError) for task in tasks]

    assert run_in_loop(session()) == [True, True]


def test_nobody_waits_for_a_thread_that_hangs() -> None:
    release = threading.Event()

    async def call() -> None:
        signal.raise_signal(signal.SIGINT)
        await in_thread(release.wait)

    with pytest.raises(KeyboardInterrupt):
        run_in_loop(call())
    release.set()
