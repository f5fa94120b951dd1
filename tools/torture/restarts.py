"""A kubelet that must not notice restarts of its proxy: ``make restarts``.

It continuously lists pods, probes by exec and pulls images, with kubelet's own reconnect back-off,
while the proxy is reloaded, restarted, killed, and upgraded to a program that does not start. A
supervisor stands in for systemd.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import PycrictlError
from pycrictl.base.processes import is_running
from pycrictl.runtime.cri.calls.client import CriClient
from tests.e2e.node.kubelet import RUNTIME, Kubelet
from tests.fakecri.server import FakeServer, serve
from tests.proxy.program import Program
from tests.support.limited_pulls import ABSENT, pod, status
from tests.waiting import settled, wait_until

ROUNDS: Final = 50
SUCCESSOR_S: Final = 1.0
"""The time after a kill within which another process must serve."""

LIST_S: Final = 0.25
"""Interval of listing pods: shorter than kubelet's second, to expose more faults."""

WIDTH: Final = 15

RESTART_PAUSE_S: Final = 0.1
"""As the unit has it (``RestartSec``)."""

# As kubelet connects (pkg/kubelet/cri/remote: base 100 ms, at most 3 s, a try of at least 5 s).
KUBELET_OPTIONS: Final = (
    ("grpc.default_authority", "localhost"),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.max_reconnect_backoff_ms", 3000),
)


@dataclass
class Runtime:
    """Handles the fake runtime's pulls, and records how they end."""

    begun: Counter[str] = field(default_factory=Counter)
    cancelled: list[str] = field(default_factory=list)

    def pull(self, request: Any, context: grpc.ServicerContext) -> cri_pb2.PullImageResponse:
        image = request.image.image
        self.begun[image] += 1
        ended = threading.Event()
        context.add_callback(ended.set)
        if ended.wait(random.uniform(0.05, 0.6)):
            self.cancelled.append(image)
        return cri_pb2.PullImageResponse(image_ref=f"ref of {image}")

    def execute(self, request: Any, context: grpc.ServicerContext) -> cri_pb2.ExecSyncResponse:
        time.sleep(random.uniform(0.0, 0.3))
        return cri_pb2.ExecSyncResponse(stdout=b"alive")


class Supervisor:
    """Keeps a proxy alive as systemd does: one main process, started again when it has ended."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.main = program.pid
        self.is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self.is_over.wait(0.01):
            if not is_running(self.main):
                time.sleep(RESTART_PAUSE_S)
                self.program.start()
                self.main = self.program.pid

    def stop(self) -> None:
        self.is_over.set()
        self._thread.join()
        with suppress(ProcessLookupError):
            os.kill(self.main, signal.SIGKILL)


class Node:
    """A kubelet at work.

    Attributes:
        failures: calls that failed: when, which, and how.
        pulled: images whose pull succeeded.
    """

    def __init__(self, fake: FakeServer, folder: Path, period_s: float) -> None:
        self.runtime = Runtime()
        self.config = folder / "pycrictl.toml"
        self.config.write_text("max-parallel-image-pulls = 1\n")
        fake.offer("ImageStatus", ABSENT)
        fake.offer("Version", cri_pb2.VersionResponse(runtime_name="fake"))
        fake.offer("ListPodSandbox", cri_pb2.ListPodSandboxResponse())
        fake.offer("ExecSync", self.runtime.execute)
        fake.offer("PullImage", self.runtime.pull)
        self.program = Program(folder, fake.endpoint, "--config", str(self.config))
        self.program.start()
        self.supervisor = Supervisor(self.program)
        channel = grpc.insecure_channel(self.program.endpoint, options=KUBELET_OPTIONS)
        self.channel = channel
        self.kubelet = Kubelet(channel, cgroup_parent="/restarts")
        self.failures: list[tuple[float, str, str]] = []
        self.pulled: list[str] = []
        self.listed = 0
        self.took_s = 0.0
        self._images = itertools.count()
        self._is_over = threading.Event()
        self._period_s = period_s
        works = [self._list, self._execute, self._pull, self._pull]
        self._threads = [threading.Thread(target=self._work, args=(work,)) for work in works]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        self.supervisor.stop()
        self.program.__exit__(None, None, None)
        self.channel.close()

    def _work(self, work: Callable[[], None]) -> None:
        while not self._is_over.is_set():
            began = time.monotonic()
            try:
                work()
            except grpc.RpcError as exc:
                error: Any = exc
                problem = f"{error.code().name}: {error.details()}"
                # Recorded by its start, as a broken connection may be detected only later.
                self.failures.append((began, work.__name__.strip("_"), problem))
                self._is_over.wait(0.05)

    def _list(self) -> None:
        request, response = cri_pb2.ListPodSandboxRequest(), cri_pb2.ListPodSandboxResponse
        self.kubelet.call(RUNTIME + "ListPodSandbox", request, response)
        self.listed += 1
        self._is_over.wait(self._period_s)

    def _execute(self) -> None:
        request, response = cri_pb2.ExecSyncRequest(), cri_pb2.ExecSyncResponse
        assert self.kubelet.call(RUNTIME + "ExecSync", request, response).stdout == b"alive"
        self._is_over.wait(random.uniform(0.0, 0.3))

    def _pull(self) -> None:
        number = next(self._images)
        image = f"a/b:{number}"
        assert self.kubelet.pull(image, pod(f"p{number}")) == f"ref of {image}"
        self.pulled.append(image)

    # What happens to the proxy; each returns faults

    def reload(self) -> list[str]:
        """Hand over while a pull runs and another one waits."""
        with self._noticed() as faults:
            old, self.supervisor.main = self.supervisor.main, self.program.reload()
            # The old process ends once all its calls have ended.
            wait_until(lambda: not is_running(old))
        return faults + self._twice()

    def failed_upgrade(self) -> list[str]:
        """Hand over to a program that does not start."""
        good = self.config.read_text()
        with self._noticed() as faults:
            self.config.write_text("nonsense = 1\n")
            with suppress(PycrictlError):
                self.program.reload()
                faults.append("it did not fail")
            self.config.write_text(good)
        return faults + self._twice()

    def restart(self) -> list[str]:
        """Stop it gracefully; systemd starts another one."""
        # For a moment nothing serves; kubelet retries calls made then.
        with self._noticed("UNAVAILABLE: ", "CANCELLED: ") as faults:
            old = self.supervisor.main
            os.kill(old, signal.SIGTERM)
            wait_until(lambda: self.supervisor.main != old)
        return faults

    def kill(self) -> list[str]:
        """Kill it; another one serves within a second."""
        with self._noticed():
            old = self.supervisor.main
            began, path = time.monotonic(), str(self.program.socket_path)
            os.kill(old, signal.SIGKILL)
            while time.monotonic() < began + 60:
                with suppress(PycrictlError), CriClient(path, timeout_s=5) as client:
                    client.call("Version", cri_pb2.VersionRequest())
                    break
                time.sleep(0.01)
            self.took_s = time.monotonic() - began
            wait_until(lambda: self.supervisor.main != old)
        return []

    @contextmanager
    def _noticed(self, *expected: str) -> Iterator[list[str]]:
        """Yield a list of the failures until kubelet lists and pulls again, except ``expected``."""
        before, cancelled = len(self.failures), len(self.runtime.cancelled)
        faults: list[str] = []
        self._until_busy()
        yield faults
        listed, pulled = self.listed, len(self.pulled)
        wait_until(lambda: self.listed > listed and len(self.pulled) > pulled + 1)
        failures = self.failures[before:]
        faults += [
            str(failure)
            for failure in failures
            if not (expected and failure[2].startswith(expected))
        ]
        faults += [f"cancelled: {image}" for image in self.runtime.cancelled[cancelled:]]

    def _until_busy(self) -> None:
        def is_busy() -> bool:
            with suppress(PycrictlError):
                document = status(self.program)
                return bool(document["running"] and document["waiting"])
            return False

        assert settled(is_busy), self.program.log()[-2000:]

    def _twice(self) -> list[str]:
        refused = {image for image, count in self.runtime.begun.items() if count > 1}
        return [f"pulled anew: {image}" for image in refused]


@contextmanager
def node(period_s: float) -> Iterator[Node]:
    folder = Path(tempfile.mkdtemp(prefix="px-"))
    with serve() as fake:
        node = Node(fake, folder, period_s)
        try:
            yield node
        finally:
            node.stop()
            shutil.rmtree(folder)


def write(*cells: object) -> None:
    """Print a row of the table, with two digits of seconds."""
    texts = [f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in cells]
    print("".join(text.rjust(WIDTH) for text in texts), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    arguments = parser.parse_args()
    random.seed(arguments.seed)
    print(f"seed {arguments.seed}; seconds each took, after a kill until one served")
    count, rows = 0, list[list[float]]()
    with node(LIST_S) as running:
        ways = (running.reload, running.restart, running.kill, running.failed_upgrade)
        write("round", *(way.__name__ for way in ways), "lists", "pulls", "faults")
        for number in range(1, arguments.rounds + 1):
            row, faults = list[float](), list[str]()
            for way in ways:
                began = time.monotonic()
                seen = way()
                row.append(time.monotonic() - began)
                if way == running.kill:
                    row[-1] = running.took_s
                    if running.took_s > SUCCESSOR_S:
                        seen.append(f"nobody served for {running.took_s:.2f} s")
                faults += [f"    {way.__name__}: {fault}" for fault in seen]
            rows.append(row)
            count += len(faults)
            write(number, *row, running.listed, len(running.pulled), count)
            for fault in faults:
                print(fault, flush=True)
        if "Traceback" in running.program.log():
            count += 1
            print("    a traceback in the log")
    columns = list(zip(*rows, strict=True))
    write("median", *map(statistics.median, columns))
    write("most", *map(max, columns))
    print("FAILED" if count else "all of it holds")
    sys.exit(bool(count))


if __name__ == "__main__":
    main()
