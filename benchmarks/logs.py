"""``logs``: the speed of reading a large log, and the time for its tail against a small log's."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

from benchmarks.harness import (
    Benchmark,
    CannotRunError,
    Goal,
    Measured,
    interleave,
    milliseconds,
    wall_s,
)
from benchmarks.programs import pycrictl, run
from pycrictl._proto import cri_pb2
from pycrictl.node.logs.log_reader import LogReader, Selection
from pycrictl.node.logs.logline import Grouping
from pycrictl.node.logs.logtime import timestamp_ns
from tests.fakecri.answers import container_status
from tests.fakecri.server import serve

LARGE_BYTES = 180_000_000
SMALL_LINES = 100
TEXT_CHARACTERS = (10, 150)
BLOCK_BYTES = 64 << 10
MB = 1_000_000
HALF = b"2024-01-02T03:13:00Z"


def write_log(path: Path, *, size_bytes: int, is_mixed: bool = False) -> None:
    """Write lines of one stream, as most logs have, or of both, every tenth of them partial."""
    chance = random.Random(1)
    with path.open("wb") as log:
        written = number = 0
        while written < size_bytes:
            text = "x" * chance.randint(*TEXT_CHARACTERS)
            second, nanosecond = divmod(number * 1_000_003, 10**9)
            time = f"2024-01-02T03:{second // 60 % 60:02}:{second % 60:02}.{nanosecond:09}Z"
            stream = "stderr" if is_mixed and chance.random() < 0.4 else "stdout"
            tag = "P" if is_mixed and chance.random() < 0.1 else "F"
            written += log.write(f"{time} {stream} {tag} {text}\n".encode())
            number += 1


def obvious_loop(
    path: Path, stdout: BinaryIO, stderr: BinaryIO, *, has_times: bool = False, since: bytes = b""
) -> None:
    """Show a log with minimal correct code: line by line, written in blocks."""
    outputs: dict[bytes, list[bytes]] = {b"stdout": [], b"stderr": []}
    streams = {b"stdout": stdout, b"stderr": stderr}
    begins = dict.fromkeys(outputs, True)
    size_bytes = 0
    with path.open("rb") as log:
        for line in log:
            time, stream, tag, text = line.split(b" ", 3)
            if time >= since:
                if has_times and begins[stream]:
                    outputs[stream] += (time, b" ")
                outputs[stream].append(text[:-1] if tag == b"P" else text)
            begins[stream] = tag != b"P"
            size_bytes += len(text)
            if size_bytes >= BLOCK_BYTES:
                for name, texts in outputs.items():
                    streams[name].write(b"".join(texts))
                    texts.clear()
                size_bytes = 0
    for name, texts in outputs.items():
        streams[name].write(b"".join(texts))


def _read(
    grouping: Grouping = "by stream",
    *,
    is_mixed: bool = True,
    has_times: bool = False,
    since: bytes = b"",
) -> Measured:
    """Measure bytes per second of our reader and the loop, in this process, into /dev/null."""
    selection = Selection(
        grouping=grouping,
        has_timestamps=has_times,
        since_ns=timestamp_ns(since) if since else None,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "0.log")
        write_log(path, size_bytes=LARGE_BYTES, is_mixed=is_mixed)
        with Path("/dev/null").open("wb", buffering=0) as nothing:

            def ours() -> None:
                for chunk in LogReader(str(path), selection, warn=_refuse).read():
                    nothing.write(chunk.data)

            def loop() -> None:
                obvious_loop(path, nothing, nothing, has_times=has_times, since=since)

            return interleave(
                lambda: LARGE_BYTES / wall_s(ours), lambda: LARGE_BYTES / wall_s(loop), rounds=5
            )


def _refuse(warning: str) -> None:
    raise CannotRunError(f"the log differs from what was written: {warning}")


def _row(
    name: str, suffix: str, goal: float, measure: Callable[..., Measured], **options: object
) -> Benchmark:
    return Benchmark(
        name=name,
        text=f"reading a log of {LARGE_BYTES // MB} MB{suffix} / the obvious loop over its lines",
        goal=Goal(">=", goal),
        show=lambda speed: f"{speed / MB:.0f} MB/s",
        measure=partial(measure, **options),
    )


def _tail() -> Measured:
    """Measure seconds of ``logs --tail 10`` for the large log and for a small one."""
    with tempfile.TemporaryDirectory() as folder:
        large, small = Path(folder, "large.log"), Path(folder, "small.log")
        write_log(large, size_bytes=LARGE_BYTES)
        write_log(small, size_bytes=SMALL_LINES * TEXT_CHARACTERS[1])
        with _tailing(large) as of_large, _tailing(small) as of_small:
            return interleave(lambda: run(of_large), lambda: run(of_small), rounds=15)


@contextmanager
def _tailing(path: Path) -> Iterator[list[str]]:
    """Serve a runtime, and yield the command line that shows the last lines of a log."""
    with serve() as server:
        container_id = "0123456789abcdef" * 4
        status = container_status(container_id, log_path=str(path))
        server.offer("ContainerStatus", cri_pb2.ContainerStatusResponse(status=status))
        yield pycrictl("-r", server.endpoint, "logs", "--tail", "10", container_id)


BENCHMARKS = (
    # The loop takes every line for a valid one. That leaves it faster only where both streams are
    # parted; crictl takes two to three times as long as either.
    _row("logs", "", 1.2, _read, is_mixed=False),
    _row("logs-both", ", both streams", 0.65, _read),
    _row("logs-merged", ", both streams to one file", 1.1, _read, grouping="merged"),
    _row("logs-times", ", both streams, with their times", 0.6, _read, has_times=True),
    _row("logs-since", ", both streams, half of it", 1.0, _read, since=HALF),
    Benchmark(
        name="logs-tail",
        text=f"logs --tail 10 of a log of {LARGE_BYTES // MB} MB / of a small one",
        goal=Goal("<=", 1.15),
        show=milliseconds,
        measure=_tail,
    ),
)
