"""What the proxy's tests do not tell of quotas: they have the limits, each exactly."""

from __future__ import annotations

import pytest

from pycrictl.copy.rules.quotas import MAX_COPIES, Quotas
from pycrictl.errors import Exhausted


def test_a_greedy_pod_leaves_something() -> None:
    quotas = Quotas()
    quotas.check_size(2**64 - 1)
    for _ in range(MAX_COPIES // 2):
        quotas.take("greedy")
    with pytest.raises(Exhausted, match="its share of all; try again later"):
        quotas.take("greedy")
    quotas.take("other")
    quotas.give("greedy")
    assert quotas.taken == MAX_COPIES // 2
