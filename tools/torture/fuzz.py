"""Fuzz every target in turn, for ten minutes by default, and stop at the first failure.

Hypothesis prints how to reproduce it.
"""

from __future__ import annotations

import argparse
import faulthandler
import resource
import time

from tests.fuzz.harness import CPU_S, run
from tests.fuzz.targets import TARGETS

SECONDS = 600.0
MEMORY_BYTES = 4 * 1024**3
"""More than any input needs; protects the system from one that takes more."""

ROUND = 500
"""Inputs from which hypothesis learns before it starts over."""


def main() -> None:
    """Run the targets that the command line selects."""
    parser = argparse.ArgumentParser(prog="python -m tools.torture.fuzz", description=__doc__)
    names = [target.name for target in TARGETS]
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for all together")
    parser.add_argument("--only", choices=names, action="append", help="may be repeated")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**9)
    given = parser.parse_args()
    targets = [target for target in TARGETS if target.name in (given.only or names)]
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    seed, seconds = given.seed, given.seconds / len(targets)
    for target in targets:
        began = time.monotonic()
        faulthandler.dump_traceback_later(seconds + 300 * CPU_S, exit=True)  # if an input hangs
        rounds = 0
        while time.monotonic() < began + seconds:
            run(target, seed=seed + rounds, most=ROUND)
            rounds += 1
        faulthandler.cancel_dump_traceback_later()
        print(f"{target.name:18}{rounds * ROUND:10} inputs from seed {seed}", flush=True)


if __name__ == "__main__":
    main()
