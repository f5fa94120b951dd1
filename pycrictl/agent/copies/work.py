"""Work on files, which blocks: each job has a daemon thread, which ends with its work.

Not one of a pool, which waits for its threads at the end: a file system that hangs must neither
keep the agent alive nor take a place from other copies.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def start(work: Callable[[], T]) -> asyncio.Future[T]:
    """Do something in a thread of its own; return what becomes of it."""
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()  # so that whoever gives up waiting leaves it as it is
    threading.Thread(target=_carry_out, args=(work, done), daemon=True).start()
    return asyncio.wrap_future(done)


async def run(work: Callable[[], T]) -> T:
    """Do something in a thread, and wait for its end even if this is cancelled.

    For what touches a session's files: whoever comes next finds them at rest.
    """
    future = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        if not future.cancelled():
            future.exception()
        raise


def _carry_out(work: Callable[[], T], done: Future[T]) -> None:
    try:
        result = work()
    except BaseException as exc:
        done.set_exception(exc)
    else:
        done.set_result(result)
