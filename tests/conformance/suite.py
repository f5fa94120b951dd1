"""Runs the suite from within other tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

FILES = {
    "P": "test_pull_progress.py",
    "C": "test_copies.py",
    "L": "test_parallel_pulls.py",
    "A": "test_cluster.py",
}
HERE = Path(__file__).parent


class Suite:
    """Runs the suite in this process: starting another takes longer than most runs."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._monkeypatch = monkeypatch

    def run(self, known: Mapping[str, str], *kinds: str) -> dict[str, str]:
        table = self._folder / "table.json"
        words = ["-q", "-s", "-p", "no:cacheprovider", "-p", "pytest_timeout"]
        words += ["--tb=short", "--basetemp", str(self._folder / "inner")]
        with self._monkeypatch.context() as patch:
            patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
            for name, value in {**known, "CONFORMANCE_TABLE": str(table)}.items():
                patch.setenv(name, value)
            status = pytest.main([*words, *(str(HERE / FILES[kind]) for kind in kinds or FILES)])
        found: dict[str, str] = json.loads(table.read_text())
        assert status == ("fail" in found.values())
        return found


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suite:
    return Suite(tmp_path, monkeypatch)
