"""Input that hypothesis makes by damaging seeds, and the requirements that targets must meet."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import hypothesis
from hypothesis import given
from hypothesis import strategies as st

MAX_BYTES: Final = 32 * 1024
CPU_S: Final = 2.0
"""Limit of CPU time for one input. Almost all take less than a hundredth of it."""

_EDGES: Final = (
    *(bytes([octet]) for octet in (0, 1, 0x0A, 0x7F, 0x80, 0xFF)),
    b"\0\0", b"\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff\xff\xff\xff",
    b"\r\n", b"9" * 30, b"-1", b"\xe2\x82\xac", b"\xf0\x9f\x98\x80",
)  # fmt: skip


@dataclass(frozen=True)
class Target:
    """A parser to fuzz.

    Attributes:
        name: its name on the command line.
        read: parses the input, with randomness for other choices; raises on any fault.
        seeds: valid input, and some that is almost valid.
        errors: exceptions that it may raise for bad input.
        words: tokens of its input.
    """

    name: str
    read: Callable[[bytes, random.Random], object]
    seeds: Sequence[bytes]
    errors: tuple[type[Exception], ...] = ()
    words: Sequence[bytes] = ()

    def inputs(self) -> st.SearchStrategy[bytes]:
        known = st.sampled_from([b"", *_EDGES, *self.words, *self.seeds])
        many = st.tuples(known, st.sampled_from([1, 2, 10, 100, 1000]))
        piece = st.binary(max_size=20) | many.map(lambda pair: pair[0] * pair[1])
        place, size = st.integers(0, 1 << 16), st.sampled_from([0, 0, 1, 2, 4, 16, 100, 1000])
        damages = st.lists(st.tuples(place, size, piece), max_size=8)
        return st.builds(_damaged, st.sampled_from(list(self.seeds)), damages)


def _damaged(data: bytes, damages: Sequence[tuple[int, int, bytes]]) -> bytes:
    for place, size, piece in damages:
        start = place % (len(data) + 1)
        data = (data[:start] + piece + data[start + size :])[:MAX_BYTES]
    return data


def run(target: Target, *, seed: int, most: int) -> None:
    """Feed a target; raise its first failure, with the smallest input that causes it."""

    @hypothesis.seed(seed)
    @hypothesis.settings(max_examples=most, database=None, deadline=None)
    @given(target.inputs(), st.integers(0, 2**32 - 1))
    def feed(data: bytes, chance: int) -> None:
        began_s = time.process_time()
        try:
            target.read(data, random.Random(chance))
        except target.errors:
            pass
        assert time.process_time() - began_s < CPU_S, "it takes too long"

    feed()


def pieces(data: bytes, chance: random.Random) -> Iterator[bytes]:
    """Split input into pieces, as a network may."""
    sizes = chance.choice(((1,), (1, 2, 3), (1, 10, 1000), (100, 5000), (1 << 20,)))
    start = 0
    while start < len(data):
        size = chance.choice(sizes)
        yield data[start : start + size]
        start += size
