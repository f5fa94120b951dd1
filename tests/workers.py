"""Shares the tests between xdist's workers: hooks of pytest, and the order of the tests.

xdist's own distributions keep processors idle at the end: `load` and `loadfile` do not know which
tests are long, and a new clone would be compiled by each worker anew.
"""

from __future__ import annotations

import importlib
from contextlib import suppress
from pathlib import Path

import pytest

_SLOW = ("tools", "conformance", "cluster", "proxy", "packaging", "cli")
"""Packages whose tests wait for other programs, those with the longest tests first."""

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


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the tests that `-m` has left."""
    if worker := getattr(config, "workerinput", None):
        items[:] = dealt(items, worker["workercount"])


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
    packages = {path: path.split("/")[1] for path in modules}
    node = [path for path in modules if path.startswith("tests/e2e/node/")]
    node.sort(key=lambda path: Path(path).stem not in _LONGEST)
    slow = [path for package in _SLOW for path in modules if packages[path] == package]
    half = (workers + 1) // 2 if node else 0
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
