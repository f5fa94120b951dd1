"""The log is one consumer of events among others."""

from __future__ import annotations

import asyncio
import logging

import pytest

from pycrictl.base.servicelog import Log
from pycrictl.proxy.events import Event, Events
from pycrictl.proxy.telemetry.event_log import NAMES, EventLog
from tests.proxy.telemetry.records import EVENTS, metrics


def told(names: dict[type[Event], str], caplog: pytest.LogCaptureFixture) -> tuple[str, list[str]]:
    """Return the metrics after all events, and the names of the log lines."""
    caplog.clear()

    async def run() -> str:
        counting = metrics()
        events = Events([EventLog(Log("pycrictl.proxy.test"), names), counting])
        for event in EVENTS:
            events.emit(event)
        counted = counting.page.registry.collect()
        return "\n".join(
            f"{sample.name}{sample.labels} {sample.value}"
            for family in counted
            if family.type != "gauge"
            for sample in family.samples
            if "process_" not in sample.name
        )

    with caplog.at_level(logging.INFO, "pycrictl.proxy.test"):
        text = asyncio.run(run())
    return text, [line.message.split()[0] for line in caplog.records]


def test_other_names_in_the_log_change_no_metric(caplog: pytest.LogCaptureFixture) -> None:
    text, lines = told(dict(NAMES), caplog)
    other_text, other_lines = told({kind: f"other_{kind.__name__}" for kind in NAMES}, caplog)
    assert lines == [
        "pull", "pull", "pull", "copy", "copy", "stream",
        "handed_over", "not_handed_over", "took_over",
    ]  # fmt: skip
    assert len(other_lines) == len(lines)
    assert all(line.startswith("other_") for line in other_lines)
    assert text == other_text
    for counted in (
        "pycrictl_pulls_total{'outcome': 'failed', 'code': 'Unknown'} 1",
        "pycrictl_copies_total{'direction': 'to', 'end': 'done'} 1",
        "pycrictl_streams_total{'kind': 'progress_http', 'end': 'done'} 1",
        "pycrictl_handovers_total{'end': 'taken'} 1",
        "pycrictl_handovers_total{'end': 'failed'} 1",
    ):
        assert counted in text
