"""Fixtures for the tests of several rooms."""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tests.node.lab import Lab
    from tests.node.node import Node

# Shells start background jobs with SIGINT ignored, and children inherit that: programs that tests
# interrupt would keep running.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup(1) ignores it
os.umask(0o022)  # the caller's may be stricter

# Tests start the program a thousand times: its modules are compiled once, even if the environment
# forbids interpreters to write bytecode.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Users' programs buffer their output, and have a terminal of some kind.
os.environ.pop("PYTHONUNBUFFERED", None)
os.environ.setdefault("TERM", "xterm")

# gRPC's core writes lines of its own to stderr, some of them after the test that caused them.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

# Only this run may clear up its copies.
os.environ["PYCRICTL_STAGES_DIR"] = tempfile.mkdtemp(prefix="pycrictl-stages-")
atexit.register(shutil.rmtree, os.environ["PYCRICTL_STAGES_DIR"], ignore_errors=True)

# A time limit for each example fails on a machine that is busy with other tests.
settings.register_profile("pycrictl", deadline=None)
settings.load_profile("pycrictl")

pytest_plugins = ["tests.fakecri.fixtures"]

_PROGRAMS = ("containerd", "runc", "docker-registry", "busybox")


_SLOW = ("tools", "conformance", "kubectl", "agent", "proxy", "packaging", "cli")
"""Rooms whose tests wait for other programs, those with the longest tests first."""

_LONGEST = (
    "test_replay",
    "test_copy_hostile",
    "test_readme",
    "test_container_cp",
    "test_playground",
)
"""Modules of node tests with a test that takes most of a minute: they run first."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Make each worker import other modules first, so that in a new clone each compiles a share."""
    config = session.config
    if worker := getattr(config, "workerinput", None):
        folders = [config.invocation_params.dir / argument for argument in config.args]
        modules = sorted(path for folder in folders for path in folder.glob("**/test_*.py"))
        for path in modules[int(worker["workerid"][2:]) :: worker["workercount"]]:
            with suppress(Exception, pytest.skip.Exception):  # collecting it reports that
                name = ".".join(path.relative_to(config.rootpath).with_suffix("").parts)
                importlib.import_module(name)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests that run on the throwaway node, so that `-m "not node"` leaves them out."""
    for item in items:
        if {"shared_lab", "shared_endpoint"} & {*getattr(item, "fixturenames", ())}:
            item.add_marker(pytest.mark.node)
    if worker := getattr(config, "workerinput", None):
        items[:] = dealt(items, worker["workercount"])


def pytest_collection_finish() -> None:
    """Exempt the thousands of tests from garbage collection, now and at the end."""
    if not gc.get_freeze_count():  # not those of a run within a test
        gc.freeze()


def dealt(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Return the order in which `--dist worksteal` keeps all workers busy until the end.

    It cuts the list into one run of equal length per worker, and an idle worker takes half of the
    remaining tests of the busiest one, from the end. So each run begins with slow modules, dealt in
    turn and whole, since every worker with tests of a module makes its fixtures; the quick tests,
    which are many more, are at the end of each run. Half of the workers begin with the node tests,
    which need the processor, the others with tests that wait.
    """
    modules: dict[str, list[pytest.Item]] = {}
    for item in items:
        modules.setdefault(item.nodeid.partition("::")[0], []).append(item)
    rooms = {path: path.split("/")[1] for path in modules}
    node = [path for path in modules if rooms[path] == "node"]
    node.sort(key=lambda path: Path(path).stem not in _LONGEST)
    slow = [path for room in _SLOW for path in modules if rooms[path] == room]
    half = (workers + 1) // 2
    turns = [node[n::half] for n in range(half)]
    turns += [slow[n :: workers - half] for n in range(workers - half)]
    hands = [[item for path in turn for item in modules[path]] for turn in turns]
    begun = {path for turn in turns for path in turn}
    quick = [item for path in modules if path not in begun for item in modules[path]]
    for n, hand in enumerate(hands):
        missing = max(0, len(items) * (n + 1) // workers - sum(map(len, hands[: n + 1])))
        hand += quick[:missing]
        del quick[:missing]
    return [item for hand in hands for item in hand] + quick


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a temporary folder that all processes of this run of pytest share."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def shared_lab() -> Iterator[Lab]:
    """Make one throwaway node for all tests of this process; tests use `lab`, which cleans up."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        pytest.skip("the throwaway node needs Linux and root")
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    if missing:
        pytest.fail(f"{', '.join(missing)} missing: run tests/node/install.sh")

    from tests.node.lab import Lab

    with Lab() as lab:
        yield lab


@pytest.fixture
def lab(shared_lab: Lab) -> Iterator[Lab]:
    """Yield the throwaway node with its registry, and clean it after the test."""
    yield shared_lab
    shared_lab.clean()


@pytest.fixture
def node(lab: Lab) -> Node:
    """Return the containerd of `lab`."""
    return lab.node
