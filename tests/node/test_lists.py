"""Every command that answers with data, on a real containerd."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

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


def test_ps(scene: Scene) -> None:
    assert first_column(scene.ok("ps")) == [scene.running[:13]]
    assert first_column(scene.ok("ps", "-a")) == [scene.created[:13], scene.running[:13]]
    both = f"{scene.created}\n{scene.running}\n"
    for words, expected in (
        (["-a"], both),
        (["--state", "created"], f"{scene.created}\n"),
        (["-a", "--name", "^ma"], f"{scene.running}\n"),
        (["-a", "--pod", scene.web], both),
        (["-a", "--pod", scene.db], ""),
        (["-a", "--id", scene.running[:20]], f"{scene.running}\n"),
        (["-a", "--image", scene.reference], both),
        (["-a", "--image", "nosuch:1"], ""),
        (["-l"], f"{scene.created}\n"),
        (["-n", "2"], both),
        (["-a", "--label", "no=such"], ""),
    ):
        assert scene.ok("ps", "-q", *words) == expected, words
    assert scene.reference in scene.ok("ps", "-r")
    document = json.loads(scene.ok("ps", "-o", "json"))
    assert [each["id"] for each in document["containers"]] == [scene.running]
    assert yaml.safe_load(scene.ok("ps", "-o", "yaml")) == document
    assert scene.ok("ps", "-o", "jsonpath={.items[*].metadata.name}") == "main\n"
    columns = scene.ok("ps", "-a", "-o", "custom-columns=N:.metadata.name", "--sort-by", ".id")
    assert sorted(columns.split()) == ["N", "main", "side"]
    wide = scene.ok("ps", "-a", "-o", "wide", "--no-headers")
    assert all(" unknown " in line for line in wide.splitlines())


def test_pods(scene: Scene) -> None:
    assert first_column(scene.ok("pods")) == [scene.db[:13], scene.web[:13]]
    assert scene.ok("pods", "-q", "--name", "web") == f"{scene.web}\n"
    assert scene.ok("pods", "-q", "--state", "notready") == ""
    assert scene.ok("pods", "-q", "-l") == f"{scene.db}\n"
    assert len(first_column(scene.ok("pods", "-o", "wide"))) == 2
    assert "Namespace: default\n" in scene.ok("pods", "-v", "--id", scene.web)


def test_images(scene: Scene) -> None:
    name = scene.reference.rpartition(":")[0]
    assert name in first_column(scene.ok("images"))
    assert first_column(scene.ok("images", scene.reference)) == [name]
    assert scene.ok("images", "-o", "wide", scene.reference, "--no-headers").split()[-2:] == [
        *("nobody", "true")
    ]


def test_inspect(scene: Scene) -> None:
    document = json.loads(scene.ok("inspect", scene.running))
    assert document["status"]["state"] == "CONTAINER_RUNNING"
    assert document["status"]["metadata"]["name"] == "main"
    assert document["info"]["runtimeSpec"]["process"]["args"] == ["sleep", "100"]
    pid = scene.ok(
        "inspect", "-o", "go-template", "--template", "{{.info.pid}}", scene.running[:12]
    )
    assert int(pid) == document["info"]["pid"] > 0
    both = json.loads(scene.ok("inspect", "-q", scene.running, scene.created))
    assert [each["status"]["id"] for each in both] == [scene.running, scene.created]
    assert [list(each) for each in both] == [["status"], ["status"]]
    assert json.loads(scene.ok("inspect", "-q"))["status"]["id"] == scene.running
    assert "State: CONTAINER_CREATED\n" in scene.ok("inspect", "-o", "table", scene.created)


def test_inspectp(scene: Scene) -> None:
    document = json.loads(scene.ok("inspectp", scene.web))
    assert document["status"]["state"] == "SANDBOX_READY"
    assert document["info"]["pid"] > 0
    both = yaml.safe_load(scene.ok("inspectp", "-q", "-o", "yaml"))
    assert [each["status"]["id"] for each in both] == [scene.db, scene.web]
    assert "Name: web\n" in scene.ok("inspectp", "-o", "table", "--name", "web")


def test_inspecti(scene: Scene) -> None:
    document = json.loads(scene.ok("inspecti", scene.reference))
    assert document["status"]["repoTags"] == [scene.reference]
    assert document["info"]["imageSpec"]["config"]["User"] == "nobody"
    by_id = json.loads(scene.ok("inspecti", "-q", document["status"]["id"]))
    assert by_id == {"status": document["status"]}
    named = scene.ok("inspecti", "-q", "--name", scene.reference)
    assert json.loads(named) == by_id
    missing = scene.run("inspecti", "nosuch:1")
    assert (missing.status, missing.stdout) == (1, b"")
    assert missing.stderr.startswith('pycrictl: no image "nosuch:1"\n')


def test_what_is_of_another_kind(scene: Scene) -> None:
    pod = scene.run("inspect", scene.web)
    assert (pod.status, pod.stdout) == (1, b"")
    assert pod.stderr.endswith("hint: it is a pod: 'pycrictl inspectp' shows it\n")
    container = scene.run("inspectp", scene.running)
    assert container.stderr.endswith("hint: it is a container: 'pycrictl inspect' shows it\n")
    nothing = scene.run("inspect", "nosuch")
    assert nothing.stderr.startswith('pycrictl: no container "nosuch"\nhint: ')
    assert len(nothing.stderr.splitlines()) == 2


def test_node(scene: Scene) -> None:
    info = json.loads(scene.ok("info"))
    assert {each["type"] for each in info["status"]["conditions"]} >= {"RuntimeReady"}
    assert info["config"]["containerd"]["defaultRuntimeName"]
    assert list(json.loads(scene.ok("info", "-q"))) == ["status"]
    usage = json.loads(scene.ok("imagefsinfo"))
    assert usage["status"]["imageFilesystems"][0]["fsId"]["mountpoint"]
    assert scene.ok("imagefsinfo", "-o", "table").startswith("Container Filesystem \n")


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


@pytest.mark.parametrize(
    ("command", "call"),
    [
        ("runtime-config", "RuntimeConfig"),
        ("events", "GetContainerEvents"),
        ("metricsp", "ListPodSandboxMetrics"),
        ("metricdescs", "ListMetricDescriptors"),
    ],
)
def test_what_this_runtime_has_not(
    shared_lab: Lab, program: Program, command: str, call: str
) -> None:
    done = program.run(command)
    assert (done.status, done.stdout) == (1, b"")
    assert done.stderr.splitlines() == [
        f'pycrictl: the runtime at "{shared_lab.node.endpoint}" does not implement {call}'
    ]
