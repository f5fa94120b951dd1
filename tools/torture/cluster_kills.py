"""Copies by kubectl, with one process killed at a random moment: ``make kills``.

The victims are the plugin, its ``kubectl proxy``, the API server, the agent, the node's proxy,
containerd and the container. In all cases, the exit status must be 0 only if the copy is complete,
the destination must be complete or unchanged, and in the end no session, archive, stage, spool
file, slot, process or folder may be left.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.cluster.agent.copies.conftest import spooled
from tests.copy.trees import stages_in
from tests.e2e.node.forked import Ended
from tests.e2e.node.in_cluster import Distroless, InCluster, in_cluster
from tests.e2e.node.lab import MIB, Lab
from tests.processes import children
from tests.proxy.program import Program as Proxy
from tests.waiting import settled
from tools.torture.kills import LATEST, Tally, held, read

VICTIMS: Final = (*("client", "kubectl", "api server", "agent", "proxy", "runtime", "container"),)
OUTLIVED: Final = ("kubectl", "api server")
"""Victims whose death a running copy survives."""

POINTS: Final = 50
LIFETIME_S: Final = 30.0
"""How long idle sessions are kept here: longer than any outage."""

LIMIT_S: Final = 120
AWAY_S: Final = 0.3
BYTES_PER_S: Final = 32 * MIB
MOVING_BYTES: Final = 256 * 1024
"""Minimum traffic of the link once the bytes of a copy flow."""

SMALL_FILES: Final = 40
LARGE_BYTES: Final = 5 * MIB


class Kills:
    """Data to copy, on this machine and in a container, and a destination on either side.

    Args:
        world: a cluster without an agent.
        proxy: the node's.
        seed: of the random choices.
        lifetime_s: of the agent's sessions; 0 for the agent's default.
    """

    def __init__(self, world: InCluster, proxy: Proxy, seed: int, lifetime_s: float = 0.0) -> None:
        self.world, self.proxy = world, proxy
        self.random = random.Random(seed)
        self.tallies: dict[str, Tally] = {}
        self._lifetime_s = lifetime_s
        self._count = self._begun = 0
        self._local = world.folder / "local"
        self._make_content(self._local)
        self._start_agent()
        self._new_container()
        world.link.bytes_per_s = BYTES_PER_S
        self._duration_s = self._measure("to", "file")

    def run(self, points: int, victims: tuple[str, ...] = VICTIMS) -> list[str]:
        """Kill ``points`` times; return the faults."""
        todo: list[str] = []
        for _ in range(points):
            todo = todo or self.random.sample(victims, len(victims))
            victim = todo.pop()
            self._kill_once(self.tallies.setdefault(victim, Tally(victim)))
        self.world.link.bytes_per_s = 0
        faults = [fault for tally in self.tallies.values() for fault in tally.faults]
        return faults + self._left()

    # What is copied

    def _make_content(self, top: Path) -> None:
        tree = top / "tree"
        for number in range(SMALL_FILES):
            path = tree / f"d{number % 5}/f{number}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.random.randbytes(self.random.randrange(8192)))
        (tree / "large").write_bytes(self.random.randbytes(LARGE_BYTES))
        (top / "file").write_bytes(self.random.randbytes(2 * LARGE_BYTES))
        (top / "into").mkdir()
        self._content = {name: read(top / name) for name in ("tree", "file")}

    def _new_container(self) -> None:
        self._count += 1
        self.container: Distroless = self.world.add(f"k{self._count}")
        for name in ("tree", "into"):
            shutil.copytree(self._local / name, self.container.root / name)
        shutil.copy(self._local / "file", self.container.root / "file")

    def _start_agent(self) -> None:
        module = "tests.e2e.node.short_lived" if self._lifetime_s else "pycrictl"
        flags = [f"--lifetime={self._lifetime_s}"] if self._lifetime_s else []
        self.world.start_agent(*flags, endpoint=self.proxy.endpoint, module=module)

    # One copy

    def _kill_once(self, tally: Tally) -> None:
        victim = tally.victim
        way, kind = self.random.choice(("to", "from")), self.random.choice(("tree", "file"))
        flags = self.random.choice(([], ["-a"]))
        target, before = self._prepare(way, kind)
        share, by_bytes = self.random.random(), self.random.random() < 2 / 3
        self._begun = self.world.link.passed
        due = self._begun + share * self._size_bytes(kind)
        process = self._start(way, kind, *flags)
        if by_bytes:
            settled(lambda: self.world.link.passed > due or process.poll() is not None)
        else:
            time.sleep(share * LATEST * self._duration_s)
        is_moving = process.poll() is None and self._is_moving()
        tally.phases["moving" if is_moving else "rest"] += 1
        self._kill(victim, process)
        ended = self._end(process)
        if victim != "client":
            settled(lambda: stages_in(target.parent) == [])
        faults = self._judge(victim)
        goes_on = is_moving and victim in OUTLIVED
        if goes_on and ended.status:
            faults.append("it did not go on")
        unit = "of its bytes" if by_bytes else "of its time"
        about = f"{way} {kind} {flags} at {share:.0%} {unit}"
        tally.add(ended, target, before, self._content[kind], faults, about)
        if victim == "container":
            self._new_container()

    def _size_bytes(self, kind: str) -> int:
        return sum(map(len, self._content[kind].values()))

    def _is_moving(self) -> bool:
        """Return whether bytes of a copy have arrived while it is not over yet."""
        return self.world.link.passed > self._begun + MOVING_BYTES

    def _measure(self, way: str, kind: str) -> float:
        """Return how long an undisturbed copy takes."""
        target, _ = self._prepare(way, kind)
        begun_s = time.monotonic()
        ended = self._end(self._start(way, kind))
        duration_s = time.monotonic() - begun_s
        assert ended.status == 0, ended.stderr
        assert read(target) == self._content[kind]
        return duration_s

    def _prepare(self, way: str, kind: str) -> tuple[Path, dict[str, bytes]]:
        """Make the destination; return it and its content."""
        into = (self.container.root if way == "to" else self._local) / "into"
        for path in into.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if kind == "file" and self.random.random() < 0.5:
            (into / "file").write_bytes(b"old")
            return into / kind, {".": b"old"}
        return into / kind, {}

    def _start(self, way: str, kind: str, *flags: str) -> subprocess.Popen[bytes]:
        pod, local = self.container.name, self._local
        words = (
            [f"{local}/{kind}", f"{pod}:/into"]
            if way == "to"
            else [f"{pod}:/{kind}", f"{local}/into"]
        )
        return self.world.plugin.start(*flags, *words)

    def _end(self, process: subprocess.Popen[bytes]) -> Ended:
        try:
            _, stderr = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return Ended(99, b"", f"it did not end within {LIMIT_S} s")
        return Ended(process.returncode, b"", stderr.decode(errors="replace"))

    def _kill(self, victim: str, process: subprocess.Popen[bytes]) -> None:
        match victim:
            case "client":
                process.kill()
            case "kubectl":
                for pid in self.world.proxies:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            case "api server":
                self.world.cluster.api.restart(AWAY_S)
            case "agent":
                self.world.agent.kill()
                self._start_agent()
            case "proxy":
                self.proxy.kill9()
                self.proxy.start()
            case "runtime":
                self.world.lab.node.kill9()
                self.world.lab.node.start()
            case "container":
                os.kill(self.container.pid, signal.SIGKILL)

    def _judge(self, victim: str) -> list[str]:
        """Return what is left but should not be."""
        faults = []
        if victim == "client":  # the next copy clears up here
            words = f"{self.container.name}:/file", f"{self._local}/swept"
            ended = self._end(self.world.plugin.start(*words))
            if ended.status:
                faults.append(f"the next copy failed: {ended.stderr}")
        for top in (self.container.root / "into", self._local / "into"):
            if not settled(lambda top=top: stages_in(top) == []):  # type: ignore[misc]  # a default
                faults.append(f"a stage is left: {stages_in(top)}")
        if victim != "client" and not settled(lambda: self.world.archives == []):
            faults.append(f"archives are left: {self.world.archives}")
        if not settled(lambda: self.world.proxies == []):
            faults.append(f"kubectl goes on: {self.world.proxies}")
        agent = self.world.agent.process.pid
        if not settled(lambda: children(agent) == []):
            faults.append(f"the agent has child processes: {children(agent)}")
        return faults

    def _left(self) -> list[str]:
        """Return what is left at the end, once everything that is kept for a while has expired."""
        faults = []
        plugin, store = self.world.plugin, self.world.store
        for path in plugin.runtime.iterdir():
            os.utime(path, (1, 1))  # as if it were long ago
        ended = self._end(self._start("to", "file"))  # it sweeps
        if ended.status:
            faults.append(f"a last copy failed: {ended.stderr}")
        if left := list(plugin.runtime.iterdir()):
            faults.append(f"folders of kubectl are left: {left}")

        limit_s = 3 * self._lifetime_s
        if limit_s and not settled(lambda: not spooled(store), limit_s=limit_s):
            faults.append(f"archives are left: {spooled(store)}")
        return faults + held(self.proxy)


def main() -> int:
    """Kill every victim; return 0 if nothing was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, prog="make kills")
    parser.add_argument("--points", type=int, default=POINTS)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    arguments = parser.parse_args()
    print(f"copies by kubectl: {arguments.points} kills, seed {arguments.seed}")
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp", prefix="pct-") as folder,
        Lab() as lab,
        Proxy(lab.folder, lab.node.endpoint) as proxy,
    ):
        Path(folder, "world").mkdir()
        with in_cluster(lab, Path(folder), Path(folder, "world")) as world:
            kills = Kills(world, proxy, arguments.seed, LIFETIME_S)
            faults = kills.run(arguments.points)
    for tally in kills.tallies.values():
        print(tally)
    for fault in faults:
        print(f"  WRONG: {fault}")
    print(f"{len(faults)} faults" if faults else "nothing is left, nothing was half done")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
