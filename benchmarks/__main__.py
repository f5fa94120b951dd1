"""``python -m benchmarks [--only NAME]... [--list]``: run benchmarks and print a table.

The exit status is 0 whether or not the goals are met, and 1 if a benchmark could not run.
Benchmarks of programs that are not built are skipped.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks import (
    cluster,
    container_cp,
    copy,
    hosts,
    lists,
    logs,
    proxy,
    pull,
    sessions,
    start,
    why,
)
from benchmarks.harness import Benchmark, SkippedError

MODULES = (start, lists, logs, sessions, pull, proxy, copy, container_cp, cluster, why, hosts)
BENCHMARKS = tuple(benchmark for module in MODULES for benchmark in module.BENCHMARKS)
ROW = "{:<16} {:>13} {:>13} {:>7} {:>8}  {}"


def main() -> int:
    arguments = _parser().parse_args()
    if arguments.list:
        for benchmark in BENCHMARKS:
            print(f"{benchmark.name:<16} {benchmark.goal}  {benchmark.text}")
        return 0
    chosen = [
        benchmark
        for benchmark in BENCHMARKS
        if not arguments.only or benchmark.name in arguments.only
    ]
    return 0 if _run(chosen) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks", description="Compare pycrictl with less.")
    parser.add_argument(
        "--only",
        action="append",
        metavar="NAME",
        choices=[benchmark.name for benchmark in BENCHMARKS],
        help="run this one; may be repeated",
    )
    parser.add_argument("--list", action="store_true", help="name the benchmarks and end")
    return parser


def _run(benchmarks: Sequence[Benchmark]) -> bool:
    """Print a row for each benchmark as soon as it has run; return whether all could run."""
    print(ROW.format("name", "ours", "bare", "ratio", "goal", "ok"), flush=True)
    all_ran = True
    for benchmark in benchmarks:
        try:
            measured = benchmark.measure()
        except SkippedError as exc:
            print(f"{benchmark.name:<16} skipped: {exc}", flush=True)
            continue
        except Exception as exc:  # the others can still run
            all_ran = False
            print(f"{benchmark.name:<16} cannot run: {exc or type(exc).__name__}", flush=True)
            continue
        row = ROW.format(
            benchmark.name,
            benchmark.show(measured.ours),
            benchmark.show(measured.bare),
            f"{measured.ratio:.3f}",
            str(benchmark.goal),
            "yes" if benchmark.goal.is_met(measured.ratio) else "NO",
        )
        print(row, flush=True)
    return all_ran


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
