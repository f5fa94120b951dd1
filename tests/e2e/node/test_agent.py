"""The agent program beside a real containerd, behind the stand-in of an API server."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.agent.program import running
from tests.cluster.agent.standing import Cluster, standing
from tests.kube.apiserver import make_node_certificates
from tests.kube.kubectl import Kubectl
from tests.proxy.program import Program as Proxy
from tests.support.limited_pulls import status
from tests.support.pull_objects import STARTED
from tests.waiting import wait_until

from .lab import MIB, Lab


@pytest.fixture
def cluster(run_folder: Path, tmp_path: Path) -> Iterator[Cluster]:
    with standing(make_node_certificates(run_folder), tmp_path) as made:
        yield made


def status_of(kubectl: Kubectl, name: str = "web.main") -> dict[str, Any]:
    done = kubectl("get", "ipull", name, "-o", "json")
    return dict(json.loads(done.stdout)["status"]) if done.returncode == 0 else {}


@contextmanager
def pulling(lab: Lab, reference: str) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=lab.node.kubelet.pull, args=(reference,))
    thread.start()
    try:
        yield thread
    finally:
        lab.registry.limit(None)
        thread.join(100)


def test_a_pull_from_its_first_byte_to_its_end(lab: Lab, cluster: Cluster) -> None:
    made = lab.image("shop/web:1.4", 3 * MIB, MIB)
    reference = lab.push(made)
    lab.registry.limit(MIB / 4)
    kubectl = cluster.kubectl()
    no_proxy = "--admin-socket", f"unix://{cluster.folder}/none"
    with running(cluster, lab.node.endpoint, *no_proxy) as program:
        cluster.add_pod("web", image=reference)
        with (
            pulling(lab, reference) as pull,
            kubectl.running("get", "ipull", "-A", "-w", "-o", "json") as watch,
        ):
            present = lab.base.size_bytes
            wait_until(lambda: status_of(kubectl).get("progressBytes", 0) > present)
            lab.registry.limit(0)
            seen = status_of(kubectl)
            assert (seen["phase"], seen["totalBytes"]) == ("Pulling", made.layers_bytes)
            assert 0 < seen["percent"] < 100
            assert {layer["phase"] for layer in seen["layers"]} >= {"present", "downloading"}
            lab.registry.limit(None)
            pull.join(100)
            wait_until(lambda: status_of(kubectl)["phase"] == "Succeeded")
            cluster.add_pod("web", state=STARTED, phase="Running", image=reference)
            wait_until(lambda: "Succeeded" in kubectl.good("get", "ipull", "-A"))
            assert watch.stdout is not None
            phases: list[str] = []
            while "Succeeded" not in phases and (text := watch.stdout.readline()):
                phases += re.findall(r'"phase": "([A-Z]\w+)"', text)
            watch.terminate()
        assert phases[-1] == "Succeeded"
        assert "Pulling" in phases
        assert program.rss < 88 * MIB


def test_a_pull_that_the_nodes_proxy_holds_back(lab: Lab, cluster: Cluster) -> None:
    """The objects show what only the proxy knows, such as the position in the line."""
    first, second = (lab.push(lab.image(f"shop/q{n}:1", 3 * MIB, MIB)) for n in (1, 2))
    lab.registry.limit(MIB / 2)
    kubectl = cluster.kubectl()
    with (
        Proxy(lab.folder, lab.node.endpoint, "--max-parallel-image-pulls", "1") as proxy,
        running(cluster, lab.node.endpoint, "--admin-socket", f"unix://{proxy.admin_path}"),
    ):
        cluster.add_pod("web", image=first)
        cluster.add_pod("db", image=second)
        ends = [
            threading.Thread(target=proxy.kubelet.pull, args=(reference,))
            for reference in (first, second)
        ]
        try:
            for thread, known in zip(ends, ("running", "waiting"), strict=True):
                thread.start()
                wait_until(lambda known=known: status(proxy)[known])  # type: ignore[misc]  # mypy knows no defaults of lambdas
            # Even the first list is right: none is "Waiting" for lack of a report from the proxy.
            _heading, *rows = kubectl.good("get", "ipull", "-o", "wide").splitlines()
            assert sorted(row.split()[2] for row in rows) == ["Pulling", "Queued"]
            waiting = status_of(kubectl, "db.main")
            assert (waiting["phase"], waiting["queuePosition"]) == ("Queued", 1)
        finally:
            lab.registry.limit(None)
            for thread in ends:
                thread.join(100)
    proxy.log_path.unlink(missing_ok=True)
