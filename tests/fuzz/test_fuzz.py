"""A short, reproducible run of every target."""

from __future__ import annotations

import pytest

from tests.fuzz.harness import Target, run
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_short_run(target: Target) -> None:
    run(target, seed=1, most=150)


def test_errors_that_were_not_declared_are_found() -> None:
    def read(data: bytes, chance: object) -> None:
        if b"\xff" in data:
            raise KeyError("it")

    with pytest.raises(KeyError):
        run(Target("test", read, (b"seed of some length",)), seed=1, most=200)
    run(Target("test", read, (b"seed of some length",), (KeyError,)), seed=1, most=100)
