"""The log as a consumer of events: the lines about pulls, copies, streams and hand-overs.

Lines that clients can cause at will are rate-limited.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Final

from pycrictl.base.servicelog import Log, RateLimitedLog
from pycrictl.proxy.events import (
    CopyEnded,
    Event,
    HandedOver,
    HandOverFailed,
    PullRecorded,
    StreamEnded,
    TookOver,
)
from pycrictl.proxy.pulls.pull_calls import CallOutcome

NAMES: Final[Mapping[type[Event], str]] = {
    PullRecorded: "pull",
    CopyEnded: "copy",
    StreamEnded: "stream",
    HandedOver: "handed_over",
    HandOverFailed: "not_handed_over",
    TookOver: "took_over",
}


class EventLog:
    def __init__(self, log: Log, names: Mapping[type[Event], str] = NAMES) -> None:
        self._log = log
        self._names = names
        self._pulls = {
            outcome: RateLimitedLog(log.info, names[PullRecorded], outcome=outcome.value)
            for outcome in CallOutcome
        }

    def __call__(self, event: Event) -> None:
        name = self._names.get(type(event), "")
        match event:
            case PullRecorded():
                self._pull(event, name)
            case HandOverFailed(reason):
                self._log.warning(name, reason=reason)
            case CopyEnded() | StreamEnded() | HandedOver() | TookOver():
                self._log.info(name, **_fields(event))

    def _pull(self, event: PullRecorded, name: str) -> None:
        call, layers = event.call, event.layers
        fields: dict[str, object] = {
            "image": call.reference,
            "pod": call.pod or "-",
            "outcome": call.code or call.outcome.value,
            "error": call.reason,
            "waited_s": call.waited_s,
            "pulled_s": call.pulled_s,
            "bytes": "" if layers is None else layers.got_bytes,
            "reused": "" if layers is None else layers.reused_bytes,
            "attempt": call.attempt if call.attempt > 1 else "",
        }
        if call.outcome is CallOutcome.PULLED and not call.is_joined:
            self._log.info(name, **fields)
        else:
            self._pulls[call.outcome](**fields)


def _fields(event: CopyEnded | StreamEnded | HandedOver | TookOver) -> dict[str, object]:
    return {
        key: round(value, 3) if isinstance(value, float) else value
        for key, value in asdict(event).items()
        if value is not None
    }
