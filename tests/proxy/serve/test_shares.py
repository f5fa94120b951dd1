"""Who gets a place, and who has to go for it."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pycrictl.proxy.serve.http_listener import ROOT, Shares
from pycrictl.wire import limits

NOBODY, OTHER = 65534, 1000


def shares(*owners: int, count: int) -> Shares[int]:
    """One with a guest of each owner, numbered as they came."""
    made = Shares[int](count)
    for number, owner in enumerate(owners):
        assert made.enter(number, owner, float(number)) is None
    return made


def test_patience_is_short_when_half_is_taken() -> None:
    made = shares(*[NOBODY] * 4, count=10)
    assert made.overdue(limits.HEAD_S - 0.1) == []
    assert made.overdue(limits.HEAD_S) == [0]
    made.enter(4, ROOT, 4.0)
    assert made.overdue(4.0) == [0, 1, 2, 3]
    assert made.overdue(4.0 + limits.HEAD_S) == [0, 1, 2, 3, 4]


def test_patience_with_root_is_short_when_its_own_guests_are_many() -> None:
    made = shares(*[ROOT] * 5, *[NOBODY] * 5, count=10)
    assert made.overdue(4.0 + limits.CROWDED_HEAD_S) == [0, 1, 2, 3, 4]
    made.leave(4)
    assert made.overdue(4.0 + limits.CROWDED_HEAD_S) == []


@given(st.lists(st.tuples(st.sampled_from([ROOT, 1, 2, 3]), st.booleans()), max_size=200))
def test_shares(arrivals: list[tuple[int, bool]]) -> None:
    """No user who holds less than another loses a guest, and root none while others hold any."""
    made = Shares[int](10)
    owners: dict[int, int] = {}
    for number, (owner, settles) in enumerate(arrivals):
        loser = made.enter(number, owner, float(number))
        owners[number] = owner
        held = Counter(owners.values())
        if loser is not None:
            assert len(owners) + made.settled == 11
            loser_of = owners.pop(loser)
            if loser_of == ROOT:
                assert set(held) == {ROOT}
            else:
                assert held[loser_of] == max(n for uid, n in held.items() if uid != ROOT)
        if settles and number in owners and made.settled < 9:
            made.settle(number)
            del owners[number]
        assert made.waiting == list(owners)
