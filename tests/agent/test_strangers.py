"""Floods from unauthenticated clients must hardly affect an agent and its other clients."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.attackers import FORGED, ask
from tests.agent.program import Program, running
from tests.agent.standing import Cluster, standing
from tests.kube.apiserver import make_node_certificates
from tests.waiting import wait_until
from tools.torture.attacks import FLOODS, attack

pytestmark = pytest.mark.slow

MIB = 1 << 20
ROUNDS = 3
ROUND_S = 1.0
KEPT_BYTES = 32 * MIB
MOST_BYTES = 128 * MIB
MOST_LINES = 30
"""Ten log lines of each kind, then six a minute, plus an agent's usual ones."""

_LINE = re.compile(r"level=[A-Z]+ [a-z_]+( [a-z_]+=(\S+|\"[^\n]*\"))*")


@pytest.fixture
def agent(run_folder: Path, tmp_path: Path) -> Iterator[tuple[Cluster, Program]]:
    with (
        standing(make_node_certificates(run_folder), tmp_path) as cluster,
        running(cluster, "unix:///nonexistent.sock") as program,
    ):
        yield cluster, program


def samples(cluster: Cluster, program: Program, seconds: float) -> list[float]:
    """Return how long the front proxy waits for each answer, on a new connection each time."""
    found = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.monotonic()
        assert ask(("127.0.0.1", program.port), "/apis", cluster.front_proxy, FORGED)[0] == 200
        found.append(time.monotonic() - began)
        time.sleep(0.01)
    return found


@pytest.mark.parametrize("name", FLOODS)
def test_floods(agent: tuple[Cluster, Program], name: str) -> None:
    cluster, program = agent
    samples(cluster, program, ROUND_S)
    before = program.rss
    for _ in range(ROUNDS):
        with attack(name, f"127.0.0.1:{program.port}"):
            samples(cluster, program, ROUND_S)
    assert program.peak_bytes < MOST_BYTES
    wait_until(lambda: program.rss < before + KEPT_BYTES)
    lines = program.log.read_text().splitlines()
    assert len(lines) <= MOST_LINES
    assert [line for line in lines if not _LINE.fullmatch(line)] == []
