from __future__ import annotations

from io import StringIO
from typing import Any

import pytest

from pycrictl._proto import cri_pb2
from pycrictl.show import render
from pycrictl.show.render import Table
from pycrictl.show.stats_tables import NOT_MEASURED, cpu_percent, pod_stats_table, stats_table
from tests.captures import capture
from tests.captures.scene import fake_container_stats, fake_pod_stats, hex_id

CLEAR_SCREEN = "\x1b[2J\x1b[H"
START_NS = 1_700_000_000_000_000_000


def by_id(stats: Any) -> list[Any]:
    """Samples come in this order."""
    return sorted(stats, key=lambda each: each.attributes.id)


def text(table: Table) -> str:
    out = StringIO()
    render.write_table(table, out)
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "elapsed_ns", "show_all"),
    [("f-stats-all", 1_004_823_000, True), ("f-stats-bogus-format", 1_008_200_000, False)],
)
def test_containers(name: str, elapsed_ns: int, show_all: bool) -> None:
    before = fake_container_stats(1, START_NS)
    after = fake_container_stats(2, START_NS + elapsed_ns)
    table = stats_table(before, by_id(after), show_all=show_all)
    assert CLEAR_SCREEN + text(table) == capture(name).output


@pytest.mark.parametrize(
    ("name", "elapsed_ns"), [("f-statsp", 1_006_440_000), ("f-statsp-badformat", 1_005_220_000)]
)
def test_pods(name: str, elapsed_ns: int) -> None:
    before = fake_pod_stats(1, START_NS)
    after = fake_pod_stats(2, START_NS + elapsed_ns)
    assert CLEAR_SCREEN + text(pod_stats_table(before, by_id(after))) == capture(name).output


def test_a_container_that_has_just_begun_is_left_out() -> None:
    after = fake_container_stats(2, START_NS + 10**9)
    table = stats_table(fake_container_stats(1, START_NS)[:1], after, show_all=True)
    assert [row[0] for row in table.rows] == [hex_id(3)[:13]]
    pods = pod_stats_table(fake_pod_stats(1, START_NS)[:1], fake_pod_stats(2, START_NS + 10**9))
    assert [row[0] for row in pods.rows] == ["pod2"]


def test_a_stale_sample_is_not_measured() -> None:
    samples = fake_container_stats(1, START_NS)
    table = stats_table(samples, samples)
    assert [row[2] for row in table.rows] == [NOT_MEASURED, NOT_MEASURED]


def test_more_than_one_core() -> None:
    before, after = cri_pb2.CpuUsage(timestamp=1), cri_pb2.CpuUsage(timestamp=1_000_000_001)
    before.usage_core_nano_seconds.value = 0
    after.usage_core_nano_seconds.value = 2_500_000_000
    assert cpu_percent(before, after) == "250.00"
