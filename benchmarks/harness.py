"""Measure two things in turn, and check whether their ratio meets a goal."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Literal


class CannotRunError(Exception):
    """Something that the benchmark needs is missing or failed; the text says what."""


class SkippedError(Exception):
    """The program to measure was not built; the text says what is missing and how to build it."""


@dataclass(frozen=True)
class Goal:
    relation: Literal["<=", ">="]
    limit: float

    def is_met(self, ratio: float) -> bool:
        return ratio <= self.limit if self.relation == "<=" else ratio >= self.limit

    def __str__(self) -> str:
        return f"{self.relation} {self.limit:.2f}"


@dataclass(frozen=True)
class Measured:
    """pycrictl's figure, the yardstick's in the same unit, and how they compare."""

    ours: float
    bare: float
    ratio: float


@dataclass(frozen=True)
class Benchmark:
    """One comparison."""

    name: str
    text: str
    goal: Goal
    show: Callable[[float], str]
    measure: Callable[[], Measured]


def row(
    name: str,
    text: str,
    goal: Goal,
    unit: str,
    measure: Callable[[], Measured],
    *,
    digits: int = 0,
) -> Benchmark:
    return Benchmark(name, text, goal, lambda figure: f"{figure:.{digits}f} {unit}", measure)


def interleave(
    ours: Callable[[], float], bare: Callable[[], float], *, rounds: int, warm_up_rounds: int = 1
) -> Measured:
    """Return medians of two measurements taken in turn, so that both meet the same noise.

    The ratio is the median of the rounds' ratios, not the ratio of the medians: a machine that
    becomes slower half-way shifts both sides of a round. The side that goes first alternates.
    """
    ours_figures, bare_figures = _in_turn(ours, bare, rounds, warm_up_rounds)
    ratios = [our / other for our, other in zip(ours_figures, bare_figures, strict=True)]
    return Measured(median(ours_figures), median(bare_figures), median(ratios))


def best_speeds(
    ours: Callable[[], float], bare: Callable[[], float], *, rounds: int, warm_up_rounds: int = 1
) -> Measured:
    """Return the best speed of each side, measured in turn.

    For runs of less than a second that keep all processors busy: any other load slows them down,
    and most of all the side with more work.
    """
    ours_figures, bare_figures = _in_turn(ours, bare, rounds, warm_up_rounds)
    best, best_bare = max(ours_figures), max(bare_figures)
    return Measured(best, best_bare, best / best_bare)


def _in_turn(
    ours: Callable[[], float], bare: Callable[[], float], rounds: int, warm_up_rounds: int
) -> tuple[list[float], list[float]]:
    figures: tuple[list[float], list[float]] = [], []
    for number in range(warm_up_rounds + rounds):
        sides = ((0, ours), (1, bare)) if number % 2 else ((1, bare), (0, ours))
        for side, measure in sides:
            figure = measure()
            if number >= warm_up_rounds:
                figures[side].append(figure)
    return figures


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"


def wall_s(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
