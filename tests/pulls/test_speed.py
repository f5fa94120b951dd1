from __future__ import annotations

import pytest

from pycrictl.pulls.sums import Speed


def test_the_window_forgets() -> None:
    speed = Speed(8.0)
    speed.start(0.0)
    speed.record(8000, 1.0)
    speed.record(0, 4.0)
    assert speed.rate(4.0) == pytest.approx(2000.0)
    speed.record(0, 9.5)
    assert speed.rate(9.5) == 0.0


def test_rare_samples_reach_back_beyond_the_window() -> None:
    speed = Speed(8.0)
    speed.start(0.0)
    for second in (20.0, 40.0, 60.0):
        speed.record(2000, second)
        assert speed.rate(second) == pytest.approx(100.0)
