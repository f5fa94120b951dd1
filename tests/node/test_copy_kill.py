"""Copies in which somebody is killed: the program, the runtime, or the container.

Whenever that happens, the program must not report success unless the copy is there, the destination
is as it was or complete, and no stage is left.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from pycrictl.copy.archive import pack
from pycrictl.copy.places import LocalRoot, open_source
from pycrictl.cri.client import CriClient

from .forked import Ended, Program
from .test_copy_node import Container, start

if TYPE_CHECKING:
    from .lab import Lab

FILES: Final = 60
STAGE_GONE_S: Final = 20


@pytest.fixture
def client(lab: Lab) -> Iterator[CriClient]:
    with CriClient(str(lab.node.socket_path), timeout_s=10) as client:
        yield client


@pytest.fixture
def program(lab: Lab) -> Iterator[Program]:
    with Program("--runtime-endpoint", lab.node.endpoint, "--timeout", "20s") as program:
        yield program


class Scene:
    """A tree, on this machine and in a container, and copies of it in both directions."""

    def __init__(self, folder: Path, program: Program, container: Container) -> None:
        self.folder = folder
        self.recover: Callable[[], None] = lambda: None
        self.tree = folder / "tree"
        self._program = program
        for number in range(FILES):
            path = self.tree / f"d{number % 7}/f{number}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(os.urandom(2**16 + number))
        self.content = read(self.tree)
        self.use(container)

    def use(self, container: Container) -> None:
        """Copy from and to another container from now on."""
        self.container = container
        # Held open: it is to be looked at after the container's end too.
        self._root = os.open(container.root, os.O_PATH | os.O_DIRECTORY)
        self.root = Path(f"/proc/self/fd/{self._root}")
        shutil.copytree(self.tree, self.root / "tree")
        (self.root / "into").mkdir()

    def leave(self) -> None:
        """Let go of the container."""
        os.close(self._root)

    @cached_property
    def archive(self) -> bytes:
        """The tree as an archive."""
        with open_source(LocalRoot(), os.fsencode(self.tree)) as source:
            return b"".join(bytes(piece) for piece in pack(source, on_skip=print))

    def feed(self, method: str, size_bytes: int, kill: Callable[[int], None]) -> None:
        """Copy into the container; when it has taken some bytes, somebody is killed."""
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        place = f"{self.container.id}:/into"
        pid = self._program.start("cp", "--method", method, "-", place, stdin=pipe)
        with pipe.open("wb", buffering=0) as file:
            alive = True
            try:
                file.write(self.archive[:size_bytes])
                kill(pid)
                file.write(self.archive[size_bytes:])
            except BrokenPipeError:
                alive = False
        pipe.unlink()
        ended = self._program.end()
        self._check(ended, self.root / "into", can_succeed=alive)

    def fetch(self, method: str, delay_s: float, kill: Callable[[int], None]) -> None:
        """Copy out of the container; after some time somebody is killed."""
        place = f"{self.container.id}:/tree"
        into = self.folder / "into"
        into.mkdir()
        pid = self._program.start("cp", "--method", method, place, into, stdin=Path(os.devnull))
        timer = threading.Timer(delay_s, kill, [pid])
        timer.start()
        ended = self._program.end()
        timer.join()
        self._check(ended, into, can_succeed=True)
        shutil.rmtree(into)

    def _check(self, ended: Ended, into: Path, *, can_succeed: bool) -> None:
        self.recover()
        assert "Traceback" not in ended.stderr, ended
        assert ended.status in (0, 1, -signal.SIGKILL), ended
        is_excused = "was left in the container" in ended.stderr
        give_up_at = time.monotonic() + STAGE_GONE_S
        while any(into.glob(".pycrictl-*")) and not is_excused:
            assert time.monotonic() < give_up_at, f"a stage is left: {ended}"
            time.sleep(0.02)
        found = {name: data for name, data in read(into).items() if name[:1] != "."}
        complete = {f"tree/{name}": data for name, data in self.content.items()}
        if ended.status == 0:
            assert can_succeed
            assert found == complete
        else:
            assert found in ({}, complete), (ended, sorted(found))
        if found:
            shutil.rmtree(into / "tree")


def read(top: Path) -> dict[str, bytes]:
    """The files below a directory."""
    return {
        str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()
    }


@pytest.fixture
def scene(lab: Lab, client: CriClient, program: Program) -> Iterator[Scene]:
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="pct-") as folder:
        scene = Scene(Path(folder), program, start(lab, client))
        yield scene
        scene.leave()


def points(seed: int, count: int, largest: float) -> list[float]:
    chosen = random.Random(seed)
    return [chosen.uniform(0, largest) for _ in range(count)]


@pytest.mark.parametrize(("method", "longest_s"), [("node", 0.4), ("exec", 0.8)])
def test_the_program_is_killed(scene: Scene, method: str, longest_s: float) -> None:
    def kill(pid: int) -> None:
        with suppress(ProcessLookupError):  # it was faster
            os.kill(pid, signal.SIGKILL)

    for position in points(1, 10, len(scene.archive)):
        scene.feed(method, int(position), kill)
    for delay_s in points(2, 10, longest_s):
        scene.fetch(method, delay_s, kill)


@pytest.mark.parametrize("method", ["node", "exec"])
def test_the_runtime_is_killed(lab: Lab, scene: Scene, method: str) -> None:
    def kill(_: int) -> None:
        lab.node.kill9()

    scene.recover = lab.node.start
    for position in points(3, 6, len(scene.archive)):
        scene.feed(method, int(position), kill)
    for delay_s in points(4, 4, 0.6):
        scene.fetch(method, delay_s, kill)


@pytest.mark.parametrize("method", ["node", "exec"])
def test_the_container_is_killed(lab: Lab, client: CriClient, scene: Scene, method: str) -> None:
    def kill(_: int) -> None:
        os.kill(pid, signal.SIGKILL)

    pod = lab.node.kubelet.run_pod("kill")
    for number in range(10):
        pid = scene.container.locate().pid
        if number % 2:
            [position] = points(number, 1, len(scene.archive))
            scene.feed(method, int(position), kill)
        else:
            [delay_s] = points(number, 1, 0.5)
            scene.fetch(method, delay_s, kill)
        scene.leave()
        container_id = lab.node.kubelet.create_container(pod, lab.reference(lab.busybox))
        lab.node.kubelet.start_container(container_id)
        scene.use(Container(client, container_id))
