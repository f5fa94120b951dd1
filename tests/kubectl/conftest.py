"""A stand-in of a cluster, and the program as kubectl finds it."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pycrictl.progress.endings import REOPEN_PAUSES_S
from tests.kubectl.cluster import Cluster, running
from tests.kubectl.plugin import Plugin

_SCRIPT = f"#!{sys.executable}\nfrom pycrictl.__main__ import run\nrun()\n"
_SHORTLY = "from pycrictl.progress import endings as e; e.REOPEN_PAUSES_S = (0.05,) * {}\n"


@pytest.fixture
def cluster(run_folder: Path) -> Iterator[Cluster]:
    with running(run_folder) as found:
        yield found


@pytest.fixture
def impatient(plugin: Plugin) -> None:
    """Let the plugin try again as often as always, but at once: not within 17 seconds."""
    program = Path(plugin.environ["PATH"].partition(":")[0], "kubectl-image_pull_progress")
    first, rest = _SCRIPT.split("\n", 1)
    program.write_text(f"{first}\n{_SHORTLY.format(len(REOPEN_PAUSES_S))}{rest}")


@pytest.fixture
def plugin(cluster: Cluster, tmp_path: Path) -> Iterator[Plugin]:
    """The plugin, with a kubeconfig for the cluster and folders of its own."""
    assert shutil.which("kubectl"), "kubectl is missing: run tests/node/install.sh"
    programs = tmp_path / "bin"
    programs.mkdir()
    runtime = Path(tempfile.mkdtemp(prefix="run-"))  # paths of sockets are short
    for name in (
        *("kubectl-image_pull_progress", "kubectl_complete-image_pull_progress"),
        *("kubectl_complete-container_cp", "kubectl-why"),
    ):
        (programs / name).write_text(_SCRIPT)
        (programs / name).chmod(0o755)
    environ = {
        "HOME": str(tmp_path),
        "KUBECACHEDIR": str(tmp_path / "cache"),
        "KUBECONFIG": str(cluster.kubeconfig(tmp_path)),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "XDG_RUNTIME_DIR": str(runtime),
    }
    yield Plugin(environ, runtime)
    runtime.rmdir()  # nothing is left in it
