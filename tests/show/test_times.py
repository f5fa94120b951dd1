from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC
from time import tzset
from zoneinfo import ZoneInfo

import pytest

from pycrictl.show.times import go_time, rfc3339

TIME_NS = 1_700_000_000_123_456_789


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [
        (TIME_NS, "2023-11-14T22:13:20.123456789Z"),
        (TIME_NS // 10**9 * 10**9, "2023-11-14T22:13:20Z"),
        (1_795_208_878_905_045_660, "2026-11-20T21:07:58.90504566Z"),
        (0, "1970-01-01T00:00:00Z"),
        (-1, "1969-12-31T23:59:59.999999999Z"),
        (2**63 - 1, "2262-04-11T23:47:16.854775807Z"),
        (-(2**63), "1677-09-21T00:12:43.145224192Z"),
    ],
)
def test_rfc3339(time_ns: int, text: str) -> None:
    assert rfc3339(time_ns, UTC) == text


def test_rfc3339_in_other_zones() -> None:
    assert rfc3339(TIME_NS, ZoneInfo("Asia/Kolkata")) == "2023-11-15T03:43:20.123456789+05:30"
    assert rfc3339(TIME_NS, ZoneInfo("America/St_Johns")).endswith("T18:43:20.123456789-03:30")


def test_gos_form() -> None:
    assert go_time(TIME_NS, UTC) == "2023-11-14 22:13:20.123456789 +0000 UTC"
    assert go_time(1_500_000_000_000_000_000, UTC) == "2017-07-14 02:40:00 +0000 UTC"
    summer = go_time(1_500_000_000_000_000_000, ZoneInfo("Europe/Berlin"))
    assert summer == "2017-07-14 04:40:00 +0200 CEST"


@pytest.fixture
def _new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "EST5EDT,M3.2.0,M11.1.0")
        tzset()
        yield
    tzset()


@pytest.mark.usefixtures("_new_york")
def test_the_local_zone_is_the_default() -> None:
    assert go_time(TIME_NS) == "2023-11-14 17:13:20.123456789 -0500 EST"
    assert rfc3339(TIME_NS) == "2023-11-14T17:13:20.123456789-05:00"
