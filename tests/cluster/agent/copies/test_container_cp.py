"""``kubectl container-cp`` with a real kubectl, a stand-in for the API server, and an agent."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pycrictl.cluster.agent.copies.documents import MAX_BODY_BYTES
from tests.cluster.agent.copies.conftest import Plugin, StartNode, plugin_of, spooled
from tests.cluster.agent.standing import Answer, Cluster, bearer
from tests.copy.trees import listing, stages_in, tree
from tests.kube.access import Grant
from tests.proxy.copier import MIB, Pretended
from tests.waiting import wait_until

pytestmark = pytest.mark.root

__all__ = ["tree"]

ROOT = Path(__file__).parents[4]
COPIES = "namespaces/default/pods/web/containercopies"
SPEC: dict[str, object] = {"direction": "To", "path": "/to/f", "size": 5, "checksum": 7}


def test_trees_and_archives(
    plugin: Plugin, node: Path, container: Pretended, tree: Path, tmp_path: Path
) -> None:
    done = plugin(str(tree), "web:/to")
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr.startswith(b"copied 4 files, 3 directories, 1 link (1.0 MiB) in ")
    assert listing(container.root / "to/tree", times=False) == listing(tree, times=False)
    done = plugin("default/web:/to/tree", str(tmp_path / "back"), "-c", "main", "-q")
    assert (done.returncode, done.stderr) == (0, b"")
    assert listing(tmp_path / "back", times=False) == listing(tree, times=False)
    archive = plugin("-n", "default", "web:/to/tree", "-").stdout
    names = subprocess.run(["tar", "t"], input=archive, capture_output=True, check=True).stdout
    assert len(names.splitlines()) == len(listing(tree))
    assert plugin("-", "web:/", stdin=archive).returncode == 0
    assert listing(container.root / "tree", times=False) == listing(tree, times=False)
    assert spooled(node) == []
    assert stages_in(container.root) == []


def test_several_sources(plugin: Plugin, node: Path, container: Pretended, tmp_path: Path) -> None:
    for name in ("a.log", "b.log", "c"):
        (tmp_path / name).write_text(name)
    words = [str(tmp_path / name) for name in ("a.log", "b.log", "c")]
    done = plugin(*words, "web:/to")
    assert done.stderr.startswith(b"copied 3 files (11 B) in "), done.stderr
    (tmp_path / "out").mkdir()
    done = plugin("web:/to/*.log", "default/web:/to/c", "web:/to/none", str(tmp_path / "out"))
    copied, error, *_ = done.stderr.decode().splitlines()
    assert copied.startswith("copied 3 files (11 B) in ")
    assert error == 'kubectl container-cp: cannot copy "/to/none": no such file or directory'
    assert done.returncode == 1
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"a.log", "b.log", "c"}
    assert spooled(node) == []
    assert stages_in(container.root) == []


def allow(cluster: Cluster, user: str, resource: str, group: str = "") -> None:
    rule = {"apiGroups": [group], "resources": [resource], "verbs": ["create", "get"]}
    cluster.api.grants.append(Grant(user, [rule], "default"))


@pytest.mark.usefixtures("node")
def test_who_may(
    cluster: Cluster, container: Pretended, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "pycrictl.cluster.agent")
    (tmp_path / "f").write_text("content")
    with plugin_of(cluster.kubectl("jane"), tmp_path) as jane:

        def check_denied(*said: str) -> None:
            done = jane(str(tmp_path / "f"), "web:/to")
            assert done.returncode == 1
            assert [part for part in said if part not in done.stderr.decode()] == []

        check_denied(
            'cannot create resource "pods/containercopies"',
            "bind the ClusterRole pycrictl-containercopies: ",
        )
        allow(cluster, "jane", "pods/containercopies", "progress.pycrictl.dev")
        check_denied(
            'User "jane" cannot create resource "pods/exec"',
            "bind the ClusterRole edit: ",
        )
        assert not (container.root / "to/f").exists()
        allow(cluster, "jane", "pods/exec")
        cluster.agents[0].access._rights._kept.clear()
        assert jane(str(tmp_path / "f"), "web:/to").returncode == 0
        assert (container.root / "to/f").read_text() == "content"
    assert post(cluster, {"direction": "To", "path": "/to/../etc"}, "jane").status == 422
    for line in (
        "direction=to path=/to size_bytes=2048 moved_bytes=0 end=refused"
        ' error="pods \\"web\\" is forbidden',
        "container=main direction=to path=/to size_bytes=2048 moved_bytes=2048 end=done\n",
        'container=main direction=unknown size_bytes=0 moved_bytes=0 end=refused error="the path',
    ):
        assert f"copy user=jane pod=default/web {line}" in caplog.text
    page = cluster.ask("/metrics", headers=bearer("of admin")).content.decode()
    for pattern in (
        'copies_total{direction="to",end="done"} 1.0',
        'copies_total{direction="to",end="refused"} 1.0',
        'copy_bytes_total{direction="to"} 2048.0',
        'copies_total{direction="unknown",end="refused"} 1.0',
        "copies_running 0.0",
        "copy_spool_bytes 0.0",
    ):
        assert f"pycrictl_agent_{pattern}\n" in page
    # The man page lists exactly the existing metrics.
    prose = (ROOT / "man/prose/pycrictl-agent.md").read_text().partition("# METRICS")[2]
    terms = re.findall(r"`(pycrictl_agent_\w+)(?:\{([a-z,]+)\})?`", prose)
    assert {name: set(filter(None, labels.split(","))) for name, labels in terms} == {
        sample.name: set(sample.labels)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_too_many(
    start_node: StartNode, cluster: Cluster, plugin: Plugin, container: Pretended, tmp_path: Path
) -> None:
    """A quota refuses a copy at once and gives a time to retry; the client does not wait."""
    (tmp_path / "f").write_text("content")
    start_node(copies_per_pod=1, copy_size_limit_bytes=MIB)
    allow(cluster, "admin", "pods/exec")
    allow(cluster, "jane", "pods/exec")
    large = post(cluster, {**SPEC, "size": 2 * MIB})
    assert large.status == 429
    assert "ContainerCopySizeLimit" in large.document["message"]
    first, second = post(cluster, SPEC), post(cluster, SPEC)
    assert (first.status, second.document["reason"]) == (201, "TooManyRequests")
    check_too_many(second)
    begun_s = time.monotonic()
    done = plugin(str(tmp_path / "f"), "web:/to")
    assert time.monotonic() - begun_s < 20
    assert (done.returncode, done.stdout) == (1, b"")
    (line,) = done.stderr.decode().splitlines()
    assert line.endswith("the quota ContainerCopiesPerPod; try again later")
    abandon = f"{COPIES}/{first.document['metadata']['name']}/abandon"
    for user, status in (("jane", 404), ("admin", 200)):  # only admin owns it
        assert cluster.get(abandon, user=user, method="POST").status == status
    assert plugin(str(tmp_path / "f"), "web:/to").returncode == 0


def post(cluster: Cluster, spec: dict[str, object], user: str = "admin") -> Answer:
    """Start a copy through the API, without the plugin."""
    body = json.dumps({"spec": spec}).encode()
    return cluster.get(COPIES, user=user, method="POST", body=body)


def check_too_many(answer: Answer) -> None:
    assert (answer.status, answer.headers["Retry-After"]) == (429, "10")
    assert answer.document["details"]["retryAfterSeconds"] == 10
    assert "the quota ContainerCopiesPerPod; try again later" in answer.document["message"]


def test_what_cannot_be(plugin: Plugin, cluster: Cluster, node: Path, tmp_path: Path) -> None:
    """Invalid names must not get into paths of the API; each message must say what to do."""
    file = tmp_path / "f"
    file.write_text("content")
    cluster.add_pod("waits", node="")
    cluster.add_pod("away", node="n2")
    for words, said in (
        (["f", "g"], "add the path in the container: f:/PATH or g:/PATH"),
        (["web:/to/nothing", tmp_path], "no such file"),
        ([tmp_path / "none", "web:/to"], "no such file"),
        (["none:/to", tmp_path], "hint: 'kubectl get pods -A' lists them"),
        (["waits:/to", tmp_path], "has not been assigned to a node yet"),
        (["away:/to", tmp_path], "node n2: no agent is known to run on it"),
        ([file, "a/b/c:/to"], 'invalid namespace name: "a/b"'),
        ([file, "C:/to"], 'invalid pod name: "C"'),
        ([file, "web:/to", "-n", "--x"], 'invalid namespace name: "--x"'),
        ([file, "web:/to", "-c", "a b"], 'invalid container name: "a b"'),
        ([file, "web:/to", "--context", "no"], 'context "no"'),
        ([file, "web:/to", "--server=https://127.0.0.1:1"], "cannot reach the API server: dial"),
    ):
        done = plugin(*map(str, words))
        assert done.returncode, words
        assert said in done.stderr.decode(), (words, done.stderr)
        assert b"Traceback" not in done.stderr
    os.mkfifo(tmp_path / "tree")
    done = plugin(str(tmp_path), "web:/to")
    assert b"kubectl container-cp: warning: left out " in done.stderr
    cluster.api.services.clear()
    done = plugin(str(file), "web:/to")
    assert done.returncode == 1
    first, second = done.stderr.decode().splitlines()
    assert first == "kubectl container-cp: the agent is not installed in this cluster"
    assert "#in-a-cluster says how to install it" in second


def test_ctrl_c_and_a_kill(
    plugin: Plugin, cluster: Cluster, node: Path, container: Pretended, tmp_path: Path
) -> None:
    content = os.urandom(48 * MIB)
    (container.root / "to/f").write_bytes(content)
    (tmp_path / "f").write_bytes(content)

    def end(words: tuple[str, str], how: signal.Signals, when: Callable[[], bool]) -> int:
        process = plugin.start(*words, start_new_session=True)
        wait_until(when)
        os.killpg(process.pid, how)
        process.communicate(timeout=60)
        return process.returncode

    into, copies = (str(tmp_path / "f"), "web:/to/g"), cluster.agents[0].copies
    assert copies is not None
    assert end(into, signal.SIGINT, lambda: copies.slots.held_bytes > 0) == 130
    assert (spooled(node), stages_in(container.root)) == ([], [])
    assert not (container.root / "to/g").exists()

    out = ("web:/to/f", str(tmp_path / "g"))
    end(out, signal.SIGKILL, lambda: stages_in(tmp_path) != [])
    assert not (tmp_path / "g").exists()
    done = plugin(*out)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "g").read_bytes() == content
    wait_until(lambda: stages_in(tmp_path) == [])
    assert not list(plugin.runtime.iterdir())


def test_a_pod_of_another_node(
    cluster: Cluster,
    plugin: Plugin,
    container: Pretended,
    start_node: StartNode,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An agent forwards requests, bytes, refusals and ``Retry-After`` of another node's copies."""
    cluster.start("n1")
    store = start_node("n2", copies_per_pod=1)
    cluster.add_pod("here", node="n1", state={"running": {}}, phase="Running")
    content = os.urandom(24 * MIB)
    (tmp_path / "f").write_bytes(content)
    for words, made in (
        ((str(tmp_path / "f"), "web:/to"), container.root / "to/f"),
        (("web:/to/f", str(tmp_path / "g")), tmp_path / "g"),
    ):
        done = plugin(*words)
        assert done.returncode == 0, done.stderr
        assert made.read_bytes() == content
    assert spooled(store) == []
    for to, said in (
        ("web:/none/f", b"there is no directory"),
        ("here:/to", b"offers no copies: it has no --spool-dir"),
    ):
        assert said in plugin(str(tmp_path / "f"), to).stderr
    allow(cluster, "admin", "pods/exec")
    for body, status in ((bytes(MAX_BODY_BYTES + 1), 413), (b"[" * 60_000, 400)):
        assert cluster.get(COPIES, user="admin", method="POST", body=body).status == status
    assert post(cluster, SPEC).status == 201
    check_too_many(post(cluster, SPEC))
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket"}
    unknown = cluster.get(f"{COPIES}/{'0' * 32}/data", user="admin", headers=upgrade)
    assert unknown.status == 404
    assert "is not known on the node of" in unknown.document["message"]
    assert "request_failed" not in caplog.text
