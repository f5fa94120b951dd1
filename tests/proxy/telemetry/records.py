"""Made-up records of pulls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pycrictl.proxy.telemetry.history import CallOutcome, PullRecord

_PULLED = PullRecord(
    ended_s=1_700_000_000.0,
    image="a/b:1",
    pod="default/web",
    outcome=CallOutcome.PULLED,
    code="OK",
    cause="",
    waited_s=2.0,
    pulled_s=4.0,
    attempts=1,
    is_joined=False,
    digest="sha256:12",
    got_bytes=8 * 1024**2,
    reused_bytes=1024,
    extracted_bytes=20 * 1024**2,
    size_bytes=8 * 1024**2 + 1024,
)


def record(**fields: Any) -> PullRecord:
    return replace(_PULLED, **fields)
