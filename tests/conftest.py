"""Fixtures for the tests of several packages."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tests.e2e.node.lab import Lab
    from tests.e2e.node.node import Node

# Shells start background jobs with SIGINT and SIGQUIT ignored, and children inherit that: programs
# that tests interrupt would keep running.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup(1) ignores it
signal.signal(signal.SIGQUIT, signal.SIG_DFL)  # as of SIGINT, of background jobs
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

pytest_plugins = ["tests.fakecri.fixtures", "tests.workers"]

_PROGRAMS = ("containerd", "runc", "docker-registry", "busybox")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by what their fixtures need, before `-m` chooses."""
    for item in items:
        fixtures = {*getattr(item, "fixturenames", ())}
        if {"shared_lab", "shared_endpoint"} & fixtures:
            item.add_marker(pytest.mark.node)
        if "as_root" in fixtures:
            item.add_marker(pytest.mark.root)
        if "on_debian" in fixtures:
            item.add_marker(pytest.mark.debian)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if os.geteuid() != 0 and item.get_closest_marker("root"):
        pytest.skip("needs root")


def pytest_collection_finish() -> None:
    """Exempt the thousands of tests from garbage collection, now and at the end."""
    if not gc.get_freeze_count():  # not those of a run within a test
        gc.freeze()


@pytest.fixture(scope="session")
def as_root() -> None:
    """Say that a fixture needs root: its tests are marked so."""


@pytest.fixture(scope="session")
def on_debian() -> None:
    """Say that a fixture needs programs of Debian: its tests are marked so."""


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
        pytest.fail(f"{', '.join(missing)} missing: run tests/e2e/node/install.sh")

    from tests.e2e.node.lab import Lab

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
