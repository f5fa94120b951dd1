"""Waiting for what other tasks, threads and processes do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

WAIT_S = 60.0
"""How long nothing may take, on a machine that has much else to do."""

PAUSE_S = 0.02


def settled(condition: Callable[[], object], *, limit_s: float = WAIT_S) -> bool:
    """Whether something comes true in time.

    Where a look takes long itself, such as one that runs a program, pauses are longer: else those
    who wait would take the processor from whom they wait for.
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
    """Return when something has come true. If it does not, the failure shows a log."""
    assert settled(condition), log.read_text() if log else "it never became true"


async def until(condition: Callable[[], object]) -> None:
    """What ``wait_until`` does, in an event loop."""
    give_up_at = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < give_up_at, "it never became true"
        await asyncio.sleep(PAUSE_S)
