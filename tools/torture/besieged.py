"""What a good client of the proxy notices of an attack on it, in front of a real containerd."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import grpc

from pycrictl._proto import cri_pb2
from tests.node.kubelet import RUNTIME
from tests.node.lab import MIB, Lab
from tests.proxy.program import OPTIONS, Program
from tools.torture.attacks import ON_STREAMS, VERSION, attack

IDLE_S: Final = 5.0
PAUSE_S: Final = 0.01

MORE_S: Final = 0.1
"""The most by which the 99th percentile of a call may grow."""

MORE_BY_ROOT_S: Final = 2.0
"""The same by an attack on the CRI socket, which is root's."""

START_S: Final = 1.0
"""The longest that a stream may take to start."""

MEMORY_BYTES: Final = 128 * MIB
MEMORY_BY_ROOT_BYTES: Final = 1024 * MIB
"""What the unit lets the proxy have (MemoryMax): what gRPC holds of a client is gRPC's."""

LINES_PER_MIN: Final = 100
_STEPS: Final = 3


@dataclass
class Siege:
    """The figures of one row: 99th percentiles of ``version`` on a new connection, and the rest.

    ``direct_idle_s`` and ``direct_s`` are what a call to the runtime itself took before and
    meanwhile: how much slower it got is the machine's doing, and a call through the proxy is three
    such steps. ``waited`` is the part of the time in which the proxy could have run and had no
    processor.
    """

    by_root: bool
    idle_s: float
    attacked_s: float
    direct_idle_s: float
    direct_s: float
    calls: int
    start_s: float
    peak_bytes: int
    lines_per_min: float
    has_traceback: bool
    failed: list[str]
    waited: float

    def __str__(self) -> str:
        parts = [
            f"version p99 {self.idle_s * 1e3:.1f} -> {self.attacked_s * 1e3:.1f} ms",
            f"directly {self.direct_idle_s * 1e3:.1f} -> {self.direct_s * 1e3:.1f} ms",
            f"{self.calls} calls",
            f"{self.peak_bytes / MIB:.1f} MiB",
            f"{self.lines_per_min:.0f} lines/min",
            f"without a processor {self.waited:.0%}",
        ]
        if self.start_s:
            parts.append(f"streams start within {self.start_s * 1e3:.0f} ms")
        return ", ".join(parts)

    @property
    def faults(self) -> list[str]:
        """What is not as it must be."""
        busy_s = _STEPS * max(0.0, self.direct_s - self.direct_idle_s)
        more_s = busy_s + (MORE_BY_ROOT_S if self.by_root else MORE_S)
        bounds = (
            (self.attacked_s <= self.idle_s + more_s, "a good client waits"),
            (self.start_s <= START_S, "a stream does not start in time"),
            (
                self.peak_bytes < (MEMORY_BY_ROOT_BYTES if self.by_root else MEMORY_BYTES),
                "the proxy takes too much memory",
            ),
            (self.lines_per_min < LINES_PER_MIN, "the log is flooded"),
            (not self.has_traceback, "the log has a traceback"),
            (not self.failed, f"calls of a good client fail: {self.failed[:3]}"),
        )
        return [fault for holds, fault in bounds if not holds]


def besieged(lab: Lab, name: str, seconds: float) -> Siege:
    """Run an attack, and a good client beside it."""
    with _proxy(lab) as proxy:
        failed: list[str] = []
        where = path = str(proxy.socket_path)
        runtime = lab.node.endpoint.removeprefix("unix://")
        idle, direct_idle = [], []
        for _ in _until(IDLE_S):
            idle.append(_version_s(path, failed))
            direct_idle.append(_version_s(runtime, failed))
        before = proxy.log().count("\n")
        is_on_streams = name in ON_STREAMS
        if is_on_streams:
            where = proxy.log().partition(" streams=")[2].split()[0]
            pod = lab.node.kubelet.run_pod("siege")
        attacked, direct, starts = [], [], [0.0]
        waited_s = _waited_s(proxy)
        with attack(name, where):
            for count, _ in enumerate(_until(seconds)):
                attacked.append(_version_s(path, failed))
                direct.append(_version_s(runtime, failed))
                if is_on_streams and count % 20 == 0:
                    starts.append(_start_s(proxy, pod.id))
            peak_bytes = proxy.peak_bytes()
            waited_s = _waited_s(proxy) - waited_s
        lines = proxy.log().count("\n") - before
        return Siege(
            not is_on_streams,
            _p99(idle),
            _p99(attacked),
            _p99(direct_idle),
            _p99(direct),
            len(attacked),
            max(starts),
            peak_bytes,
            lines * 60 / max(seconds, 60),
            "Traceback" in proxy.log(),
            failed,
            waited_s / seconds,
        )


@contextmanager
def _proxy(lab: Lab) -> Iterator[Program]:
    proxy = Program(lab.folder, lab.node.endpoint, "--max-parallel-image-pulls", "2")
    with proxy:
        yield proxy
    lab.node.kubelet.remove_pods()
    proxy.log_path.unlink()


def _until(seconds: float) -> Iterator[None]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(PAUSE_S)


def _version_s(path: str, failed: list[str]) -> float:
    began = time.monotonic()
    with grpc.insecure_channel(f"unix:{path}", options=OPTIONS) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(VERSION)
        try:
            call(b"", timeout=60)
        except grpc.RpcError as exc:
            failed.append(str(exc))
    return time.monotonic() - began


def _start_s(proxy: Program, pod_id: str) -> float:
    """How long a stream takes to start once its URL is known."""
    request = cri_pb2.ImagePullProgressRequest(pod_sandbox_id=pod_id)
    response = cri_pb2.ImagePullProgressResponse
    parts = urlsplit(proxy.kubelet.call(RUNTIME + "ImagePullProgress", request, response).url)
    assert parts.port
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", parts.port), timeout=60) as sock:
        sock.sendall(f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
        assert sock.recv(13) == b"HTTP/1.1 200 "
    return time.monotonic() - began


def _waited_s(proxy: Program) -> float:
    return int(Path(f"/proc/{proxy.pid}/schedstat").read_text().split()[1]) / 1e9


def _p99(samples: list[float]) -> float:
    return sorted(samples)[math.ceil(len(samples) * 0.99) - 1]
