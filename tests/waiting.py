"""Waiting for other tasks, threads and processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

WAIT_S = 60.0
"""The longest that anything may take, on a busy machine."""

PAUSE_S = 0.02


def settled(condition: Callable[[], object], *, limit_s: float = WAIT_S) -> bool:
    """Return whether a condition becomes true in time.

    After a slow check, such as one that runs a program, the pause is longer: otherwise waiting
    would take the processor from the program that is waited for.
    """
    give_up_at = time.monotonic() + limit_s
    while True:
        looked_at = time.monotonic()
        if condition():
            return True
        now = time.monotonic()
        if now > give_up_at:
            return False
        time.sleep(max(PAUSE_S, 2 * (now - looked_at)))


def wait_until(condition: Callable[[], object], *, log: Path | None = None) -> None:
    """Return when a condition becomes true; on timeout, fail and show the log."""
    assert settled(condition), log.read_text() if log else "it never became true"


async def until(condition: Callable[[], object]) -> None:
    """Do what ``wait_until`` does, in an event loop."""
    give_up_at = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < give_up_at, "it never became true"
        await asyncio.sleep(PAUSE_S)
