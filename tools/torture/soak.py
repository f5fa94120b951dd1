"""The proxy under all that can happen to it: ``make soak``, ``make soak ROWS=garbage SECONDS=20``.

The row ``everything`` takes ten minutes: pulls, copies, execs, port-forwards and watches run side
by side; containerd is killed with SIGKILL, the registry stopped and the proxy reloaded, again and
again. What fails meanwhile may fail, but only with one line and in time. In the end nothing may be
left: no process, descriptor, slot, token, spool file or stage, and the proxy's memory must be flat:
its median in the last third of the time at most a tenth above that in the first.

The other rows are attacks, each beside a good client (``besieged``).
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import re
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from pycrictl.proxy import admin
from tests.e2e.node.images import Image
from tests.e2e.node.lab import MIB, Lab
from tests.processes import children, descriptors, resident_bytes
from tests.proxy.program import Program
from tests.serving import free_port
from tests.waiting import settled
from tools.torture.attacks import ON_CRI, ON_STREAMS
from tools.torture.besieged import HOARDER, ON_AGENT, besieged
from tools.torture.kills import is_stage, read

SECONDS: Final = 600
SIEGE_S: Final = 30
COMMAND_LIMIT_S: Final = 60.0
"""No command may take longer, whatever dies."""

OUTAGE_EVERY_S: Final = 40.0
OUTAGE_S: Final = 4.0
RELOAD_EVERY_S: Final = 20.0
SETTLE_S: Final = 90.0
"""How long what was given up may stay: tokens and copies for 60 s, a program that has handed over
for 80 s, as clients may keep their connections for that long (``App._finish``)."""

SLOTS: Final = 2
COPY_BYTES: Final = 3 * MIB
GROWTH: Final = 1.1
"""The most by which the median of the proxy's memory may grow from the first third to the last."""


class Soak:
    def __init__(self, lab: Lab, proxy: Program, seed: int) -> None:
        self.lab, self.proxy = lab, proxy
        self.random = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.outages: Counter[str] = Counter()
        self.resident_bytes: list[int] = []
        self.is_over = threading.Event()
        self.folder = lab.folder / "soak"
        self.folder.mkdir()
        self._lock = threading.Lock()
        self.images = [self._image(number) for number in range(4)]
        reference = lab.reference(lab.busybox)
        lab.node.kubelet.pull(reference)
        self.pod = lab.node.kubelet.run_pod("soak")
        self.port = free_port()
        script = (
            "mkdir -p /www /in; echo hello >/www/index.html; "
            f"httpd -p 127.0.0.1:{self.port} -h /www; sleep 100000"
        )
        command = ["sh", "-c", script]
        self.container = lab.node.kubelet.create_container(self.pod, reference, command)
        lab.node.kubelet.start_container(self.container)
        self.tree = self.folder / "tree"
        self.tree.mkdir()
        for number in range(40):
            (self.tree / f"file {number}").write_bytes(self.random.randbytes(20_000))
        self.file = self.folder / "file"
        self.file.write_bytes(self.random.randbytes(COPY_BYTES))

    def _image(self, number: int) -> Image:
        layers = self.lab.layout.random_layers([2 * MIB, 3 * MIB], seed=9000 + number)
        image = self.lab.layout.image(f"soak{number}:1", layers)
        self.lab.push(image)
        return image

    # One pass of each kind of work; each returns whether all went well

    def pull(self) -> bool:
        image = self.random.choice(self.images)
        reference = self.lab.reference(image)
        done = self.run("pull", reference)
        if done.returncode == 0:
            self.check(image.config_digest in done.stdout, "pull reported another image", done)
            self.run("rmi", reference)
        return done.returncode == 0

    def watch(self) -> bool:
        done = self.run("image-pull-progress", "--progress", "json", self.pod.id)
        return done.returncode == 0

    def execute(self) -> bool:
        size_bytes = self.random.randrange(1, 300_000)
        data = self.random.randbytes(size_bytes)
        transport = self.random.choice(("websocket", "spdy"))
        done = self.run("exec", "-i", "--transport", transport, self.container, "cat", data=data)
        if done.returncode == 0:
            self.check(done.stdout.encode("latin-1") == data, "exec lost data", done)
        return done.returncode == 0

    def copy(self) -> bool:
        name = f"c{self.random.randrange(10**9)}"
        method = self.random.choice(("rpc", "node"))
        source, inside = self.random.choice(((self.file, "/in"), (self.tree, "/in")))
        target = f"{self.container}:{inside}/{name}"
        back = self.folder / name
        there = self.run("cp", "-q", "--method", method, str(source), target)
        ok = there.returncode == 0
        if ok:
            here = self.run("cp", "-q", "--method", method, target, str(back))
            ok = here.returncode == 0
            self.check(ok == back.exists(), "the status does not say what was copied", here)
            if ok:
                self.check(read(back) == read(source), "a copy differs", here)
        subprocess.run(["rm", "-rf", back], check=True)
        self.run("exec", "-s", self.container, "rm", "-rf", f"{inside}/{name}")
        return ok

    def forward(self) -> bool:
        """Fetch a file through a forwarded port."""
        words = self.command("port-forward", self.pod.id, f":{self.port}")
        with subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            timer = threading.Timer(COMMAND_LIMIT_S, process.kill)
            timer.start()
            try:
                line = process.stdout.readline()
                match = re.search(rb"127\.0\.0\.1:(\d+)", line)
                if match is None:
                    return False
                url = f"http://127.0.0.1:{match[1].decode()}/"
                fetched = subprocess.run(
                    ["curl", "--silent", "--fail", "--max-time", "20", "--output", os.devnull, url],
                    check=False,
                )
                return fetched.returncode == 0
            finally:
                timer.cancel()
                process.terminate()
                process.communicate(timeout=COMMAND_LIMIT_S)

    def poll(self) -> bool:
        done = self.run("ps", "-a", "-o", "json")
        if done.returncode == 0:
            self.check(self.container in done.stdout, "ps does not show a container", done)
        return done.returncode == 0

    # What they need

    def command(self, *words: str) -> list[str]:
        return [
            sys.executable, "-m", "pycrictl", "--max-retries", "0", "-t", "20s",
            *("-r", self.proxy.endpoint, *words),
        ]  # fmt: skip

    def run(self, *words: str, data: bytes = b"") -> subprocess.CompletedProcess[str]:
        """Run a command to its end; whatever fails must be reported in order, and in time."""
        began_s = time.monotonic()
        try:
            raw = subprocess.run(
                self.command(*words),
                input=data,
                capture_output=True,
                timeout=COMMAND_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            self.wrong.append(f"{words[0]} did not end within {COMMAND_LIMIT_S:.0f} s")
            return subprocess.CompletedProcess(words, 1, "", "")
        done = subprocess.CompletedProcess(
            words, raw.returncode, raw.stdout.decode("latin-1"), raw.stderr.decode("latin-1")
        )
        took = f"after {time.monotonic() - began_s:.1f} s"
        self.check("Traceback" not in done.stderr, f"a traceback {took}", done)
        if done.returncode:
            self.check("pycrictl: " in done.stderr, f"no reason {took}", done)
            self.check("--help" not in done.stderr, "a wrong command line", done)
        return done

    def check(self, holds: bool, subject: str, done: subprocess.CompletedProcess[str]) -> None:
        if not holds:
            errors = done.stderr.strip().splitlines()
            self.wrong.append(f"{subject}: {' '.join(done.args[:4])}: {errors[-1:]}")

    def work(self, kind: Callable[[], bool]) -> None:
        """Do one kind of work until the end."""
        while not self.is_over.is_set():
            ok = kind()
            with self._lock:
                (self.done if ok else self.failed)[kind.__name__] += 1
            self.is_over.wait(0.5)

    def break_things(self) -> None:
        """Kill the runtime and the registry by turns, and bring them back."""
        for number in range(10_000):
            if self.is_over.wait(OUTAGE_EVERY_S):
                return
            if number % 2 == 0:
                self.outages["containerd"] += 1
                self.lab.node.kill9()
                self.is_over.wait(OUTAGE_S)
                self.lab.node.start()
            else:
                self.outages["registry"] += 1
                self.lab.registry.cut(".")
                self.is_over.wait(OUTAGE_S)
                self.lab.registry.heal()

    def reload(self) -> None:
        """Have the proxy hand over to a new program, again and again."""
        while not self.is_over.wait(RELOAD_EVERY_S):
            self.proxy.reload()
            self.outages["reload"] += 1

    def measure(self) -> None:
        while not self.is_over.wait(2.0):
            self.resident_bytes.append(resident_bytes(self.proxy.main_pid))


def programs(endpoint: str) -> list[str]:
    """Programs of ours that still talk to an endpoint, but for the proxy itself."""
    faults = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if endpoint.encode() in words and b"proxy" not in words:
                faults.append(process.name)
    return faults


@contextmanager
def running(soak: Soak) -> Iterator[list[threading.Thread]]:
    """All work in threads, which are ended and waited for."""
    kinds = [soak.pull, soak.pull, soak.pull, soak.watch, soak.execute, soak.execute]
    kinds += [soak.copy, soak.copy, soak.forward, soak.poll]
    threads = [threading.Thread(target=soak.work, args=(kind,)) for kind in kinds]
    others = (soak.break_things, soak.reload, soak.measure)
    threads += [threading.Thread(target=other) for other in others]
    for thread in threads:
        thread.start()
    try:
        yield threads
    finally:
        soak.is_over.set()
        for thread in threads:
            thread.join(3 * COMMAND_LIMIT_S)


def judge(soak: Soak, before: list[str], threads: list[threading.Thread]) -> list[str]:
    """Everything that is not as it must be."""
    lab, proxy = soak.lab, soak.proxy
    faults = list(soak.wrong)
    faults += [f"{thread.name} did not end" for thread in threads if thread.is_alive()]
    faults += [f"{kind} never went well" for kind in soak.failed if not soak.done[kind]]

    def is_idle() -> bool:
        status = admin.ask(str(proxy.admin_path), "status", timeout_s=10.0)
        return not status["running"] and not status["waiting"]

    def is_closed() -> bool:
        return len(descriptors(proxy.main_pid)) <= len(before)

    if not settled(is_idle, limit_s=SETTLE_S):
        faults.append("a slot or a place in the queue was lost")
    if not settled(lambda: not proxy.older(), limit_s=SETTLE_S):
        faults.append(f"programs that handed over have not ended: {proxy.older()}")
    if not settled(is_closed, limit_s=SETTLE_S):
        now = Counter(re.sub(r"\d+", "N", name) for name in descriptors(proxy.main_pid))
        then = Counter(re.sub(r"\d+", "N", name) for name in before)
        faults.append(f"the proxy holds more than at the start: {dict(now - then)}")
    if not settled(lambda: not children(proxy.main_pid), limit_s=5.0):
        faults.append(f"the proxy has child processes: {children(proxy.main_pid)}")
    if spooled := [name for name in descriptors(proxy.main_pid) if "(deleted)" in name]:
        faults.append(f"spool files are open: {spooled}")
    if not settled(lambda: not programs(proxy.endpoint), limit_s=5.0):
        faults.append(f"programs go on: {programs(proxy.endpoint)}")
    if left := [str(path) for path in lab.folder.rglob(".pycrictl-*") if is_stage(path.name)]:
        faults.append(f"stages are left: {left[:3]}")
    third = len(soak.resident_bytes) // 3
    if third:
        first, last = memory(soak.resident_bytes)
        if last > first * GROWTH:
            faults.append(f"memory grew from {first / MIB:.1f} to {last / MIB:.1f} MiB")
    return faults


def memory(samples: list[int]) -> tuple[float, float]:
    """What the proxy used in the first third of the time, and in the last."""
    third = len(samples) // 3
    return statistics.median(samples[:third]), statistics.median(samples[-third:])


def report(soak: Soak, before: list[str]) -> None:
    kinds = sorted({*soak.done, *soak.failed})
    print(f"{'work':10}{'done':>8}{'failed':>8}")
    for kind in kinds:
        print(f"{kind:10}{soak.done[kind]:8}{soak.failed[kind]:8}")
    outages = ", ".join(f"{name} {count}" for name, count in sorted(soak.outages.items()))
    print(f"outages: {outages or 'none'}")
    if len(soak.resident_bytes) >= 3:
        first, last = memory(soak.resident_bytes)
        limit = f"at most {first * GROWTH / MIB:.1f}"
        print(f"memory of the proxy: {first / MIB:.1f} MiB, in the end {last / MIB:.1f} ({limit})")
    now = len(descriptors(soak.proxy.main_pid))
    print(f"descriptors of the proxy: {len(before)}, in the end {now}")


def main() -> int:
    """Run the rows; 0 if nothing was wrong."""
    attacks = (*ON_CRI, *ON_STREAMS, *ON_AGENT, HOARDER)
    parser = argparse.ArgumentParser(description=__doc__, prog="make soak")
    parser.add_argument("rows", nargs="*", choices=[[], "everything", *attacks], metavar="ROW")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    faults: list[str] = []
    with Lab() as lab:
        for row in arguments.rows or ("everything", *attacks):
            if row == "everything":
                faults += everything(lab, arguments.seconds or SECONDS, arguments.seed)
            else:
                seconds = arguments.seconds or SIEGE_S
                siege = besieged(row, lab, seconds)
                print(f"{row:20}{siege.text}", flush=True)
                faults += [f"{row}: {fault}" for fault in siege.faults]
    for fault in faults[:20]:
        print(f"WRONG: {fault}")
    print(f"{len(faults)} faults" if faults else "nothing is left, nothing was lost")
    return 1 if faults else 0


def everything(lab: Lab, seconds: float, seed: int) -> list[str]:
    """Do all kinds of work at once; return what was wrong."""
    flags = [
        "--max-parallel-image-pulls", str(SLOTS), "--container-copies-per-pod", "8",
        "--metrics-listen", "127.0.0.1:0",
    ]  # fmt: skip
    with Program(lab.folder, lab.node.endpoint, *flags) as proxy:
        soak = Soak(lab, proxy, seed)
        # What the proxy opens once and keeps counts as there from the start.
        inside = f"{soak.container}:/in/first"
        for ends in ((str(soak.tree), inside), (inside, str(soak.folder / "first"))):
            soak.run("cp", "-q", "--method", "rpc", *ends)
        soak.pull()
        soak.poll()
        lab.registry.limit(6 * MIB)
        before = descriptors(proxy.main_pid)
        with running(soak) as threads:
            soak.is_over.wait(seconds)
        lab.registry.heal()
        lab.registry.limit(None)
        gc.collect()
        faults = judge(soak, before, threads)
        report(soak, before)
        return faults


if __name__ == "__main__":
    sys.exit(main())
