"""How attacks affect a good client: on a proxy in front of a real containerd, on an agent's port,
on an agent by a lost node, and on its copies by a user who exhausts their limits."""

from __future__ import annotations

import json
import math
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import grpc

from pycrictl._proto import cri_pb2
from pycrictl.proxy import server
from tests.cluster.agent.attackers import FORGED, ask
from tests.cluster.agent.copies.conftest import Plugin, plugin_of
from tests.cluster.agent.program import Program as Agent
from tests.cluster.agent.program import running
from tests.cluster.agent.standing import AUDIENCE, Cluster, standing
from tests.e2e.node.kubelet import RUNTIME
from tests.e2e.node.lab import MIB, Lab
from tests.fakecri.server import serve
from tests.kube.apiserver import make_node_certificates
from tests.proxy.copier import pretended
from tests.proxy.program import OPTIONS, Program
from tests.support.besieged_agent import KEPT_BYTES, MOST_BYTES, samples
from tests.waiting import settled
from tools.torture.attacks import FLOODS, ON_STREAMS, VERSION, attack, lies

IDLE_S: Final = 5.0
PAUSE_S: Final = 0.01

MORE_S: Final = 0.1
"""The most by which the 99th percentile of a call to the proxy may grow."""

MORE_BY_ROOT_S: Final = 0.5
"""The same for an attack on the CRI socket, which only root can make."""

START_S: Final = 1.0
"""The longest that a stream may take to start."""

MEMORY_BYTES: Final = 128 * MIB
MEMORY_BY_ROOT_BYTES: Final = 200 * MIB
"""For attacks by root: gRPC's own buffers for a client are not limited here."""

LINES_PER_MIN: Final = 100
_STEPS: Final = 3

LOST: Final = "lost-node"
ON_AGENT: Final = (*(f"agent-{name}" for name in FLOODS), f"agent-{LOST}")
ANSWER_S: Final = 0.25
HANDSHAKES_S: Final = 1.0
"""``ANSWER_S`` while strangers begin handshakes, each of which takes a millisecond of CPU time."""

LINES: Final = 60

HOARDER: Final = "agent-hoarder"
SPOOL_BYTES: Final = 200 * MIB
ANNOUNCED_BYTES: Final = 190 * MIB
KEPT_COPY_BYTES: Final = 60 * MIB
OWN_BYTES: Final = 20 * MIB
"""Size of the good user's copies, in and out."""

PLACES: Final = 32
"""Copies that one pod may have at once."""

COPY_S: Final = 5.0
_COPIES: Final = f"/apis/{AUDIENCE}/v1alpha1/namespaces/default/pods/web/containercopies"


class Siege(NamedTuple):
    """The figures of one row as text, and its violated bounds."""

    text: str
    faults: list[str]


def _judged(text: str, *bounds: tuple[bool, str]) -> Siege:
    return Siege(text, [fault for holds, fault in bounds if not holds])


def besieged(name: str, lab: Lab, seconds: float) -> Siege:
    """Run an attack and a good client at the same time."""
    if name == HOARDER:
        return _copies(seconds)
    return _agent(name, seconds) if name in ON_AGENT else _proxied(name, lab, seconds)


def p99(samples: list[float]) -> float:
    return sorted(samples)[math.ceil(len(samples) * 0.99) - 1]


# On a proxy


def _proxied(name: str, lab: Lab, seconds: float) -> Siege:
    """Measure ``version``, each time on a new connection.

    A slowdown of calls to the runtime itself is due to the machine, and a call through the proxy
    has three such steps.
    """
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
            where = proxy.streams
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
        # Each stream of the good client has its own line.
        lines = proxy.log().count("\n") - before - (len(starts) - 1)
        lines_per_min = lines * 60 / max(seconds, 60)
        busy_s = _STEPS * max(0.0, p99(direct) - p99(direct_idle))
        more_s = busy_s + (MORE_S if is_on_streams else MORE_BY_ROOT_S)
        text = (
            f"version p99 {_ms(p99(idle))} -> {_ms(p99(attacked))} ms,"
            f" directly {_ms(p99(direct_idle))} -> {_ms(p99(direct))} ms, {len(attacked)} calls,"
            f" {peak_bytes / MIB:.1f} MiB, {lines_per_min:.0f} lines/min,"
            f" without a processor {waited_s / seconds:.0%}"
        )
        if is_on_streams:
            text += f", streams start within {_ms(max(starts))} ms"
        return _judged(
            text,
            (p99(attacked) <= p99(idle) + more_s, "a good client waits"),
            (max(starts) <= START_S, "a stream does not start in time"),
            (
                peak_bytes < (MEMORY_BYTES if is_on_streams else MEMORY_BY_ROOT_BYTES),
                "the proxy takes too much memory",
            ),
            (lines_per_min < LINES_PER_MIN, "the log is flooded"),
            ("Traceback" not in proxy.log(), "the log has a traceback"),
            (not failed, f"calls of a good client fail: {failed[:3]}"),
        )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"


@contextmanager
def _proxy(lab: Lab) -> Iterator[Program]:
    flags = ("--max-parallel-image-pulls", "2")
    with Program(lab.folder, lab.node.endpoint, *flags, age_s=server.AGE_S) as proxy:
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
    """Return how long a stream takes to start once its URL is known."""
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


# On an agent


def _agent(name: str, seconds: float) -> Siege:
    attack_name = name.removeprefix("agent-")
    with tempfile.TemporaryDirectory() as folder:
        made = make_node_certificates(Path(folder))
        with (
            standing(made, Path(folder)) as cluster,
            running(cluster, "unix:///nonexistent.sock") as program,
        ):
            alone = samples(cluster, program, IDLE_S)
            before = program.rss
            with _attacked(cluster, program, attack_name):
                beside = samples(cluster, program, seconds)
                peak_bytes = program.peak_bytes
            settled(lambda: program.rss < before + KEPT_BYTES, limit_s=20)
            log = program.log.read_text()
            most_s = HANDSHAKES_S if attack_name == "half-open" else ANSWER_S
            text, memory = _memory(before, peak_bytes, program.rss)
            return _judged(
                f"answers p99 {_ms(p99(alone))} -> {_ms(p99(beside))} ms, {len(beside)} calls,"
                f" {text}, {log.count(chr(10))} lines",
                (p99(beside) <= max(most_s, 5 * p99(alone)), "a good client waits"),
                *memory,
                (log.count("\n") <= LINES, "the log is flooded"),
                ("Traceback" not in log, "the log has a traceback"),
            )


def _memory(before: int, peak: int, after: int) -> tuple[str, list[tuple[bool, str]]]:
    """Return an agent's memory as text, and its bounds."""
    return " -> ".join(f"{size / MIB:.0f}" for size in (before, peak, after)) + " MiB", [
        (peak < MOST_BYTES, "the agent takes too much memory"),
        (after < before + KEPT_BYTES, "memory is not given back"),
    ]


@contextmanager
def _attacked(cluster: Cluster, program: Agent, name: str) -> Iterator[None]:
    if name != LOST:
        with attack(name, f"127.0.0.1:{program.port}"):
            yield
        return
    liar = cluster.start("n2")
    cluster.add_pod("db", node="n2")
    liar.routes.cluster.of_own_node = lies()  # type: ignore[method-assign,assignment]  # lost node
    with cluster.kubectl().running("get", "imagepulls", "-A", "-w"):
        yield


# On its copies


def _copies(seconds: float) -> Siege:
    """Let one user take all places that they can get, while a good user copies."""
    with _standing() as (cluster, program, plugin, folder):
        file = folder / "file"
        file.write_bytes(os.urandom(OWN_BYTES))
        alone, errors = _copy(plugin, file, 2 * IDLE_S)
        assert not errors, errors
        before_bytes = program.rss
        hoarder = _Hoarder(cluster, program)
        thread = threading.Thread(target=hoarder.run)
        thread.start()
        try:
            settled(lambda: hoarder.most >= PLACES, limit_s=60)
            beside, errors = _copy(plugin, file, seconds)
        finally:
            hoarder.is_over.set()
            thread.join()
        peak_bytes = program.peak_bytes
        settled(lambda: program.rss < before_bytes + KEPT_BYTES, limit_s=20)
        text, memory = _memory(before_bytes, peak_bytes, program.rss)
        return _judged(
            f"copies at most {max(alone):.1f} -> {max(beside):.1f} s, {len(beside)} copies,"
            f" {len(errors)} failed, {hoarder.most} places held, {text}",
            (not errors, f"copies of the good user failed: {errors[:1]}"),
            (len(beside) >= 2, "the good user copied nothing"),
            (max(beside) <= max(COPY_S, 5 * max(alone)), "a good user waits"),
            (hoarder.most >= PLACES - 1, "the greedy user did not get half of all places"),
            *memory,
        )


class _Hoarder:
    """Keeps as many copies as it gets and polls them, but sends and reads no data."""

    def __init__(self, cluster: Cluster, program: Agent) -> None:
        self.most = 0
        self.is_over = threading.Event()
        self._names: list[str] = []
        self._port = program.port
        self._certificate = cluster.front_proxy

    def run(self) -> None:
        # Two archives that are kept whole on the disk; the rest are only announced.
        specs: list[dict[str, Any]] = [{"direction": "From", "path": "/kept"}] * 2
        specs += [
            {"direction": "To", "path": "/to/x", "size": ANNOUNCED_BYTES, "checksum": 0}
        ] * PLACES
        while not self.is_over.is_set():
            for spec in specs:
                if self.is_over.is_set():
                    return
                status, content = self._ask("POST", json.dumps({"spec": spec}).encode())
                if status == 201:
                    self._names.append(json.loads(content)["metadata"]["name"])
            self._names = [name for name in self._names if self._is_held(name)]
            self.most = max(self.most, len(self._names))

    def _is_held(self, name: str) -> bool:
        status, content = self._ask("GET", name=name)
        return status == 200 and json.loads(content)["status"]["phase"] not in (
            "Failed",
            "Succeeded",
        )

    def _ask(self, method: str, body: bytes | None = None, name: str = "") -> tuple[int, bytes]:
        path = f"{_COPIES}/{name}" if name else _COPIES
        headers = {**FORGED, "X-Remote-User": "mallory"}
        return ask(("127.0.0.1", self._port), path, self._certificate, headers, method, body)


def _copy(plugin: Plugin, file: Path, seconds: float) -> tuple[list[float], list[str]]:
    """Copy in and out for a time; return how long each copy took, and errors."""
    took, errors = [], []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for words in ((str(file), "web:/to/f"), ("web:/to/f", str(file.with_name("back")))):
            began = time.monotonic()
            done = plugin(*words)
            took.append(time.monotonic() - began)
            if done.returncode:
                errors.append(done.stderr.decode())
    return took, errors


@contextmanager
def _standing() -> Iterator[tuple[Cluster, Agent, Plugin, Path]]:
    """Start an agent with a container of a pod ``web``, and an administrator's plugin."""
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp", prefix="pct-") as name,  # on a disk
        serve() as fake,
        pretended(fake, Path(name, "root")) as container,
        standing(make_node_certificates(Path(name)), Path(name)) as cluster,
    ):
        folder = Path(name)
        (container.root / "kept").write_bytes(bytes(KEPT_COPY_BYTES))
        flags = ("--spool-dir", str(folder / "store"), "--spool-size", str(SPOOL_BYTES))
        with running(cluster, fake.endpoint, *flags) as program:
            cluster.add_endpoint("n1", program.port)
            cluster.add_pod("web", state={"running": {}}, phase="Running")
            with plugin_of(cluster.kubectl(), folder) as plugin:
                yield cluster, program, plugin, folder
