"""What grows again with time, and with what is of use."""

from __future__ import annotations

from pycrictl.wire.limits import Allowance


def taken(allowance: Allowance, now: float) -> int:
    """How many there are at that time."""
    count = 0
    while allowance.take(now):
        count += 1
    return count


def test_more_with_time_but_never_more_than_the_burst() -> None:
    allowance = Allowance(5, 2.0)
    assert taken(allowance, 0.0) == 5
    assert taken(allowance, 1.0) == 2
    assert taken(allowance, 1.4) == 0
    assert taken(allowance, 1.5) == 1
    assert taken(allowance, 1000.0) == 5


def test_more_by_what_was_earned() -> None:
    allowance = Allowance(5, 0.0)
    assert taken(allowance, 0.0) == 5
    allowance.earned += 3
    assert taken(allowance, 0.0) == 3
    allowance.earned += 100
    assert taken(allowance, 0.0) == 5
    assert taken(allowance, 0.0) == 0


def test_seldom_for_months() -> None:
    """A keepalive every ten seconds is no flood, however long it goes on."""
    allowance = Allowance(10, 1.0)
    assert all(allowance.take(10.0 * count) for count in range(10_000))
