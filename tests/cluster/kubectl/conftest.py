"""A stand-in for a cluster, and the plugin where kubectl finds it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.kubectl.cluster import Cluster, running
from tests.cluster.kubectl.plugin import SCRIPT, Plugin, plugin_in

_SHORTLY = """
from functools import partial
from pycrictl.pulls.sources import endings
endings.Pace = partial(endings.Pace, reopen_pauses_s=(0.05,) * 6)
"""


@pytest.fixture
def cluster(run_folder: Path) -> Iterator[Cluster]:
    with running(run_folder) as cluster:
        yield cluster


@pytest.fixture
def impatient(plugin: Plugin) -> None:
    """Make the plugin retry as often as usual, but at once instead of over 17 seconds."""
    program = Path(plugin.environ["PATH"].partition(":")[0], "kubectl-image_pull_progress")
    first, rest = SCRIPT.split("\n", 1)
    program.write_text(f"{first}{_SHORTLY}{rest}")


@pytest.fixture
def plugin(on_debian: None, cluster: Cluster, tmp_path: Path) -> Iterator[Plugin]:
    """The plugin, with a kubeconfig for the cluster and folders of its own."""
    assert shutil.which("kubectl"), "kubectl is missing: run tests/e2e/node/install.sh"
    runtime = Path(tempfile.mkdtemp(prefix="run-"))  # a socket's path must be short
    yield plugin_in(tmp_path, runtime, cluster.kubeconfig(tmp_path))
    runtime.rmdir()  # fails if anything is left
