from __future__ import annotations

import threading
import time

import pytest

from pycrictl.cri.lifecycle.removal import AT_ONCE, in_parallel


def test_order_is_kept_whoever_ends_first() -> None:
    def act(number: int) -> int:
        time.sleep(0.02 if number == 0 else 0)
        return number

    assert list(in_parallel(act, range(20))) == list(range(20))


def test_leaving_early_starts_no_more() -> None:
    begun: list[int] = []
    gate = threading.Event()

    def act(number: int) -> int:
        begun.append(number)
        if number:
            gate.wait(60)
        return number

    results = in_parallel(act, range(1000))
    assert next(results) == 0
    results.close()  # type: ignore[attr-defined]  # it is a generator
    gate.set()
    time.sleep(0.05)
    assert len(begun) <= AT_ONCE + 1


def test_a_bug_is_not_hidden() -> None:
    def act(number: int) -> int:
        return 1 // number

    with pytest.raises(ZeroDivisionError):
        list(in_parallel(act, [1, 0]))
