"""Copies with one process killed at a random moment: ``make kills``.

The victims are the program that copies, the proxy, the runtime and the container. In all cases, the
exit status must be 0 only if the copy is complete, the destination must be complete or unchanged,
and no stage, spool file or slot may be left.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, Self, TypeAlias

from pycrictl.copy.archive.pack import pack
from pycrictl.copy.tree.commit import COMMIT, STAGE_NAME
from pycrictl.copy.tree.places import THIS_MACHINE, open_source
from tests.copy.trees import stages_in
from tests.e2e.node.forked import Ended, Program
from tests.e2e.node.lab import MIB, Lab
from tests.proxy.copier import spools
from tests.proxy.program import Program as Proxy
from tests.waiting import settled

METHODS: Final = ("rpc", "node")
VICTIMS: Final = ("client", "proxy", "runtime", "container")
POINTS: Final = 20
LATEST: Final = 1.2
"""The latest moment of a kill, as a share of the time that a copy takes."""

SMALL_FILES: Final = 300
LARGE_FILES: Final = 3
LARGE_BYTES: Final = 6 * MIB
LONE_BYTES: Final = 24 * MIB
"""Large enough that the proxy does not spool the file, unless it was written to recently."""

EXPIRE_S: Final = 75.0
"""How long a slot may be taken if its URL is not opened; its own timeout is 60 s."""


Files: TypeAlias = dict[str, bytes]
"""Contents of files, by their names below a folder."""


class Way(NamedTuple):
    """What is copied, and how: ``in`` or ``out`` of the container, as a ``tree``, one to ``merge``
    with an existing tree, a ``file`` that replaces another, or an ``archive``."""

    method: str
    kind: str
    direction: str


def ways(method: str) -> list[Way]:
    """Return everything that can be copied by a method."""
    ways = [Way(method, kind, to) for kind in ("tree", "file", "merge") for to in ("in", "out")]
    ways.append(Way(method, "archive", "in"))
    return ways


@dataclass
class Tally:
    """Results of the copies during which one victim was killed.

    ``in_place`` are those that failed although the copy is complete: its end could not be reported.
    """

    victim: str
    method: str = ""
    completed: int = 0
    failed: int = 0
    in_place: int = 0
    phases: Counter[str] = field(default_factory=Counter)
    why: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def add(
        self, ended: Ended, into: Path, before: Files, complete: Files, faults: list[str], way: str
    ) -> None:
        if "Traceback" in ended.stderr:
            faults.append("a traceback")
        if ended.status not in (0, 1, -signal.SIGKILL if self.victim == "client" else 0):
            faults.append("an unexpected status")
        if ended.status == 1 and not re.search(r"(pycrictl|container-cp): ", ended.stderr):
            faults.append("no reason")
        content = read(into) if into.exists() else {}
        if content not in (before, complete):
            faults.append(f"{len(content)} of {len(complete)} files are there")
        if ended.status:
            self.failed += 1
            self.in_place += content == complete != before
            last = (ended.stderr.strip().splitlines() or [""])[-1]
            self.why[re.sub(r"[0-9a-f]*\d[0-9a-f]*", "N", last[:120])] += 1
        else:
            self.completed += 1
            if content != complete:
                faults.append("success without a complete copy")
        about = f"{way}: {ended.status} {ended.stderr[-500:]!r}"
        self.faults += [f"{fault}: {about}" for fault in faults]

    def __str__(self) -> str:
        phases = ", ".join(f"{name} {count}" for name, count in sorted(self.phases.items()))
        lines = [
            f"{self.victim:11}{self.method:5}{self.completed:4} completed,{self.failed:4} failed"
            f" ({self.in_place} in place), {len(self.faults)} faults; killed at {phases}"
        ]
        return "\n".join(lines + [f"{count:14} x {reason}" for reason, count in self.why.items()])


class Scene:
    """Data to copy, on this machine and in a container, and a destination on either side."""

    def __init__(self, lab: Lab, seed: int) -> None:
        self.lab = lab
        self.random = random.Random(seed)
        self.proxy = Proxy(lab.folder, lab.node.endpoint, "--container-copies-per-pod", "500")
        self._durations: dict[Way, float] = {}
        self._stack = ExitStack()
        self._root = -1

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            temporary = tempfile.TemporaryDirectory(dir="/var/tmp", prefix="pct-")
            self.folder = Path(stack.enter_context(temporary))
            stack.callback(self.proxy.log_path.unlink, missing_ok=True)
            stack.enter_context(self.proxy)
            # containerd may not respond for 30 s to a command whose client was killed, nor to later
            # ones in the same container.
            self._program = stack.enter_context(Program("--timeout", "60s", limit_s=90))
            self._make_content()
            kubelet = self.lab.node.kubelet
            kubelet.pull(self.lab.reference(self.lab.busybox))
            self._pod = kubelet.run_pod("kills")
            stack.callback(self._leave_container)
            self._new_container()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, victim: str, method: str, points: int) -> Tally:
        """Kill the victim at moments that are spread over the time that a copy takes."""
        tally = Tally(victim, method)
        shares = [(number + self.random.random()) / points for number in range(points)]
        self.random.shuffle(shares)
        todo: list[Way] = []
        for share in shares:
            todo = todo or self.random.sample(ways(method), len(ways(method)))
            self._kill_once(tally, todo.pop(), share)
        return tally

    def spools(self) -> list[str]:
        """Return the files without a name that the proxy holds."""
        return spools(self.proxy.pid)

    # What is copied

    def _make_content(self) -> None:
        tree = self.folder / "tree"
        for number in range(SMALL_FILES):
            path = tree / f"d{number % 7}/f{number}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.random.randbytes(self.random.randrange(8192)))
        for number in range(LARGE_FILES):
            (tree / f"large{number}").write_bytes(self.random.randbytes(LARGE_BYTES))
        (self.folder / "file").write_bytes(self.random.randbytes(LONE_BYTES))
        with (
            open_source(THIS_MACHINE, os.fsencode(tree)) as source,
            (self.folder / "archive").open("wb") as file,
        ):
            for piece in pack(source, on_skip=print):
                file.write(piece)
        self._tree = read(tree)
        self._file = read(self.folder / "file")

    def _new_container(self) -> None:
        """Start another container, and use it from now on."""
        self._leave_container()
        kubelet = self.lab.node.kubelet
        image = self.lab.reference(self.lab.busybox)
        self.container = kubelet.create_container(self._pod, image)
        kubelet.start_container(self.container)
        self.pid = kubelet.pid(self.container)
        # Held open: it is read after the container's end too.
        self._root = os.open(f"/proc/{self.pid}/root", os.O_PATH | os.O_DIRECTORY)
        # Named like the folder here, so that processes that still use it can be found.
        self._inside = Path(f"/proc/self/fd/{self._root}", self.folder.name)
        shutil.copytree(self.folder / "tree", self._inside / "tree")
        shutil.copy(self.folder / "file", self._inside / "file")

    def _leave_container(self) -> None:
        if self._root >= 0:
            os.close(self._root)
            self._root = -1

    # One copy

    def _kill_once(self, tally: Tally, way: Way, share: float) -> None:
        if way not in self._durations:
            self._durations[way] = self._measure(way, tally)
        if way.kind == "merge":
            share = 0.5 + share / 2  # more interesting once it has begun
        into, before, complete = self._prepare(way)
        victim = tally.victim
        direct = way.method != "rpc" and victim != "proxy"
        pid = self._start(way, self.lab.node.endpoint if direct else self.proxy.endpoint)
        time.sleep(share * LATEST * self._durations[way])
        tally.phases[self._kill(victim, pid, into, way)] += 1
        ended = self._program.end()
        if victim == "proxy":
            self.proxy.start()
        elif victim == "runtime":
            self.lab.node.start()
        if victim == "client":
            # The next copy removes what the killed one has left.
            small = f"{self.container}:/etc/passwd", str(self.folder / "passwd")
            command = "--runtime-endpoint", self.lab.node.endpoint, "cp", "--method", "node", *small
            self._program.start(*command, stdin=Path(os.devnull))
            swept = self._program.end()
            if swept.status:
                tally.faults.append(f"the next copy failed: {swept}")
        faults = self._judge(victim, ended, into)
        title = f"{way.kind} {way.direction} at {share:.0%}"
        tally.add(ended, into, before, complete, faults, title)
        if victim == "container":
            self._new_container()

    def _measure(self, way: Way, tally: Tally) -> float:
        """Return how long an undisturbed copy takes, once the program runs."""
        into, _, complete = self._prepare(way)
        direct = way.method != "rpc"
        self._start(way, self.lab.node.endpoint if direct else self.proxy.endpoint)
        began_s = time.monotonic()
        ended = self._program.end()
        duration_s = time.monotonic() - began_s
        if ended.status or read(into) != complete:
            tally.faults.append(f"an undisturbed copy failed: {way}: {ended}")
        return duration_s

    def _prepare(self, way: Way) -> tuple[Path, Files, Files]:
        """Make the destination; return it, its content, and the content to expect."""
        into = (self._inside if way.direction == "in" else self.folder) / "into"
        shutil.rmtree(into, ignore_errors=True)
        into.mkdir()
        source = (self.folder if way.direction == "in" else self._inside) / "file"
        # The proxy treats files differently if they were written to recently.
        age_s = self.random.choice((0, 60))
        os.utime(source, (time.time() - age_s, time.time() - age_s))
        if way.kind == "file":
            (into / "file").write_bytes(b"old")
            return into, {"file": b"old"}, {"file": self._file["."]}
        before: Files = {}
        if way.kind == "merge":
            # Every second file already exists, and one that is not copied.
            before = {f"tree/{name}": b"old" for name in ("other", *sorted(self._tree)[::2])}
            for name, data in before.items():
                (into / name).parent.mkdir(parents=True, exist_ok=True)
                (into / name).write_bytes(data)
        return into, before, before | {f"tree/{name}": data for name, data in self._tree.items()}

    def _start(self, way: Way, endpoint: str) -> int:
        inside = f"{self.container}:/{self.folder.name}"
        name = "file" if way.kind == "file" else "tree"
        into = "into/file" if way.kind == "file" else "into"
        stdin = Path(os.devnull)
        if way.kind == "archive":
            stdin, words = self.folder / "archive", ["-", f"{inside}/{into}"]
        elif way.direction == "in":
            words = [f"{self.folder}/{name}", f"{inside}/{into}"]
        else:
            words = [f"{inside}/{name}", f"{self.folder}/{into}"]
        command = ("--runtime-endpoint", endpoint, "cp", "--method", way.method, *words)
        return self._program.start(*command, stdin=stdin)

    def _kill(self, victim: str, pid: int, into: Path, way: Way) -> str:
        """Kill the victim; return the phase of the copy just before."""
        if victim == "client":
            with suppress(ProcessLookupError):  # it has already ended
                os.kill(pid, signal.SIGSTOP)
        phase = self._phase(pid, into, way)
        if victim == "client":
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        elif victim == "proxy":
            self.proxy.kill9()
        elif victim == "runtime":
            self.lab.node.kill9()
        else:
            os.kill(self.pid, signal.SIGKILL)
        return phase

    def _phase(self, pid: int, into: Path, way: Way) -> str:
        """Return how far a copy is: nothing, a file without a name, a stage, a merge, or all."""
        stages = stages_in(into)
        if any((stage / os.fsdecode(COMMIT)).exists() for stage in stages):
            return "commit"
        if stages:
            return "stage"
        last = into / "file" if way.kind == "file" else into / "tree/large0"
        if last.exists() and last.stat().st_size in (LARGE_BYTES, LONE_BYTES):
            return "end"
        return "unnamed" if spools(pid) or self.spools() else "begin"

    def _judge(self, victim: str, ended: Ended, into: Path) -> list[str]:
        """Return what is left but should not be."""
        faults = []
        # In a dead container nothing can be run; stages that stay there must be reported.
        is_dead = victim == "container"
        if not settled(
            lambda: all(is_dead and stage.name in ended.stderr for stage in stages_in(into))
        ):
            faults.append("a stage is left")
        # Copies that no client has fetched are kept for a while.
        if not settled(lambda: all(copy["state"] == "waiting" for copy in self.proxy.copies)):
            faults.append(f"a slot is taken: {self.proxy.copies}")
        if not settled(lambda: len(self.spools()) <= len(self.proxy.copies)):
            faults.append(f"spool files are left: {self.spools()}")
        return faults


def read(top: Path) -> Files:
    """Return the files below a directory, or the single file, without those of stages."""
    if top.is_file():
        return {".": top.read_bytes()}
    counts = {}
    for folder, names, files in os.walk(top):
        names[:] = [name for name in names if not is_stage(name)]
        for path in (Path(folder, name) for name in files if not is_stage(name)):
            counts[str(path.relative_to(top))] = path.read_bytes()
    return counts


def is_stage(name: str) -> bool:
    return STAGE_NAME.fullmatch(os.fsencode(name)) is not None


def held(proxy: Proxy) -> list[str]:
    """Return what a proxy still holds once everything that is kept for a while has expired."""
    if settled(lambda: not proxy.copies and not spools(proxy.pid), limit_s=EXPIRE_S):
        return []
    return [f"slots or spool files are left: {proxy.copies} {spools(proxy.pid)}"]


def main() -> int:
    """Kill every victim; return 0 if nothing was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, prog="make kills")
    parser.add_argument("--points", type=int, default=POINTS, help="of each victim and method")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--method", choices=("all", *METHODS), default="all")
    parser.add_argument("--victim", choices=("all", *VICTIMS), default="all")
    arguments = parser.parse_args()
    methods = METHODS if arguments.method == "all" else (arguments.method,)
    victims = VICTIMS if arguments.victim == "all" else (arguments.victim,)
    faults: list[str] = []
    with Lab() as lab, Scene(lab, arguments.seed) as scene:
        for victim in victims:
            for method in methods:
                tally = scene.run(victim, method, arguments.points)
                print(tally, flush=True)
                for fault in tally.faults[:5]:
                    print(f"  WRONG: {fault}")
                faults += tally.faults
        for fault in held(scene.proxy):
            print(f"WRONG: {fault}")
            faults.append(fault)
    print(f"{len(faults)} faults" if faults else "nothing is left, nothing was half done")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
