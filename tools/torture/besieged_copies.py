"""A user who takes all that copies may hold of an agent, beside one who copies."""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.agent.attackers import FORGED, ask
from tests.agent.copies.conftest import Plugin, plugin_of
from tests.agent.program import Program, running
from tests.agent.standing import AUDIENCE, Cluster, standing
from tests.agent.test_strangers import KEPT_BYTES, MOST_BYTES
from tests.fakecri.server import serve
from tests.kube.apiserver import make_node_certificates
from tests.proxy.copier import pretended
from tests.waiting import settled

MIB: Final = 1 << 20
HOARDER: Final = "agent-hoarder"
SPOOL_BYTES: Final = 200 * MIB
ANNOUNCED_BYTES: Final = 190 * MIB
KEPT_COPY_BYTES: Final = 60 * MIB
OWN_BYTES: Final = 20 * MIB
"""What the good user copies each time, in and out."""

PLACES: Final = 32
"""What one pod may have."""

ALONE_S: Final = 10.0
MOST_S: Final = 5.0
_COPIES: Final = f"/apis/{AUDIENCE}/v1alpha1/namespaces/default/pods/web/containercopies"


class Siege(NamedTuple):
    """What the greedy user did.

    Attributes:
        alone_s, beside_s: how long the slowest copy of the good user takes.
        copies, failed: of the good user.
        held: the most places that the greedy user had at once.
        errors: of the copies that failed.
        before_bytes, peak_bytes, after_bytes: memory of the agent.
    """

    alone_s: float
    beside_s: float
    copies: int
    failed: int
    held: int
    errors: tuple[str, ...]
    before_bytes: int
    peak_bytes: int
    after_bytes: int

    def __str__(self) -> str:
        sizes = self.before_bytes, self.peak_bytes, self.after_bytes
        memory = " -> ".join(f"{size / MIB:.0f}" for size in sizes)
        return (
            f"copies at most {self.alone_s:.1f} -> {self.beside_s:.1f} s, {self.copies} copies,"
            f" {self.failed} failed, {self.held} places held, {memory} MiB"
        )

    @property
    def faults(self) -> list[str]:
        """What is not as it must be."""
        bounds = (
            (not self.failed, f"copies of the good user failed: {self.errors[:1]}"),
            (self.copies >= 2, "the good user copied nothing"),
            (self.beside_s <= max(MOST_S, 5 * self.alone_s), "a good user waits"),
            (self.held >= PLACES - 1, "the greedy user did not get all places"),
            (self.peak_bytes < MOST_BYTES, "the agent takes too much memory"),
            (self.after_bytes < self.before_bytes + KEPT_BYTES, "memory is not given back"),
        )
        return [fault for holds, fault in bounds if not holds]


class _Hoarder:
    """Keeps as many copies as it gets, sends nothing and reads nothing, and looks at each."""

    def __init__(self, cluster: Cluster, program: Program) -> None:
        self.most = 0
        self.is_over = threading.Event()
        self._names: list[str] = []
        self._port = program.port
        self._certificate = cluster.front_proxy

    def run(self) -> None:
        # Three archives that are kept whole on the disk, and else only what is announced.
        specs: list[dict[str, Any]] = [{"direction": "From", "path": "/kept"}] * 3
        specs += [
            {"direction": "To", "path": "/to/x", "size": ANNOUNCED_BYTES, "checksum": 0}
        ] * PLACES
        while not self.is_over.is_set():
            for spec in specs:
                if self.is_over.is_set():
                    return
                status, content = self._ask("POST", json.dumps({"spec": spec}).encode())
                if status == 201:
                    self._names.append(json.loads(content)["metadata"]["name"])
            self._names = [name for name in self._names if self._is_held(name)]
            self.most = max(self.most, len(self._names))

    def _is_held(self, name: str) -> bool:
        status, content = self._ask("GET", name=name)
        return status == 200 and json.loads(content)["status"]["phase"] not in (
            "Failed",
            "Succeeded",
        )

    def _ask(self, method: str, body: bytes | None = None, name: str = "") -> tuple[int, bytes]:
        path = f"{_COPIES}/{name}" if name else _COPIES
        headers = {**FORGED, "X-Remote-User": "mallory"}
        return ask(("127.0.0.1", self._port), path, self._certificate, headers, method, body)


def besieged_copies(seconds: float) -> Siege:
    """Let somebody take all places and all space, and a good user copy beside that."""
    with _standing() as (cluster, program, plugin, folder):
        file = folder / "file"
        file.write_bytes(os.urandom(OWN_BYTES))
        alone, errors = _copy(plugin, file, ALONE_S)
        assert not errors, errors
        before_bytes = program.rss
        hoarder = _Hoarder(cluster, program)
        thread = threading.Thread(target=hoarder.run)
        thread.start()
        try:
            settled(lambda: hoarder.most >= PLACES, limit_s=60)
            beside, errors = _copy(plugin, file, seconds)
        finally:
            hoarder.is_over.set()
            thread.join()
        peak_bytes = program.peak_bytes
        settled(lambda: program.rss < before_bytes + KEPT_BYTES, limit_s=20)
        return Siege(
            max(alone),
            max(beside),
            len(beside),
            len(errors),
            hoarder.most,
            tuple(errors),
            before_bytes,
            peak_bytes,
            program.rss,
        )


def _copy(plugin: Plugin, file: Path, seconds: float) -> tuple[list[float], list[str]]:
    """Copy in and out until the time is over; return how long each took, and errors."""
    took, errors = [], []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for words in ((str(file), "web:/to/f"), ("web:/to/f", str(file.with_name("back")))):
            began = time.monotonic()
            done = plugin(*words, "--retries", "0")
            took.append(time.monotonic() - began)
            if done.returncode:
                errors.append(done.stderr.decode())
    return took, errors


@contextmanager
def _standing() -> Iterator[tuple[Cluster, Program, Plugin, Path]]:
    """An agent with a container of a pod ``web``, and the plugin of an administrator."""
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp", prefix="pct-") as name,  # on a disk
        serve() as fake,
        pretended(fake, Path(name, "root")) as container,
        standing(make_node_certificates(Path(name)), Path(name)) as cluster,
    ):
        folder = Path(name)
        (container.root / "kept").write_bytes(bytes(KEPT_COPY_BYTES))
        flags = ("--spool-dir", str(folder / "store"), "--spool-size", str(SPOOL_BYTES))
        with running(cluster, fake.endpoint, *flags) as program:
            cluster.add_endpoint("n1", program.port)
            cluster.add_pod("web", state={"running": {}}, phase="Running")
            with plugin_of(cluster.kubectl(), folder) as plugin:
                yield cluster, program, plugin, folder
