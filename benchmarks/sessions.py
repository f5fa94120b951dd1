"""``exec``: the speed of output and input, and the time of a command that does nothing."""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Literal

import grpc

from benchmarks.harness import (
    Benchmark,
    CannotRunError,
    Goal,
    Measured,
    best_speeds,
    interleave,
    milliseconds,
)
from benchmarks.programs import pycrictl, run, yardstick
from benchmarks.session_server import LOAD_BYTES, LoadServer
from pycrictl._proto import cri_pb2
from tests.fakecri.server import FakeServer, serve

CONTAINER_ID = "0123456789abcdef" * 4
STREAM_ROUNDS = 15
TRUE_ROUNDS = 21
MB = 1_000_000
NOWHERE = Path(os.devnull)

Transport = Literal["spdy", "websocket"]


class _Server:
    """A runtime whose stream server measures the streams that it serves."""

    def __init__(self, fake: FakeServer) -> None:
        self.load = LoadServer()
        self.path = fake.path
        fake.offer("Exec", self._exec)

    def _exec(self, request: Any, _: grpc.ServicerContext) -> cri_pb2.ExecResponse:
        return cri_pb2.ExecResponse(url=f"http://127.0.0.1:{self.load.port}/exec/{request.cmd[0]}")

    def ours(self, *words: str) -> list[str]:
        return pycrictl("--runtime-endpoint", f"unix://{self.path}", "exec", *words)

    def speed(self, command: list[str], stdin: Path | None = None, stdout: Path = NOWHERE) -> float:
        """Run a program; return its bytes per second, from the first byte to the last."""
        run(command, stdin=stdin, stdout=stdout)
        moved = self.load.moved.get(timeout=10)
        if not moved:
            raise CannotRunError("the client went away too early")
        return moved


def _bare(server: _Server, transport: Transport, load: str) -> list[str]:
    return yardstick("bare_stream", str(server.load.port), transport, load)


def _stdout(transport: Transport) -> Measured:
    with tempfile.TemporaryDirectory() as folder, serve() as fake:
        server = _Server(fake)
        ours = server.ours("--transport", transport, CONTAINER_ID, "stdout")
        bare = _bare(server, transport, "stdout")
        output = Path(folder, "output")
        server.speed(ours, stdout=output)
        if output.stat().st_size != LOAD_BYTES:
            raise CannotRunError("the output is not complete")
        output.unlink()
        return best_speeds(
            lambda: server.speed(ours), lambda: server.speed(bare), rounds=STREAM_ROUNDS
        )


def _stdin() -> Measured:
    with tempfile.TemporaryDirectory() as folder, serve() as fake:
        server = _Server(fake)
        zeros = Path(folder, "zeros")
        zeros.write_bytes(bytes(LOAD_BYTES))
        ours = server.ours("--interactive", "--transport", "spdy", CONTAINER_ID, "stdin")
        bare = _bare(server, "spdy", "stdin")
        return best_speeds(
            lambda: server.speed(ours, zeros),
            lambda: server.speed(bare, zeros),
            rounds=STREAM_ROUNDS,
        )


def _true() -> Measured:
    with serve() as fake:
        server = _Server(fake)
        ours = server.ours(CONTAINER_ID, "true")
        bare = yardstick("bare_exec", server.path, CONTAINER_ID, "true")
        return interleave(
            lambda: run(ours, stdout=NOWHERE),
            lambda: run(bare, stdout=NOWHERE),
            rounds=TRUE_ROUNDS,
            warm_up_rounds=2,
        )


def _show_speed(speed: float) -> str:
    return f"{speed / MB:.0f} MB/s"


_TRANSPORTS: tuple[tuple[str, Transport], ...] = (("spdy", "spdy"), ("ws", "websocket"))
_LOAD = f"{LOAD_BYTES >> 20} MiB"

BENCHMARKS = (
    *(
        Benchmark(
            name=f"exec-stdout-{short}",
            text=f"{_LOAD} of output by exec over {transport} / read off the socket and dropped",
            goal=Goal(">=", 0.6),
            show=_show_speed,
            measure=partial(_stdout, transport),
        )
        for short, transport in _TRANSPORTS
    ),
    Benchmark(
        name="exec-stdin",
        text=f"{_LOAD} from a file as input of exec over spdy / copied from it to the socket",
        goal=Goal(">=", 0.5),
        show=_show_speed,
        measure=_stdin,
    ),
    Benchmark(
        name="exec-true",
        text="wall time of 'exec ID true' / of a bare program that imports grpc and websockets",
        goal=Goal("<=", 1.5),
        show=milliseconds,
        measure=_true,
    ),
)
