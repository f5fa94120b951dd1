"""The log as a consumer of events: the lines about pulls, copies, streams and hand-overs.

Those that clients can cause at will are limited in their rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Final

from pycrictl.base.servicelog import Log, Seldom
from pycrictl.proxy.events import (
    CopyEnded,
    Event,
    HandedOver,
    HandOverFailed,
    PullRecorded,
    StreamEnded,
    TookOver,
)
from pycrictl.proxy.telemetry.history import CallOutcome

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
            outcome: Seldom(log.info, names[PullRecorded], outcome=outcome.value)
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
        call, record = event.call, event.record
        fields: dict[str, object] = {
            "image": record.image,
            "pod": record.pod or "-",
            "outcome": record.code or record.outcome.value,
            "error": call.reason,
            "waited_s": record.waited_s,
            "pulled_s": record.pulled_s,
            "bytes": "" if record.got_bytes is None else record.got_bytes,
            "reused": "" if record.reused_bytes is None else record.reused_bytes,
            "attempt": record.attempts if record.attempts > 1 else "",
        }
        if record.outcome is CallOutcome.PULLED and not record.is_joined:
            self._log.info(name, **fields)
        else:
            self._pulls[record.outcome](**fields)


def _fields(event: CopyEnded | StreamEnded | HandedOver | TookOver) -> dict[str, object]:
    return {
        key: round(value, 3) if isinstance(value, float) else value
        for key, value in asdict(event).items()
        if value is not None
    }
