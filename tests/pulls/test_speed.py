from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycrictl.pulls.sums import Speed


def test_the_window_forgets() -> None:
    speed = Speed(8.0)
    speed.start(0.0)
    speed.record(8000, 1.0)
    speed.record(0, 4.0)
    assert speed.rate(4.0) == pytest.approx(2000.0)
    speed.record(0, 9.5)
    assert speed.rate(9.5) == 0.0


def test_waiting_does_not_count() -> None:
    speed = Speed(8.0)
    speed.start(0.0)
    for second in range(1, 61):
        speed.record(0, float(second))
        assert speed.rate(float(second)) is None
    speed.record(500, 60.5)
    assert speed.rate(60.5) is None
    speed.record(500, 61.0)
    assert speed.rate(61.0) == pytest.approx(1000.0)
    assert speed.measured_s(61.0) == pytest.approx(1.0)


def test_rare_samples_reach_back_beyond_the_window() -> None:
    speed = Speed(8.0)
    speed.start(0.0)
    for second in (20.0, 40.0, 60.0):
        speed.record(2000, second)
        assert speed.rate(second) == pytest.approx(100.0)


def test_memory_does_not_depend_on_how_often_it_is_asked() -> None:
    speed = Speed(8.0)
    speed.start(0.0)
    for tick in range(1, 20_001):
        speed.record(1, tick * 0.001)
    assert speed.rate(20.0) == pytest.approx(1000.0, rel=0.05)
    assert len(speed._samples) <= 35


@given(st.lists(st.tuples(st.integers(0, 10**12), st.floats(0.0, 20.0)), max_size=50))
def test_the_rate_lies_between_nothing_and_everything(steps: list[tuple[int, float]]) -> None:
    speed = Speed(8.0)
    speed.start(0.0)
    now, total = 0.0, 0
    for gained, pause_s in steps:
        now += pause_s
        total += gained
        speed.record(gained, now)
        rate = speed.rate(now)
        assert rate is None or 0.0 <= rate <= total
