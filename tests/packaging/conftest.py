"""The output of `make dist`, built once for all tests and all processes of pytest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.packaging import building

_BUILD_S = 1800  # a cold and busy machine; about 20 otherwise


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Allow more time for tests that may have to wait for the build."""
    for item in items:
        if {"dist", "released"} & {*getattr(item, "fixturenames", ())}:
            item.add_marker(pytest.mark.timeout(_BUILD_S))
            item.add_marker(pytest.mark.node)


@pytest.fixture(scope="session")
def dist(run_folder: Path) -> Path:
    return building.dist(run_folder)


@pytest.fixture(scope="session")
def released() -> Path:
    given = os.environ.get("PYCRICTL_DIST")
    if not given:
        pytest.skip("make dist-test")
    return Path(given)
