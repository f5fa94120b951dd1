"""Attacks on an agent beside a good client: strangers at its port, and a lost node."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.agent.program import Program, running
from tests.agent.standing import Cluster, standing
from tests.agent.test_strangers import KEPT_BYTES, MOST_BYTES, samples
from tests.kube.apiserver import make_node_certificates
from tests.waiting import settled
from tools.torture.floods import FLOODS, flood

MIB: Final = 1 << 20
LOST: Final = "lost-node"
ON_AGENT: Final = (*(f"agent-{name}" for name in FLOODS), f"agent-{LOST}")
MOST_S: Final = 0.25
HANDSHAKES_S: Final = 1.0
"""Where strangers begin handshakes: each of them takes the processor a millisecond."""

ALONE_S: Final = 3.0
LINES: Final = 60

_WRONG: Final[tuple[dict[str, Any], ...]] = (
    {"etaSeconds": "soon"},
    {"totalBytes": 10**4000},
    {"error": {}},
    {"percent": float("nan")},
    {"layers": [{"name": 5}] * 1000},
    {"phase": "x" * 100_000},
)


class Siege(NamedTuple):
    """What an attack did.

    Attributes:
        alone_s, beside_s: how long a good client waits for an answer (p99).
        calls: it made.
        before_bytes, peak_bytes, after_bytes: memory of the agent.
        lines: of its log.
        has_traceback: whether one is in it.
        most_s: how long an answer may take.
    """

    alone_s: float
    beside_s: float
    calls: int
    before_bytes: int
    peak_bytes: int
    after_bytes: int
    lines: int
    has_traceback: bool
    most_s: float = MOST_S

    def __str__(self) -> str:
        sizes = self.before_bytes, self.peak_bytes, self.after_bytes
        memory = " -> ".join(f"{size / MIB:.0f}" for size in sizes)
        waits = f"{self.alone_s * 1e3:.0f} -> {self.beside_s * 1e3:.0f} ms"
        return f"answers p99 {waits}, {self.calls} calls, {memory} MiB, {self.lines} lines"

    @property
    def faults(self) -> list[str]:
        """What is not as it must be."""
        bounds = (
            (self.beside_s <= max(self.most_s, 5 * self.alone_s), "a good client waits"),
            (self.peak_bytes < MOST_BYTES, "the agent takes too much memory"),
            (self.after_bytes < self.before_bytes + KEPT_BYTES, "memory is not given back"),
            (self.lines <= LINES, "the log is flooded"),
            (not self.has_traceback, "the log has a traceback"),
        )
        return [fault for holds, fault in bounds if not holds]


def besieged_agent(name: str, seconds: float) -> Siege:
    """Run an attack on an agent, and a good client beside it."""
    attack = name.removeprefix("agent-")
    with tempfile.TemporaryDirectory() as folder:
        made = make_node_certificates(Path(folder))
        with (
            standing(made, Path(folder)) as cluster,
            running(cluster, "unix:///nonexistent.sock") as program,
        ):
            alone = samples(cluster, program, ALONE_S)
            before = program.rss
            with _attacked(cluster, program, attack):
                beside = samples(cluster, program, seconds)
                peak_bytes = program.peak_bytes
            settled(lambda: program.rss < before + KEPT_BYTES, limit_s=20)
            log = program.log.read_text()
            return Siege(
                p99(alone),
                p99(beside),
                len(beside),
                before,
                peak_bytes,
                program.rss,
                log.count("\n"),
                "Traceback" in log,
                HANDSHAKES_S if attack == "half-open" else MOST_S,
            )


def p99(found: list[float]) -> float:
    return sorted(found)[math.ceil(len(found) * 0.99) - 1]


@contextmanager
def _attacked(cluster: Cluster, program: Program, attack: str) -> Iterator[None]:
    if attack != LOST:
        with flood(attack, ("127.0.0.1", program.port)):
            yield
        return
    liar = cluster.start("n2")
    cluster.add_pod("db", node="n2")
    liar.routes._cluster.of_own_node = lies()  # type: ignore[method-assign,assignment]  # a lost node
    with cluster.kubectl().running("get", "imagepulls", "-A", "-w"):
        yield


def lies(pod: str = "db", uid: str = "u", node: str = "n2") -> Callable[[object], Any]:
    """Return what a lost node's agent says of a pod in place of the truth, ever something else."""
    wrong = itertools.cycle(_WRONG)

    async def of_own_node(scope: object) -> Any:
        lie = {
            "metadata": {"name": f"{pod}.c0", "namespace": "default", "uid": uid},
            "spec": {"podName": pod, "podUID": uid, "image": "a/b:1", "nodeName": node},
            "status": {"phase": "Pulling", **next(wrong)},
        }
        return [lie, *([{}] * 200_000)]

    return of_own_node
