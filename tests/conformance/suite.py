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
}
HERE = Path(__file__).parent


class Suite:
    """Runs the suite in this process: starting another takes longer than most runs."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._monkeypatch = monkeypatch

    def run(self, known: Mapping[str, str], *rules: str) -> dict[str, str]:
        """Check these rules, such as ``P3``, or all that begin with a letter; by default all.

        Return the outcome of each.
        """
        table = self._folder / "table.json"
        files = [FILES[kind] for kind in dict.fromkeys(rule[0] for rule in rules)]
        words = ["-q", "-s", "-p", "no:cacheprovider", "-p", "pytest_timeout"]
        words += ["--tb=short", "--basetemp", str(self._folder / "inner")]
        with self._monkeypatch.context() as patch:
            patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
            patch.setenv("CONFORMANCE_TABLE", str(table))
            patch.setenv("CONFORMANCE_RULES", " ".join(rules))
            for name, value in known.items():
                patch.setenv(name, value)
            status = pytest.main([*words, *(str(HERE / name) for name in files or FILES.values())])
        results: dict[str, str] = json.loads(table.read_text())
        assert status == ("fail" in results.values())
        return results


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suite:
    return Suite(tmp_path, monkeypatch)
