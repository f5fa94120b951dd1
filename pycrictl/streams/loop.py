"""The event loop of a command: ending it by signals, ending tasks, and blocking calls."""

from __future__ import annotations

import asyncio
import selectors
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, TypeVar

from pycrictl.base.signals import ENDING, REPEAT_S, blocked, ending, undisturbed
from pycrictl.base.threads import call_in_thread

T = TypeVar("T")


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a new loop; no signal interrupts its construction.

    Once a signal ends the program, the loop no longer reports errors of its tasks.
    """
    with undisturbed():
        # Fail here if descriptors are short: a half-made loop would print errors when dropped.
        selector = selectors.DefaultSelector()
        for end in socket.socketpair():
            end.close()
        loop = asyncio.SelectorEventLoop(selector)
        loop.set_exception_handler(_report)
    return loop


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if ending() is None:
        loop.default_exception_handler(context)


def run_in_loop(
    main: Coroutine[Any, Any, T], *, spares: Callable[[int], bool] = lambda number: False
) -> T:
    """Run a coroutine in a loop of its own. Signals of ``ENDING`` cancel it, then take effect.

    A second signal within ``REPEAT_S`` does not cancel again, to leave the clean-up undisturbed.
    ``spares`` returns whether a signal is ignored altogether.
    """
    with (
        closing(main),
        asyncio.Runner(loop_factory=new_loop) as runner,
        _cancelled_by_signals(runner.get_loop(), spares),
    ):
        return runner.run(main)


@contextmanager
def _cancelled_by_signals(
    loop: asyncio.AbstractEventLoop, spares: Callable[[int], bool]
) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    repeats_until_s = 0.0

    def cancel(number: int) -> None:
        nonlocal repeats_until_s
        if not received and spares(number):
            return
        received.append(number)
        if loop.time() >= repeats_until_s:
            repeats_until_s = loop.time() + REPEAT_S
            for task in asyncio.all_tasks(loop):
                task.cancel()

    # Python's own handlers would raise anywhere in the loop; the loop's are called between its
    # steps. The first signal is raised again at the end, for the handlers that end the program.
    handlers = {
        number: signal.getsignal(number)
        for number in ENDING
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    for number in handlers:
        loop.add_signal_handler(number, cancel, number)
    try:
        yield
    finally:
        with blocked():  # asyncio restores the default action, which a signal must not meet
            for number, handler in handlers.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and return when all have ended. Their exceptions are dropped."""
    cancelled = list(tasks)
    for task in cancelled:
        task.cancel()
    await asyncio.gather(*cancelled, return_exceptions=True)


class Changes:
    """Wakes up all waiting tasks at each change."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def notify(self) -> None:
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self, timeout_s: float) -> None:
        """Return at the next change, or after a time limit in seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._next.wait()


async def in_thread(function: Callable[[], T]) -> T:
    """Call a blocking function in a thread of its own, and return its result.

    A caller that is cancelled meanwhile continues at once. Nothing waits for the thread to end; a
    closing loop would wait for threads of ``asyncio.to_thread``.
    """
    return await asyncio.wrap_future(call_in_thread(function))
