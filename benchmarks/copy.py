"""``pycrictl cp`` against ``cp`` on the same file system, with a container of a real containerd.

Small files are kept until the end of a benchmark: some file systems are slow to reuse the inode of
a file that has just been removed, which would be measured instead. There is no room to keep many
large files. A virtual machine may return memory unused for two seconds to its host, and getting it
back takes longer than the copy: so right before each large copy, by either program, another one is
made and thrown away.
"""

from __future__ import annotations

import os
import select
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path

from benchmarks.harness import CannotRunError, Goal, Measured, best_speeds, interleave, row
from benchmarks.programs import pycrictl, yardstick
from tests.e2e.node.lab import MIB, Lab
from tests.processes import peak_bytes
from tests.proxy.program import Program

FOLDER = "/var/tmp"
"""On the same disk as the containers, which /tmp may not be."""

SIZE_BYTES = 1024 * MIB
SMALL_FILES = 10_000
SMALL_BYTES = 4096
ROUNDS = 11
TIMEOUT_S = 120


class Scene:
    """A running container, a file and a tree of small files on both sides, and copies of them."""

    def __init__(self, lab: Lab, folder: Path, endpoint: str) -> None:
        self.folder = folder
        self._names = count()
        kubelet = lab.node.kubelet
        image = lab.reference(lab.busybox)
        kubelet.pull(image)
        self.container = kubelet.create_container(kubelet.run_pod("copy"), image)
        kubelet.start_container(self.container)
        self._endpoint = endpoint
        # The container's root file system, which is a directory on the node's disk.
        self.root = Path(f"/proc/{kubelet.pid(self.container)}/root")

    def new(self, folder: Path) -> Path:
        return folder / f"copy-{next(self._names)}"

    def file(self, path: Path) -> None:
        with path.open("wb") as file:
            for _ in range(SIZE_BYTES // MIB):
                file.write(os.urandom(MIB))
        # Old, as most files are: a file just written would be spooled on its way out by rpc.
        an_hour_ago = time.time() - 3600
        os.utime(path, (an_hour_ago, an_hour_ago))

    def tree(self, path: Path) -> None:
        for number in range(SMALL_FILES):
            file = path / str(number // 100) / str(number)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(os.urandom(SMALL_BYTES))

    def cp(self, *words: str | Path) -> float:
        return timed(["cp", *map(str, words)])[0]

    def copy(self, method: str, source: str | Path, target: str | Path) -> tuple[float, int]:
        """Run ``pycrictl cp``; return its time in seconds and its peak memory in bytes."""
        words = ("cp", "--quiet", "--method", method, str(source), str(target))
        return timed(pycrictl("--runtime-endpoint", self._endpoint, *words))

    def inside(self, path: Path) -> str:
        return f"{self.container}:/{path.relative_to(self.root)}"


@contextmanager
def _scene(*, through_proxy: bool = False) -> Iterator[Scene]:
    with ExitStack() as stack:
        lab = stack.enter_context(Lab())
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="pcb-", dir=FOLDER))
        endpoint = lab.node.endpoint
        if through_proxy:
            endpoint = stack.enter_context(Program(lab.folder, endpoint)).endpoint
        yield Scene(lab, Path(folder), endpoint)


def timed(command: list[str], environ: dict[str, str] | None = None) -> tuple[float, int]:
    """Run a program; return its time in seconds and its peak memory in bytes."""
    begun = time.perf_counter()
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environ) as process:
        peak = 0
        # Not wait4: its figures for a new process include the process that started it.
        pidfd = os.pidfd_open(process.pid)
        with open(pidfd, "rb"):  # noqa: PTH123 (a descriptor has no path)
            while not select.select([pidfd], [], [], 0.02)[0]:
                peak = max(peak, peak_bytes(process.pid))
                if time.perf_counter() - begun > TIMEOUT_S:
                    process.kill()
        seconds = time.perf_counter() - begun
    if process.returncode:
        raise CannotRunError(f"{' '.join(command)!r} ended with {process.returncode}")
    return seconds, peak


def _removed(path: Path, seconds: float) -> float:
    """Remove a copy and return ``seconds``: there is no room to keep many large files."""
    if not path.exists():
        raise CannotRunError(f"nothing was copied to {path}")
    path.unlink()
    return seconds


def _large(method: str, *, into: bool) -> Measured:
    """Compare copies of the large file with cp(1), or over rpc with the library alone."""
    with _scene(through_proxy=method == "rpc") as scene:

        def ours(source: Path, target: Path) -> float:
            ends = (source, scene.inside(target)) if into else (scene.inside(source), target)
            return scene.copy(method, *ends)[0]

        def bare(source: Path, target: Path) -> float:
            if method == "node":
                return scene.cp("--reflink=never", source, target)
            direction = "in" if into else "out"
            return timed(yardstick("bare_copy", direction, str(source), str(target)))[0]

        local, inner = scene.folder, scene.root / "root"
        here, there = (local, inner) if into else (inner, local)
        source = here / "large"
        scene.file(source)

        def speed(copy: Callable[[Path, Path], float]) -> float:
            thrown_away, target = scene.new(there), scene.new(there)
            _removed(thrown_away, scene.cp(source, thrown_away))
            return SIZE_BYTES / MIB / _removed(target, copy(source, target))

        return best_speeds(partial(speed, ours), partial(speed, bare), rounds=ROUNDS)


def _small() -> Measured:
    with _scene() as scene:
        scene.tree(scene.folder / "tree")
        inner = scene.root / "root"

        def ours() -> float:
            target = scene.new(inner)
            return scene.copy("node", scene.folder / "tree", scene.inside(target))[0]

        def bare() -> float:
            return scene.cp("-a", scene.folder / "tree", scene.new(inner))

        return _speeds(interleave(ours, bare, rounds=ROUNDS), SMALL_FILES)


def _memory() -> Measured:
    with _scene() as scene:
        scene.file(scene.folder / "large")
        (scene.folder / "empty").touch()

        def peak(name: str) -> float:
            return scene.copy("node", scene.folder / name, f"{scene.container}:/root/x")[1] / MIB

        measured = interleave(partial(peak, "large"), partial(peak, "empty"), rounds=3)
        return Measured(measured.ours, measured.bare, measured.ours - measured.bare)


def _speeds(times: Measured, amount: float) -> Measured:
    return Measured(amount / times.ours, amount / times.bare, 1 / times.ratio)


BENCHMARKS = (
    row(
        "copy-out",
        "1 GiB out of a container by 'cp --method node', start included / by cp",
        Goal(">=", 0.75),
        "MiB/s",
        partial(_large, "node", into=False),
    ),
    row(
        "copy-in",
        "the same into a container",
        Goal(">=", 0.75),
        "MiB/s",
        partial(_large, "node", into=True),
    ),
    row(
        "copy-rpc-out",
        "1 GiB out of a container by 'cp --method rpc' through the proxy / by websockets alone",
        Goal(">=", 1.3),
        "MiB/s",
        partial(_large, "rpc", into=False),
    ),
    row(
        "copy-rpc-in",
        "the same into a container through the proxy",
        Goal(">=", 1.6),
        "MiB/s",
        partial(_large, "rpc", into=True),
    ),
    row(
        "copy-small",
        f"{SMALL_FILES} files of 4 KiB into a container by 'cp --method node' / by cp -a",
        Goal(">=", 0.25),
        "files/s",
        _small,
    ),
    row(
        "copy-memory",
        "peak memory with 1 GiB - with an empty file, in MiB",
        Goal("<=", 16),
        "MiB",
        _memory,
    ),
)
