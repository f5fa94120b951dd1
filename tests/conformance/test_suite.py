"""The suite itself: it finds what is broken, and nothing else; and it leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.node.lab import Lab

from . import planted, planted_cluster

FILES = {"P": "test_pull_progress.py", "C": "test_copies.py", "L": "test_parallel_pulls.py"}
HERE = Path(__file__).parent


@contextmanager
def serving(folder: Path, fault: str) -> Iterator[dict[str, str]]:
    """An endpoint with a fault; what the suite is to know of it."""
    socket = folder / "cri.sock"
    where = [str(socket), str(folder / "roots")]
    command = [sys.executable, "-m", "tests.conformance.planted", *where, fault]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield {
            "CONFORMANCE_ENDPOINT": f"unix://{socket}",
            "CONFORMANCE_RETRY_ENDPOINT": f"unix://{socket}.strict",
            "CONFORMANCE_RETRY_S": str(planted.TRIES * planted.TRY_S),
            "CONFORMANCE_LIMIT": str(planted.LIMIT),
            "CONFORMANCE_COPIES_PER_POD": str(planted.COPIES_PER_POD),
            "CONFORMANCE_COPY_SIZE_LIMIT": str(planted.SIZE_LIMIT),
            "CONFORMANCE_URL_S": "0",
        }
        process.communicate()


def run(folder: Path, names: list[str], known: dict[str, str]) -> tuple[int, dict[str, str], str]:
    """Run the suite; its status, what it says of each rule, and what it wrote."""
    table = folder / "table.json"
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    environ = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    ran = subprocess.run(
        [sys.executable, *words, *(str(HERE / name) for name in names)],
        env={**environ, **known, "CONFORMANCE_TABLE": str(table)},
        cwd=HERE.parent.parent,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return ran.returncode, json.loads(table.read_text()) if table.exists() else {}, ran.stdout


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose path leaves room for a socket's name."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="pcc-", dir="/var/tmp") as name:
        yield Path(name)


def test_what_keeps_all_rules_passes(short_path: Path) -> None:
    with serving(short_path, "") as known:
        status, table, text = run(short_path, list(FILES.values()), known)
    assert {number for number, outcome in table.items() if outcome == "fail"} == set(), text
    assert status == 0, text
    assert list(table.values()).count("pass") > 60


@pytest.mark.parametrize("fault", planted.FAULTS)
def test_a_planted_fault_is_found_by_its_rule(short_path: Path, fault: str) -> None:
    number = planted.FAULTS[fault]
    with serving(short_path, fault) as known:
        status, table, text = run(short_path, [FILES[number[0]]], known)
    assert [rule for rule, outcome in table.items() if outcome == "fail"] == [number], text
    assert status == 1


@pytest.mark.parametrize("fault", ["", *planted_cluster.FAULTS])
def test_a_fault_of_a_cluster_is_found_by_its_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """In this process, where a run takes a tenth of the time that a new one needs to begin."""
    table = tmp_path / "table.json"
    monkeypatch.setenv("CONFORMANCE_TABLE", str(table))
    with planted_cluster.serving_cluster(fault) as known:
        for name, value in known.items():
            monkeypatch.setenv(name, value)
        words = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist"]
        status = pytest.main([*words, str(HERE / "test_cluster.py"), str(HERE / FILES["L"])])
    found = json.loads(table.read_text())
    expected = [planted_cluster.FAULTS[fault]] if fault else []
    assert [rule for rule, outcome in found.items() if outcome != "pass"] == expected
    assert set(found) == set(planted_cluster.FAULTS.values())
    assert status == len(expected)


def test_a_runtime_without_the_proposals(short_path: Path, lab: Lab) -> None:
    before = [image.id for image in lab.node.kubelet.images()]
    known = {"CONFORMANCE_ENDPOINT": lab.node.endpoint}
    status, table, text = run(short_path, list(FILES.values()), known)
    assert status == 0, text
    assert set(table.values()) == {"not implemented"}
    assert [image.id for image in lab.node.kubelet.images()] == before
    assert lab.node.kubelet.running_containers() == []
