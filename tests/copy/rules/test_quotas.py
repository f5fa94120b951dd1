from __future__ import annotations

import pytest

from pycrictl.copy.rules.quotas import MAX_COPIES, Quotas
from pycrictl.errors import Exhausted


@pytest.mark.parametrize(("limit", "sizes"), [(1, (0, 1)), (1000, (0, 999, 1000))])
def test_sizes_up_to_the_limit(limit: int, sizes: tuple[int, ...]) -> None:
    quotas = Quotas(size_limit_bytes=limit)
    for size in sizes:
        quotas.check_size(size)
    for size in (limit + 1, 2**64 - 1):
        with pytest.raises(Exhausted, match=r"ContainerCopySizeLimit.*try again later"):
            quotas.check_size(size)


def test_no_limit() -> None:
    quotas = Quotas()
    quotas.check_size(2**64 - 1)
    for _ in range(MAX_COPIES // 2):
        quotas.take("a")
    assert quotas.taken == MAX_COPIES // 2


@pytest.mark.parametrize("limit", [1, 3])
def test_copies_of_a_pod(limit: int) -> None:
    quotas = Quotas(copies_per_pod=limit)
    for pod in ("a", "b"):
        for _ in range(limit):
            quotas.take(pod)
        with pytest.raises(Exhausted, match=r"ContainerCopiesPerPod.*try again later"):
            quotas.take(pod)
    quotas.give("a")
    quotas.take("a")
    for pod in "ab" * limit:
        quotas.give(pod)
    assert quotas.taken == 0


def test_a_greedy_pod_leaves_something() -> None:
    quotas = Quotas()
    for _ in range(MAX_COPIES // 2):
        quotas.take("greedy")
    with pytest.raises(Exhausted, match="its share of all; try again later"):
        quotas.take("greedy")
    quotas.take("other")
