"""The overlay ``with-copies`` on a real kubelet: its agent's capabilities and their purpose."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.agent.copies.conftest import Plugin
from tests.copy.trees import listing
from tests.e2e.node.copying import make_tree
from tests.e2e.node.images import File
from tests.support.cluster_agents import applied_from
from tests.support.cluster_copies import OVERLAY, Agent, Container, assert_equal, workstation
from tests.waiting import wait_until

from .cluster import Cluster

USER = 65532


@pytest.fixture(scope="module")
def agent(shared_cluster: Cluster) -> Iterator[Agent]:
    agent = Agent(shared_cluster)
    with applied_from(shared_cluster, OVERLAY, agent.make):
        yield agent


@pytest.fixture
def plugin(shared_cluster: Cluster, agent: Agent, tmp_path: Path) -> Iterator[Plugin]:
    with workstation(shared_cluster, tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def containers(shared_cluster: Cluster, agent: Agent) -> Iterator[dict[str, Container]]:
    """One container that runs as root, and one as another user, with nothing but its program."""
    cluster = shared_cluster
    binary = Path("/bin/busybox")
    only = File("busybox-app", binary.stat().st_size, lambda: binary.open("rb"), mode=0o755)
    config = {
        "Entrypoint": ["/busybox-app", "sleep", "1000000"],
        "Cmd": [],
        "User": f"{USER}:{USER}",
    }
    layout = cluster.lab.layout
    image = layout.image("distroless:1", [layout.layer([only])], config=config)
    cluster.run_pod("bare", cluster.lab.push(image))
    cluster.run_pod("web", cluster.lab.reference(cluster.image("web:1", 1200, 1)))
    yield {name: Container(cluster, name) for name in ("bare", "web")}
    cluster.kubectl.good("delete", "pod", "bare", "web", "--grace-period=0", "--force")


def test_trees_both_ways(
    agent: Agent, containers: dict[str, Container], plugin: Plugin, tmp_path: Path
) -> None:
    make_tree(tmp_path / "tree")
    for name, container in containers.items():
        done = plugin(str(tmp_path / "tree"), f"{name}:/new")
        assert done.returncode == 0, done.stderr
        assert_equal(container.root / "new", tmp_path / "tree")
        assert (container.root / "new/f").stat().st_uid == (USER if name == "bare" else 0)
        done = plugin("-a", str(tmp_path / "tree"), f"{name}:/same")
        assert done.returncode == 0, done.stderr
        assert listing(container.root / "same", ids=True) == listing(tmp_path / "tree", ids=True)
        done = plugin("-a", f"{name}:/same", str(tmp_path / name))
        assert done.returncode == 0, done.stderr
        assert listing(tmp_path / name, ids=True) == listing(tmp_path / "tree", ids=True)
        for folder in ("new", "same"):
            shutil.rmtree(container.root / folder)
    wait_until(lambda: agent.kept == [])


DENIED, FORBIDDEN = "permission denied", "operation not permitted"
UNSEEN = "it needs the capability SYS_PTRACE"

NEEDED: dict[str, tuple[str, str, str, int | None]] = {
    "": ("", "", "", 0o6755),
    "SYS_PTRACE": (UNSEEN, UNSEEN, UNSEEN, None),  # files in /proc/PID cannot be read
    "DAC_OVERRIDE": (DENIED, DENIED, DENIED, None),
    "CHOWN": ("", FORBIDDEN, FORBIDDEN, None),
    "FOWNER": ("", FORBIDDEN, FORBIDDEN, None),
    "FSETID": ("", "", "", 0o4755),  # lost silently
}
"""Without a capability, the errors of copying another user's file out, a new one in, and one with
set-ID bits in with -a; and the mode that the last one gets."""


@pytest.mark.parametrize("capability", NEEDED)
def test_each_capability_is_needed(
    agent: Agent,
    containers: dict[str, Container],
    plugin: Plugin,
    tmp_path: Path,
    capability: str,
) -> None:
    assert {*agent.capabilities} == {*NEEDED} - {""}
    agent.restart([kept for kept in agent.capabilities if kept != capability])
    own = containers["bare"].root / "own"
    own.mkdir(0o700)
    (own / "f").write_text("content")
    (own / "f").chmod(0o600)
    for path in (own, own / "f"):
        os.chown(path, USER, USER)
    for name in ("new", "id"):
        (tmp_path / name).write_text(name)
        os.utime(tmp_path / name, (1e9, 1e9))
    os.chown(tmp_path / "id", 12, 34)
    (tmp_path / "id").chmod(0o6755)
    *errors, mode = NEEDED[capability]
    copies = (
        ("bare:/own/f", str(tmp_path / "back")),
        (str(tmp_path / "new"), "bare:/own/new"),
        ("-a", str(tmp_path / "id"), "bare:/own/id"),
    )
    try:
        for words, error in zip(copies, errors, strict=True):
            done = plugin(*words)
            assert done.returncode == bool(error), (words, done.stderr)
            assert str(error) in done.stderr.decode(), words
        made = own / "id"
        assert (made.stat().st_mode & 0o7777 if made.exists() else None) == mode
    finally:
        shutil.rmtree(own)
