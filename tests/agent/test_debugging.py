"""`enableDebuggingHandlers: false` in the kubelet's configuration: no streams, no copies."""

from __future__ import annotations

from pathlib import Path

from tests.agent import attackers
from tests.agent.copies.test_container_cp import EXECUTE
from tests.agent.program import running
from tests.agent.standing import Cluster
from tests.kube.access import Grant

BASE = "namespaces/default"
OFF = "Debug endpoints are disabled."


def test_a_node_without_streams(cluster: Cluster) -> None:
    cluster.start("n1", debugs=False)
    cluster.add_pod("web")
    for path in ("/imagePullProgress/default/web", "/imagePullProgress/default/web/main"):
        assert cluster.ask(path).status == 401
        assert cluster.ask(path, certificate=cluster.of_user("jane")).status == 403
        found = cluster.ask(path, certificate=cluster.of_user("admin"))
        assert (found.status, found.document["message"]) == (405, OFF)


def test_whichever_agent_answers(cluster: Cluster, tmp_path: Path) -> None:
    """Of streams, copies and lists, the last one is no endpoint for debugging."""
    cluster.api.grants.append(Grant("admin", [EXECUTE], "default"))
    cluster.start("n1")
    cluster.start("n2", debugs=False, spool_dir=str(tmp_path / "spool"))
    cluster.add_pod("db", node="n2")
    for found in (
        cluster.get(f"{BASE}/pods/db/imagepullprogress"),
        cluster.get(f"{BASE}/pods/db/containercopies", user="admin", method="POST", body=b"{}"),
    ):
        assert (found.status, found.document["message"]) == (405, OFF)
    (item,) = cluster.get(f"{BASE}/imagepulls").document["items"]
    assert item["metadata"]["name"] == "db.main"


def test_the_file_is_read(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "kubelet.yaml"
    file.write_text("enableDebuggingHandlers: false\n")
    admin = cluster.of_user("admin")
    with running(cluster, "unix:///none", "--kubelet-config", str(file)) as program:
        code, _ = attackers.ask(
            ("127.0.0.1", program.port), "/imagePullProgress/default/web", admin
        )
        # What only makes certificates is not kept in memory.
        assert "cryptography" not in Path(f"/proc/{program.process.pid}/maps").read_text()
    assert code == 405
