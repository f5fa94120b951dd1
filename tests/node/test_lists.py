"""Every command that answers with data, on a real containerd."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.node.forked import Ended, Program
from tests.node.lab import Lab


@dataclass(frozen=True)
class Scene:
    """What runs on the node.

    ``running`` and ``created`` are containers of ``web``; ``db`` has none.
    """

    lab: Lab
    program: Program
    web: str
    db: str
    running: str
    created: str
    reference: str

    def run(self, *words: str) -> Ended:
        return self.program.run(*words)

    def ok(self, *words: str) -> str:
        done = self.run(*words)
        assert (done.status, done.stderr) == (0, ""), words
        return done.stdout.decode()


@pytest.fixture(scope="module")
def program(shared_lab: Lab) -> Iterator[Program]:
    with Program("-t", "20s", "-r", shared_lab.node.endpoint) as program:
        yield program


@pytest.fixture(scope="module")
def scene(shared_lab: Lab, program: Program) -> Iterator[Scene]:
    """No test changes what others find."""
    lab = shared_lab
    image = lab.layout.image("app:1", [lab.base], config={"User": "nobody"})
    reference = lab.push(image)
    kubelet = lab.node.kubelet
    kubelet.pull(reference)
    web, db = kubelet.run_pod("web"), kubelet.run_pod("db")
    running = kubelet.create_container(web, reference, ["sleep", "100"], name="main")
    kubelet.start_container(running)
    created = kubelet.create_container(web, reference, ["sleep", "100"], name="side")
    yield Scene(lab, program, web.id, db.id, running, created, reference)
    lab.clean()


def first_column(table: str) -> list[str]:
    return [line.split()[0] for line in table.splitlines()[1:]]


def test_stats(scene: Scene) -> None:
    assert first_column(scene.ok("stats")) == [scene.running[:13]]
    every = sorted([scene.running[:13], scene.created[:13]])
    assert first_column(scene.ok("stats", "-a", "-s", "0")) == every
    document = json.loads(scene.ok("stats", "-o", "json", "--id", scene.running[:13]))
    (stats,) = document["stats"]
    assert int(stats["memory"]["workingSetBytes"]["value"]) > 0
    by_pod = json.loads(scene.ok("stats", "-o", "json", "-p", scene.web))
    assert len(by_pod["stats"]) == 2


def test_statsp_where_each_pod_can_be_measured(scene: Scene) -> None:
    document = json.loads(scene.ok("statsp", "-o", "json"))
    assert {each["attributes"]["id"] for each in document["stats"]} == {scene.web, scene.db}
    assert first_column(scene.ok("statsp", "-s", "0", scene.web)) == ["web"]


def test_statsp_with_a_pod_without_cgroup_parent(scene: Scene) -> None:
    kubelet = scene.lab.node.kubelet
    config = kubelet.pod_config("lost")
    config.linux.ClearField("cgroup_parent")
    lost = kubelet.run_pod(config)
    done = scene.run("statsp", "-o", "json")
    kubelet.remove_pod(lost.id)
    assert done.status == 1
    document: dict[str, Any] = json.loads(done.stdout)
    assert {each["attributes"]["id"] for each in document["stats"]} == {scene.web, scene.db}
    (line,) = done.stderr.splitlines()
    assert line.startswith("pycrictl: warning: pod ")
    assert "(lost): " in line
    assert "cgroup" in line
