"""Making input out of seeds, and running a target on it within bounds."""

from __future__ import annotations

import random
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Final

MAX_BYTES: Final = 32 * 1024
CPU_S: Final = 2.0
"""What one input may take. Almost all take less than a hundredth of that."""

MEMORY_BYTES: Final = 64 * 1024 * 1024
"""How much larger one input may make the process."""

_EDGES: Final = (
    *(bytes([octet]) for octet in (0, 1, 0x0A, 0x7F, 0x80, 0xFF)),
    *(b"\0\0", b"\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff\xff\xff\xff"),
    *(b"\r\n", b"\0" * 64, b"\xff" * 64, b"9" * 30, b"-1", b"\xe2\x82\xac", b"\xf0\x9f\x98\x80"),
)


@dataclass(frozen=True)
class Target:
    """Something that reads input.

    Attributes:
        name: what it is called on the command line.
        read: reads it, with chance for what else may happen; what is wrong with that is raised.
        seeds: good input, and some that is nearly so.
        errors: what it may raise for bad input.
        words: what its input is made of.
        make: makes whole input, which is damaged half of the time.
    """

    name: str
    read: Callable[[bytes, random.Random], object]
    seeds: Sequence[bytes]
    errors: tuple[type[Exception], ...] = ()
    words: Sequence[bytes] = ()
    make: Callable[[random.Random], bytes] | None = None


@dataclass
class Result:
    """What a run of one target showed."""

    inputs: int = 0
    accepted: int = 0
    size_bytes: int = 0
    slowest_s: float = 0.0
    failures: list[Failure] = field(default_factory=list)


@dataclass(frozen=True)
class Failure:
    """Input that showed a bug.

    Attributes:
        seed: of the chance that the target had.
    """

    problem: str
    data: bytes
    seed: int


class HangError(BaseException):
    """An input took too long; no code under test catches it by accident."""


class TooLargeError(Exception):
    """An input took too much memory."""


def run(target: Target, chance: random.Random, *, goes_on: Callable[[Result], bool]) -> Result:
    """Feed a target until ``goes_on`` says no, or something has failed.

    Args:
        target: what to feed.
        chance: makes the input; the same one makes the same.
        goes_on: asked before each input.
    """
    result = Result()
    while not result.failures and goes_on(result):
        data = one_input(target, chance)
        seed = chance.getrandbits(32)
        began_s = time.process_time()
        problem = check(target, data, seed)
        result.slowest_s = max(result.slowest_s, time.process_time() - began_s)
        result.inputs += 1
        result.size_bytes += len(data)
        if isinstance(problem, bool):
            result.accepted += problem
        else:
            result.failures.append(smaller(target, Failure(problem, data, seed)))
    return result


def check(target: Target, data: bytes, seed: int) -> bool | str:
    """Run a target once: whether it accepts the input, or what is wrong with the target."""
    peak = _peak_bytes()
    try:
        with _limited():
            target.read(data, random.Random(seed))
        if _peak_bytes() - peak > MEMORY_BYTES:
            raise TooLargeError(f"{_peak_bytes() - peak} more bytes")
    except target.errors:
        return False
    except (Exception, HangError) as error:
        return f"{type(error).__name__}: {error}"
    return True


def smaller(target: Target, failure: Failure) -> Failure:
    """Return as little of the input as fails in the same manner."""
    kind = failure.problem.partition(":")[0]
    data = failure.data
    size = len(data) // 2
    while size:
        start = 0
        while start < len(data):
            less = data[:start] + data[start + size :]
            problem = check(target, less, failure.seed)
            if isinstance(problem, str) and problem.partition(":")[0] == kind:
                data, failure = less, Failure(problem, less, failure.seed)
            else:
                start += size
        size //= 2
    return failure


# Input


def one_input(target: Target, chance: random.Random) -> bytes:
    """Make one input: made or a seed, and most often damaged."""
    kind = chance.random()
    if kind < 0.05:
        return chance.randbytes(chance.choice((1, 10, 100, 1000)))
    if target.make is not None and kind < 0.7:
        data = target.make(chance)
        if chance.random() < 0.5:
            return data[:MAX_BYTES]
    else:
        data = chance.choice(target.seeds)
    for _ in range(chance.choice((1, 1, 2, 4, 8, 16))):
        data = _damaged(target, data, chance)[:MAX_BYTES]
    return data


def _damaged(target: Target, data: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(data) + 1)
    stop = min(len(data), start + chance.choice((1, 1, 2, 4, 16, 100, 1000)))
    piece = data[start:stop]
    match chance.randrange(9):
        case 0:  # some bits
            octets = bytearray(data or b"\0")
            octets[chance.randrange(len(octets))] ^= 1 << chance.randrange(8)
            return bytes(octets)
        case 1:
            return data[:start] + data[stop:]
        case 2:
            return data[:start] + chance.choice(_EDGES) + data[start:]
        case 3:
            return data[:start] + chance.choice(_EDGES) + data[stop:]
        case 4:  # many times the same
            return data[:start] + piece * chance.choice((2, 3, 10, 100, 1000)) + data[stop:]
        case 5:
            return data[:start]
        case 6:
            other = chance.choice(target.seeds)
            return data[:start] + other[chance.randrange(len(other) + 1) :]
        case 7 if target.words:
            return data[:start] + chance.choice(target.words) + data[start:]
        case 8 if target.words:
            word = chance.choice(target.words)
            return data[:start] + word * chance.choice((1, 2, 10, 100, 1000)) + data[stop:]
        case _:
            place = chance.randrange(len(data) + 1)
            return data[:place] + piece + data[place:]


def pieces(data: bytes, chance: random.Random) -> Iterator[bytes]:
    """Cut input as a network may."""
    sizes = chance.choice(((1,), (1, 2, 3), (1, 10, 1000), (100, 5000), (1 << 20,)))
    start = 0
    while start < len(data):
        size = chance.choice(sizes)
        yield data[start : start + size]
        start += size


# Bounds


@contextmanager
def _limited() -> Iterator[None]:
    """Raise HangError in what takes too long, by this process's own time."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise HangError(f"more than {CPU_S:g} s")

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
