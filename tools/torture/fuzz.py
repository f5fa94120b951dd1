"""Feeds every target in turn, for ten minutes by default, and shows what came of it.

The process ends with status 1 when something failed, and says how to see that again.
"""

from __future__ import annotations

import argparse
import faulthandler
import random
import resource
import sys
import time
from collections.abc import Callable

from tests.fuzz.harness import CPU_S, Result, Target, run
from tests.fuzz.targets import TARGETS

SECONDS = 600.0
MEMORY_BYTES = 4 * 1024**3
"""No input takes so much; the system is safe from one that would."""


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tools.torture.fuzz", description=__doc__)
    names = [target.name for target in TARGETS]
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for all together")
    parser.add_argument("--only", choices=names, action="append", help="may be repeated")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**9)
    given = parser.parse_args()
    targets = [target for target in TARGETS if target.name in (given.only or names)]
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    print(f"seed {given.seed}")
    print(f"{'target':18}{'inputs':>10}{'a second':>10}{'accepted':>10}{'MiB':>8}{'slowest':>10}")
    failed = False
    for target in targets:
        failed |= _shown(target, given.seed, given.seconds / len(targets))
    return 1 if failed else 0


def _shown(target: Target, seed: int, seconds: float) -> bool:
    """Run one target and print its row; return whether it failed."""
    began = time.monotonic()
    faulthandler.dump_traceback_later(seconds + 30 * CPU_S, exit=True)  # for what no signal ends
    result = run(target, random.Random(f"{seed} {target.name}"), goes_on=_until(began + seconds))
    faulthandler.cancel_dump_traceback_later()
    elapsed_s = time.monotonic() - began
    print(
        f"{target.name:18}{result.inputs:10}{result.inputs / elapsed_s:10.0f}"
        f"{result.accepted / max(result.inputs, 1):10.0%}{result.size_bytes / 2**20:8.1f}"
        f"{result.slowest_s * 1000:7.0f} ms",
        flush=True,
    )
    for failure in result.failures:
        print(f"  {failure.problem}\n  check({target.name!r}, {failure.data!r}, {failure.seed})")
    return bool(result.failures)


def _until(end: float) -> Callable[[Result], bool]:
    return lambda result: time.monotonic() < end


if __name__ == "__main__":
    sys.exit(main())
