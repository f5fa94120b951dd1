"""Rows and blocks that the replays of whole commands do not cover."""

from __future__ import annotations

import time

import pytest

from pycrictl._proto import cri_pb2
from pycrictl.show import inspect_views, list_views
from pycrictl.show.list_views import (
    NEVER,
    NOT_MEASURED,
    cpu_percent,
    measured,
)
from tests.captures.fixtures import utc
from tests.captures.scene import fake_container_stats, hex_id

__all__ = ["utc"]

TIME_NS = 1_700_000_000_123_456_789


@pytest.mark.parametrize(
    ("image", "shown"),
    [
        (f"sha256:{hex_id(7)}", "0707070707070"),
        (f"sha512:{hex_id(9)}{hex_id(8)}", "0909090909090"),
        ("sha256:07", "sha256:07"),
        ("busybox:1", "busybox:1"),
        ("sha256:xyz", "sha256:xyz"),
        ("cafe:1234", "cafe:1234"),
        ("", ""),
    ],
)
def test_image_cells(image: str, shown: str) -> None:
    assert list_views.shown_image(image) == shown
    assert list_views.shown_image(image, no_trunc=True) == image


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [
        (TIME_NS, "2023-11-14T22:13:20.123456789Z"),
        (TIME_NS // 10**9 * 10**9, "2023-11-14T22:13:20Z"),
        (1_795_208_878_905_045_660, "2026-11-20T21:07:58.90504566Z"),
        (-1, "1969-12-31T23:59:59.999999999Z"),
        (2**63 - 1, "2262-04-11T23:47:16.854775807Z"),
        (-(2**63), "1677-09-21T00:12:43.145224192Z"),
    ],
)
def test_times_have_the_form_of_rfc3339(time_ns: int, text: str) -> None:
    assert list_views.rfc3339(time_ns) == text


@pytest.mark.parametrize(
    ("name", "time_ns", "rfc3339", "go_time"),
    [
        (
            "Asia/Kolkata",
            TIME_NS,
            "2023-11-15T03:43:20.123456789+05:30",
            "2023-11-15 03:43:20.123456789 +0530 IST",
        ),
        (
            "EST5EDT,M3.2.0,M11.1.0",
            TIME_NS,
            "2023-11-14T17:13:20.123456789-05:00",
            "2023-11-14 17:13:20.123456789 -0500 EST",
        ),
    ],
)
def test_times_are_local(
    name: str, time_ns: int, rfc3339: str, go_time: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", name)
    time.tzset()
    assert (list_views.rfc3339(time_ns), list_views.go_time(time_ns)) == (rfc3339, go_time)


@pytest.mark.parametrize(
    ("state", "finished_at", "never"),
    [
        ("CONTAINER_CREATED", 5, ["startedAt", "finishedAt"]),
        ("CONTAINER_RUNNING", 5, ["finishedAt"]),
        ("CONTAINER_EXITED", 0, []),
        ("CONTAINER_UNKNOWN", 5, []),
        ("CONTAINER_UNKNOWN", 0, ["finishedAt"]),
    ],
)
def test_times_that_have_not_come(state: str, finished_at: int, never: list[str]) -> None:
    status = cri_pb2.ContainerStatus(state=state, finished_at=finished_at)
    times = inspect_views.container_times(status)
    assert [name for name, text in times.items() if text == NEVER] == never


# Resource usage

START_NS = 1_700_000_000_000_000_000


def test_a_container_that_has_just_begun_is_left_out() -> None:
    after = fake_container_stats(2, START_NS + 10**9)
    rows = measured(fake_container_stats(1, START_NS)[:1], after, show_all=True)
    assert [row.stats.attributes.id for row in rows] == [hex_id(3)]


def test_a_stale_sample_is_not_measured() -> None:
    samples = fake_container_stats(1, START_NS)
    assert [row.cpu for row in measured(samples, samples)] == [NOT_MEASURED, NOT_MEASURED]


def test_more_than_one_core() -> None:
    before, after = cri_pb2.CpuUsage(timestamp=1), cri_pb2.CpuUsage(timestamp=1_000_000_001)
    before.usage_core_nano_seconds.value = 0
    after.usage_core_nano_seconds.value = 2_500_000_000
    assert cpu_percent(before, after) == "250.00"
