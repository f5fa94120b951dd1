from __future__ import annotations

import pytest

from pycrictl.proxy.pulls.book import CallState, PullKey
from pycrictl.proxy.pulls.limiter_status import starts, typical_s
from pycrictl.proxy.pulls.queue import PullQueue


@pytest.mark.parametrize(
    ("left_s", "limit", "typical", "expected"),
    [
        ([10.0], 1, 5.0, [10.0, 15.0, 20.0]),
        ([10.0], 1, None, [10.0, None, None]),
        ([None], 1, 5.0, [None, None, None]),
        ([10.0, 2.0], 2, 5.0, [2.0, 7.0, 10.0]),
        ([None, 2.0], 2, 5.0, [2.0, 7.0, 12.0]),
        ([1.0, 2.0, 9.0], 1, 5.0, [9.0, 14.0, 19.0]),  # the limit was lowered
        ([10.0], 2, 5.0, [0.0, 5.0, 10.0]),
        ([10.0], 0, 5.0, [0.0, 0.0, 0.0]),
    ],
)
def test_starts(
    left_s: list[float | None], limit: int, typical: float | None, expected: list[float | None]
) -> None:
    assert starts(left_s, limit=limit, waiting=3, typical_s=typical) == expected


def test_a_typical_pull() -> None:
    queue = PullQueue(0)
    assert typical_s(queue.book.ended, []) is None
    assert typical_s(queue.book.ended, [8.0, 4.0]) == 6.0
    for number, (took_s, error) in enumerate([(3, ""), (5, ""), (900, "denied"), (11, "")], 1):
        queue.submit(number, PullKey(f"i{number}"), now=1000 * number)
        how = CallState.FAILED if error else CallState.DONE
        queue.end(number, how, now=1000 * number + took_s, error=error)
    queue.submit(9, PullKey("there"), now=9000, is_present=True)
    queue.end(9, CallState.DONE, now=9001)
    assert typical_s(queue.book.ended, [800.0]) == 5.0
