"""Floods from unauthenticated clients must hardly affect an agent and its other clients."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.agent.program import Program, running
from tests.cluster.agent.standing import Cluster, standing
from tests.kube.apiserver import make_node_certificates
from tests.support.besieged_agent import KEPT_BYTES, MOST_BYTES, samples
from tests.waiting import WAIT_S, wait_until
from tools.torture.attacks import FLOODS, SOURCE, attack, client_hello

pytestmark = pytest.mark.slow

ROUNDS = 3
ROUND_S = 1.0
STRANGERS = 128
"""How many connections of strangers an agent keeps."""

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


def test_connections_that_are_replaced_cost_no_handshake(agent: tuple[Cluster, Program]) -> None:
    """They begin while the agent stands still, so that all of them wait at once."""
    _, program = agent
    address, hello = ("127.0.0.1", program.port), client_hello()
    with ExitStack() as stack:
        os.kill(program.process.pid, signal.SIGSTOP)
        held = [
            stack.enter_context(socket.create_connection(address, source_address=(SOURCE, 0)))
            for _ in range(2 * STRANGERS)
        ]
        for sock in held:
            sock.settimeout(WAIT_S)
            sock.sendall(hello)
        os.kill(program.process.pid, signal.SIGCONT)
        answered = sum(map(_is_answered, held))
    assert STRANGERS <= answered < 1.5 * STRANGERS


def _is_answered(sock: socket.socket) -> bool:
    """Return whether the agent sends something before it ends a connection."""
    try:
        return bool(sock.recv(1))
    except ConnectionResetError:
        return False
