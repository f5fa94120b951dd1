"""Fixtures for ``pycrictl cp`` by every method, with containers of a real containerd."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pycrictl._proto import cri_pb2
from tests.cli.run import PROGRAM
from tests.copy import trees
from tests.proxy.program import Program as Proxy

from .forked import Ended, Program
from .images import Image
from .lab import MIB, Lab

METHODS = ("rpc", "node")


@dataclass
class Cp:
    """A container, and runs of the program that copy to and from it by one method."""

    program: Program
    endpoint: str
    id: str
    method: str
    root: Path

    @property
    def keep(self) -> tuple[str, ...]:
        return () if self.method == "rpc" else ("-a",)

    def words(self, *words: str | Path) -> list[str]:
        """Return the arguments of a copy; ``C:`` at the beginning of a word means the container."""
        named = [re.sub("^C:", f"{self.id}:", str(word)) for word in words]
        return ["-t", "30s", "-r", self.endpoint, "cp", "--method", self.method, *named]

    def start(self, *words: str | Path, **settings: Any) -> subprocess.Popen[bytes]:
        command = [*PROGRAM, *self.words(*words)]
        return subprocess.Popen(command, **{"stdout": -1, "stderr": -1, **settings})

    def __call__(self, *words: str | Path, stdin: bytes = b"") -> Ended:
        return self.program.run(*self.words(*words), stdin=stdin)

    def ok(self, *words: str | Path, stdin: bytes = b"") -> str:
        """Copy, which must succeed, and return what was reported."""
        status, _, stderr = self(*words, stdin=stdin)
        assert status == 0, stderr
        return stderr

    def refused(self, *words: str | Path, stdin: bytes = b"") -> str:
        """Copy, which must fail with one line of error, and return that line."""
        status, _, stderr = self(*words, stdin=stdin)
        assert status == 1, stderr
        reported = [line for line in stderr.splitlines() if not line.startswith("hint: ")]
        assert len(reported) == 1, stderr
        return reported[0]


Start = Callable[..., Cp]


@pytest.fixture(scope="module")
def proxy(shared_lab: Lab) -> Iterator[Proxy]:
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp", prefix="pct-") as folder,
        Proxy(Path(folder), shared_lab.node.endpoint) as proxy,
    ):
        yield proxy


@pytest.fixture(scope="module")
def start_container(
    shared_lab: Lab, crictl: Program, request: pytest.FixtureRequest
) -> Iterator[Start]:
    """Yield a function that starts a container, by default of busybox, and returns a ``Cp``."""
    kubelet = shared_lab.node.kubelet

    def start(
        method: str,
        image: Image | None = None,
        *,
        command: Sequence[str] = ("sleep", "1000000"),
        mounts: Sequence[tuple[Path, str]] = (),
        read_only: bool = False,
        user: int = 0,
    ) -> Cp:
        reference = shared_lab.push(image or shared_lab.busybox)
        kubelet.pull(reference)
        context = cri_pb2.LinuxContainerSecurityContext(
            readonly_rootfs=read_only, run_as_user=cri_pb2.Int64Value(value=user)
        )
        container_id = kubelet.create_container(
            kubelet.run_pod("copy"),
            reference,
            command,
            mounts=[
                cri_pb2.Mount(
                    host_path=str(host),
                    container_path=inside.removesuffix(":ro"),
                    readonly=inside.endswith(":ro"),
                )
                for host, inside in mounts
            ],
            more=cri_pb2.ContainerConfig(
                linux=cri_pb2.LinuxContainerConfig(security_context=context)
            ),
        )
        kubelet.start_container(container_id)
        root = Path(f"/proc/{kubelet.pid(container_id)}/root")
        endpoint = shared_lab.node.endpoint
        if method == "rpc":
            endpoint = request.getfixturevalue("proxy").endpoint
        return Cp(crictl, endpoint, container_id, method, root)

    yield start
    shared_lab.clean()


@pytest.fixture(scope="module")
def containers(start_container: Start) -> Callable[[str], Cp]:
    started: dict[str, Cp] = {}

    def find(method: str) -> Cp:
        # Another test's cleanup may have removed it.
        if method not in started or not (started[method].root / "tmp").exists():
            started[method] = start_container(method)
        root = started[method].root
        left = [path for name in ("root", "tmp") for path in (root / name).iterdir()]
        subprocess.run(["rm", "-rf", *left], check=True)
        return started[method]

    return find


@pytest.fixture(params=METHODS)
def cp(request: pytest.FixtureRequest, containers: Callable[[str], Cp]) -> Cp:
    return containers(request.param)


def make_tree(top: Path) -> None:
    """Create everything that can be copied, below ``top``."""
    trees.make_tree(top)
    (top / "sub/deeper").mkdir()
    (top / "sub/deeper/big").write_bytes(os.urandom(3 * MIB + 1))
    for name in ("nothing", "with space", "-rf", "n" * 255):
        (top / name).write_text("" if name == "nothing" else name)
    (top / "link").symlink_to("sub/deeper")
    (top / "with space").chmod(0o4755)
    os.chown(top / "-rf", 12, 34)
    (top / "sub/empty").chmod(0o700)
    trees.set_times(top)


def whole_seconds(listing: dict[str, tuple[object, ...]]) -> dict[str, tuple[object, ...]]:
    return {
        path: (mode, not isinstance(content, Path) and int(str(mtime_ns)) // 10**9, *ids, content)
        for path, (mode, mtime_ns, *ids, content) in listing.items()
    }


def plain(listing: dict[str, tuple[object, ...]]) -> dict[str, tuple[object, ...]]:
    """Return a listing without what copies do not keep: times, owners and set-id bits."""
    return {path: (int(str(mode)) & 0o170777, row[-1]) for path, (mode, *row) in listing.items()}
