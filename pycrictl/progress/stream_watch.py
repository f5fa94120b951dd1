"""Watches pulls through progress streams (KEP-5334): a runtime's own, or those of a cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final

from pycrictl.errors import (
    ConnectError,
    NotFound,
    PycrictlError,
    RemoteProtocolError,
    RuntimeFault,
    StreamError,
    Unavailable,
    UpgradeRefused,
)
from pycrictl.progress import report_stream
from pycrictl.progress.endings import (
    REOPEN_PAUSES_S,
    Endings,
    Pace,
    Sink,
    WatchOutcome,
    failures_in,
)
from pycrictl.progress.failures import cause
from pycrictl.pulls.messages import MessageReader
from pycrictl.pulls.state import PullState, View
from pycrictl.pulls.tracker import Tracker
from pycrictl.streaming.loop import in_thread, run_in_loop
from pycrictl.streaming.target import Target
from pycrictl.units import plural

Follow = Callable[[Callable[["PullState"], None], Callable[[str], None]], Awaitable[None]]
"""Opens a stream and passes on its pulls, and notes about it, until it ends cleanly."""

RESUME_S: Final = 60.0
"""How long pulls may take to resume after their source broke. kubelet retries a pull that was
cancelled with its proxy, after 10 s at first."""

UNREACHED_TRIES: Final = 2
"""Retries before an address that has not yet served a stream counts as unreachable."""

_LOST: Final = "it did not go on after the connection was lost"


class Unreachable(ConnectError):
    pass


@dataclass(eq=False)
class _StreamWatch:
    follow_stream: Follow
    tracker: Tracker
    sink: Sink
    pace: Pace

    def __post_init__(self) -> None:
        self._endings = Endings(self.tracker, self.sink)
        self._has_news = self._has_begun = self._has_seen = False
        self._broken_at: float | None = None
        self.tracker.is_known = False

    async def run(self) -> WatchOutcome:
        async with asyncio.TaskGroup() as tasks:
            ticking = tasks.create_task(self._tick())
            try:
                await self._follow()
            finally:
                ticking.cancel()
        view = self._show()
        failures = failures_in(view)
        if unfinished := _unfinished(view):
            count = plural(sum(unfinished.values()), "layer")
            self.sink.note(
                f"the runtime says that nothing is being pulled any more; {count} unfinished"
            )
            if self._broken_at is not None:
                failures = {**dict.fromkeys(unfinished, _LOST), **failures}
        return WatchOutcome(seen=self._has_seen, failures=tuple(failures.items()))

    async def _tick(self) -> None:
        while True:
            self._show()
            await asyncio.sleep(self.pace.interval_s)

    def _show(self) -> View:
        now = time.monotonic()
        if self.pace.follow:
            return self._endings.show(now)
        view = self.tracker.view(now, time.time())
        self.sink.show(view)
        return view

    async def _follow(self) -> None:
        tries = 0
        while True:
            self._has_news = False
            try:
                await self._follow_once()
            except PycrictlError as exc:
                if not self._may_pass(exc):
                    raise
                tries = 0 if self._has_news else tries
                is_unreachable = isinstance(exc, Unreachable) and not self._has_begun
                if is_unreachable and tries == UNREACHED_TRIES:
                    raise
                if tries == len(REOPEN_PAUSES_S):
                    # Other errors could be taken for a stream that is not offered.
                    raise StreamError(exc.message, hint=exc.hint) from exc
                self._broken_at = time.monotonic()
                self.tracker.drop_given_sums()
                if not tries:
                    self.sink.note(f"{exc.message}; connecting again")
                pause_s = REOPEN_PAUSES_S[tries]
                tries += 1
            else:
                tries, self.tracker.is_known = 0, True
                if self.pace.follow:
                    self._endings.show(time.monotonic(), is_final=True)
                elif (
                    self._broken_at is None
                    or time.monotonic() - self._broken_at >= RESUME_S
                    or not _unfinished(self._show())
                ):
                    return
                pause_s = REOPEN_PAUSES_S[0]
            await asyncio.sleep(pause_s)

    def _may_pass(self, exc: PycrictlError) -> bool:
        """Return whether to retry; once the stream has worked, more kinds of errors allow it."""
        if isinstance(exc, UpgradeRefused | RuntimeFault) and not isinstance(exc, Unavailable):
            return self._has_begun and not isinstance(exc, NotFound)
        is_broken = isinstance(exc, StreamError | ConnectError | Unavailable)
        return is_broken and not isinstance(exc, RemoteProtocolError)

    async def _follow_once(self) -> None:
        def receive(pull: PullState) -> None:
            self._has_news = self._has_begun = self.tracker.is_known = True
            self._has_seen |= bool(pull.layers)
            if pull.error:
                pull = replace(pull, error=cause(pull.error))
            self.tracker.apply(pull, now=time.monotonic())

        try:
            await self.follow_stream(receive, self.sink.note)
        except NotFound:
            if not self.tracker.pulls:
                raise
            self.sink.note("the pod is gone")
            self._broken_at = None


def _unfinished(view: View) -> dict[str, int]:
    """Return the number of unfinished layers of each pull that has some."""
    return {
        name: sum(not layer.is_finished for layer in pull.layers)
        for name, pull in view.pulls.items()
        if not pull.is_over
    }


def watch_stream(
    open_url: Callable[[], str | Target],
    tracker: Tracker,
    sink: Sink,
    *,
    timeout_s: float,
    pace: Pace,
) -> WatchOutcome:
    """Watch a runtime's own stream; request a new URL whenever it breaks."""

    async def follow(on_pull: Callable[[PullState], None], on_note: Callable[[str], None]) -> None:
        url = await in_thread(open_url)
        try:
            await report_stream.follow(
                url,
                MessageReader(tracker.pulls),
                on_pull=on_pull,
                on_note=on_note,
                timeout_s=timeout_s,
            )
        except ConnectError as exc:
            raise Unreachable(exc.message, hint=exc.hint) from exc

    return watch_pulls(follow, tracker, sink, pace=pace)


def watch_pulls(follow: Follow, tracker: Tracker, sink: Sink, *, pace: Pace) -> WatchOutcome:
    """Watch streams until one ends cleanly; call ``follow`` again whenever one breaks."""
    try:
        return run_in_loop(_StreamWatch(follow, tracker, sink, pace).run())
    except ExceptionGroup as group:  # of the task group
        raise group.exceptions[0] from None
