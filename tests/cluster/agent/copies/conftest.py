"""Agents, each with a fake container, and the real kubectl with the plugin."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from pycrictl.runtime.cri.calls.client import CriClient
from tests.cluster.agent.standing import Cluster
from tests.fakecri.server import FakeServer
from tests.kube.kubectl import Kubectl
from tests.processes import descriptors
from tests.proxy.copier import Pretended, container

__all__ = ["container"]

_SCRIPT = f"#!{sys.executable}\nfrom pycrictl.__main__ import run\nrun()\n"
LIMIT_S = 120
StartNode = Callable[..., Path]


class Plugin:
    """``kubectl container-cp`` as a user of the API server.

    Attributes:
        environ: its environment variables.
        runtime: where its socket folders are.
    """

    def __init__(self, kubectl: Kubectl, folder: Path) -> None:
        programs = folder / "bin"
        programs.mkdir(exist_ok=True)
        (programs / "kubectl-container_cp").write_text(_SCRIPT)
        (programs / "kubectl-container_cp").chmod(0o755)
        self.runtime = Path(tempfile.mkdtemp(prefix="run-"))
        self.environ = {
            **kubectl.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(Path(__file__).parents[4]),
            "XDG_STATE_HOME": str(folder / "state"),
            "TMPDIR": str(self.runtime),
        }

    def start(self, *words: str, **settings: Any) -> subprocess.Popen[bytes]:
        settings = {"stdin": subprocess.DEVNULL, "stdout": -1, "stderr": -1, **settings}
        return subprocess.Popen(["kubectl", "container-cp", *words], env=self.environ, **settings)

    def __call__(self, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        how: dict[str, Any] = {"capture_output": True, "timeout": LIMIT_S, "check": False}
        command = ["kubectl", "container-cp", *words]
        return subprocess.run(command, env=self.environ, input=stdin, **how)


def spooled(folder: Path) -> list[Path]:
    """Return the files in an agent's spool, including unnamed ones that a process has open."""
    files = list(folder.iterdir()) if folder.exists() else []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            held = map(Path, descriptors(int(process.name)))
            files += [path for path in held if path.parent == folder.resolve()]
    return files


@contextmanager
def plugin_of(kubectl: Kubectl, folder: Path) -> Iterator[Plugin]:
    plugin = Plugin(kubectl, folder)
    yield plugin
    plugin.runtime.rmdir()  # fails if anything is left


@pytest.fixture
def plugin(cluster: Cluster, tmp_path: Path) -> Iterator[Plugin]:
    with plugin_of(cluster.kubectl(), tmp_path) as made:
        yield made


@pytest.fixture
def start_node(cluster: Cluster, container: Pretended, fake: FakeServer) -> StartNode:
    """Return a function that starts a node with a running pod ``web`` and returns the spool."""

    @contextmanager
    def connect() -> Iterator[tuple[CriClient, None]]:
        with CriClient(fake.path, timeout_s=10) as client:
            yield client, None

    def start(node: str = "n1", **settings: Any) -> Path:
        store = container.root.parent / "store"
        cluster.start(node, connect, spool_dir=str(store), **settings)
        cluster.add_pod("web", node=node, state={"running": {}}, phase="Running")
        return store

    return start


@pytest.fixture
def node(start_node: StartNode) -> Path:
    return start_node()
