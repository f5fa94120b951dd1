"""A short run of every target, the same each time, and a harness that finds what is there."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from tests.fuzz import harness
from tests.fuzz.harness import Result, Target, run
from tests.fuzz.targets import TARGETS

INPUTS = 150


def few(result: Result) -> bool:
    return result.inputs < INPUTS


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_short_run(target: Target) -> None:
    result = run(target, random.Random(f"1 {target.name}"), goes_on=few)
    assert result.failures == []
    assert result.inputs == INPUTS
    assert result.accepted > 0  # some input is good, so that more than the first check is fed


def found(read: Any, *, errors: tuple[type[Exception], ...] = ()) -> list[str]:
    target = Target("test", read, (b"seed of some length",), errors)
    result = run(target, random.Random(1), goes_on=few)
    return [failure.problem for failure in result.failures]


def test_errors_that_were_not_declared_are_found() -> None:
    def read(data: bytes, chance: random.Random) -> None:
        if b"\xff" in data:
            raise KeyError("it")

    assert found(read) == ["KeyError: 'it'"]
    assert found(read, errors=(KeyError,)) == []


def test_hangs_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "CPU_S", 0.05)

    def read(data: bytes, chance: random.Random) -> None:
        until = time.process_time() + (30.0 if len(data) > 100 else 0.0)
        while time.process_time() < until:
            pass

    assert found(read) == ["HangError: more than 0.05 s"]


def test_failing_input_is_made_small() -> None:
    def read(data: bytes, chance: random.Random) -> None:
        assert b"\xff" not in data

    target = Target("test", read, (b"x" * 1000,))
    result = run(target, random.Random(1), goes_on=few)
    assert [failure.data for failure in result.failures] == [b"\xff"]
