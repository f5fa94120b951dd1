"""Commands that change state, on a real containerd."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf import json_format

from pycrictl._proto import cri_pb2
from tests.cli.run import Run

from .lab import Lab

Crictl = Callable[..., Run]
FOREVER = ["sh", "-c", "echo up; while true; do sleep 1; done"]


@pytest.fixture
def crictl(lab: Lab) -> Crictl:
    return lambda *words: Run("-t", "20s", "-r", lab.node.endpoint, *words)


@pytest.fixture
def image(lab: Lab) -> str:
    return lab.push(lab.layout.image("app:1", [lab.base]))


@pytest.fixture
def pod_file(lab: Lab, tmp_path: Path) -> str:
    config = lab.node.kubelet.pod_config("web", log_directory=str(tmp_path / "logs"))
    file = tmp_path / "pod.json"
    file.write_text(json_format.MessageToJson(config))
    return str(file)


def container_file(tmp_path: Path, image: str, name: str = "main", /, **fields: object) -> str:
    file = tmp_path / f"{name}.json"
    config = {"metadata": {"name": name}, "image": {"image": image}, "log_path": f"{name}.log"}
    file.write_text(json.dumps({**config, "command": FOREVER, "linux": {}, **fields}))
    return str(file)


def pods(lab: Lab) -> list[str]:
    answer = lab.node.kubelet.ask("ListPodSandbox")
    return [pod.id for pod in answer.items]


def test_a_life(lab: Lab, crictl: Crictl, image: str, pod_file: str, tmp_path: Path) -> None:
    first, second = container_file(tmp_path, image), container_file(tmp_path, image, "side")
    pod_id = crictl("runp", pod_file).stdout.strip()
    assert pods(lab) == [pod_id]
    a = crictl("create", "--with-pull", pod_id, first, pod_file).stdout.strip()
    b = crictl("create", pod_id, second, pod_file).stdout.strip()
    assert len(a) == len(b) == 64

    started = crictl("start", a, b, "nosuch")
    assert (started.code, started.stdout.split()) == (1, [a, b])
    assert lab.node.kubelet.state(a) == cri_pb2.CONTAINER_RUNNING
    assert crictl("update", "--memory", "33554432", "--cpu-share", "512", a).stdout == f"{a}\n"

    running = crictl("rm", a[:13], b)
    assert (running.code, running.stdout) == (1, "")
    assert running.stderr.count(" is running\n") == 2
    assert crictl("stop", "-t", "1", a).stdout == f"{a}\n"
    assert lab.node.kubelet.state(a) == cri_pb2.CONTAINER_EXITED

    logs = tmp_path / "logs"
    (logs / "main.log.1").write_text("rotated")
    removed = crictl("rm", a, "nosuch")
    assert (removed.code, removed.stdout) == (1, f"{a}\n")
    assert {path.name for path in logs.iterdir()} == {"side.log"}
    forced = crictl("rm", "-f", "-k", b)
    assert (forced.code, forced.stdout) == (0, f"{b}\n{b}\n")
    assert {path.name for path in logs.iterdir()} == {"side.log"}

    assert crictl("rmp", pod_id).code == 1
    assert crictl("stopp", pod_id).stdout == f"Stopped sandbox {pod_id}\n"
    assert crictl("rmp", pod_id).stdout == f"Removed sandbox {pod_id}\n"
    assert pods(lab) == []


def test_run(lab: Lab, crictl: Crictl, image: str, pod_file: str, tmp_path: Path) -> None:
    run = crictl("run", container_file(tmp_path, image), pod_file)
    assert run.code == 0
    container_id = run.stdout.strip()
    assert lab.node.kubelet.state(container_id) == cri_pb2.CONTAINER_RUNNING
    stopped = crictl("stop", "--all")
    assert (stopped.code, stopped.stdout) == (0, f"{container_id}\n")
    (pod_id,) = pods(lab)
    removed = crictl("rmp", "-fa")
    assert removed.stdout == f"Stopped sandbox {pod_id}\nRemoved sandbox {pod_id}\n"
    assert crictl("rm", "-a").stderr == "pycrictl: no containers to remove\n"


@pytest.mark.parametrize(
    "fields", [{"command": ["/nonexistent"]}, {"image": {"image": "127.0.0.1:1/x:1"}}]
)
def test_a_failed_run_leaves_nothing(
    lab: Lab,
    crictl: Crictl,
    image: str,
    pod_file: str,
    tmp_path: Path,
    fields: dict[str, object],
) -> None:
    run = crictl("run", container_file(tmp_path, image, "bad", **fields), pod_file)
    assert (run.code, run.stdout) == (1, "")
    assert run.stderr.endswith(" was removed again\n")
    assert pods(lab) == []


def test_rmi_and_prune(lab: Lab, crictl: Crictl, image: str, pod_file: str, tmp_path: Path) -> None:
    other = lab.push(lab.layout.image("other:1", lab.layout.random_layers([1000], seed=7)))
    lab.node.kubelet.pull(other)
    assert crictl("run", container_file(tmp_path, image), pod_file).code == 0
    pruned = crictl("rmi", "--prune")
    assert (pruned.code, pruned.stdout) == (0, f"Deleted: {other}\n")
    assert re.fullmatch(r"pycrictl: freed up to \d+kB: 1 image\n", pruned.stderr)
    left = {tag for found in lab.node.kubelet.images() for tag in found.repo_tags}
    assert image in left
    assert any("pause" in tag for tag in left)

    lab.node.kubelet.pull(other)
    removed = crictl("rmi", "nosuch:1", other)
    assert (removed.code, removed.stdout) == (1, f"Deleted: {other}\n")
    assert removed.stderr.startswith('pycrictl: no such image "nosuch:1"\n')


def test_names_where_ids_are_wanted(lab: Lab, crictl: Crictl, image: str) -> None:
    kubelet = lab.node.kubelet
    pod = kubelet.run_pod(kubelet.pod_config("web", namespace="prod"))
    other = kubelet.run_pod(kubelet.pod_config("web", namespace="test"))
    kubelet.pull(image)
    ids = [
        kubelet.create_container(pod, image, ["sleep", "60"], name="main"),
        kubelet.create_container(pod, image, ["sleep", "60"], name="side"),
        kubelet.create_container(other, image, ["sleep", "60"], name="side"),
    ]
    for words in (
        ("start", "main"),
        ("inspect", "prod/web/main"),
        ("exec", "--sync", "main", "true"),
        ("exec", "test/web", "true"),
        ("update", "--memory", "99999999", "main"),
        ("inspectp", "prod/web"),
        ("ps", "--pod", "prod/web"),
        ("stop", "main"),
    ):
        if words[1] == "test/web":
            assert crictl("start", "test/web/side").code == 0
        result = crictl(*words)
        assert result.code == 0, result.stderr
    assert result.stderr == f"pycrictl: main is container {ids[0][:13]} (prod/web/main)\n"
    unclear = crictl("rm", "side")
    assert (unclear.code, unclear.stdout) == (1, "")
    assert unclear.stderr == 'pycrictl: "side" matches 2 containers: prod/web/side, test/web/side\n'
    assert crictl("stopp", "web").stderr == 'pycrictl: "web" matches 2 pods: prod/web, test/web\n'
    assert crictl("rm", "main", "prod/web/side").stdout == "main\nprod/web/side\n"
    assert crictl("stopp", "prod/web").stdout == "Stopped sandbox prod/web\n"
    assert crictl("rmp", "prod/web").stdout == "Removed sandbox prod/web\n"
    assert pods(lab) == [other.id]


def test_what_the_runtime_does_not_offer(lab: Lab, crictl: Crictl) -> None:
    result = crictl("checkpoint", "-e", "/nonexistent/x.tar", "0" * 64)
    assert (result.code, result.stdout) == (1, "")
    assert "does not implement CheckpointContainer" in result.stderr
    assert crictl("update-runtime-config", "-p", "10.1.0.0/16").code == 0


def first_column(table: str) -> list[str]:
    return [line.split()[0] for line in table.splitlines()[1:]]


def test_stats(lab: Lab, crictl: Crictl) -> None:
    kubelet = lab.node.kubelet
    web, db = kubelet.run_pod("web"), kubelet.run_pod("db")
    running = lab.container(web)
    created = kubelet.create_container(web, lab.reference(lab.busybox), name="side")
    assert first_column(crictl("stats").stdout) == [running[:13]]
    every = sorted([running[:13], created[:13]])
    assert first_column(crictl("stats", "-a", "-s", "0").stdout) == every
    (stats,) = json.loads(crictl("stats", "-o", "json", "--id", running[:13]).stdout)["stats"]
    assert int(stats["memory"]["workingSetBytes"]["value"]) > 0
    assert len(json.loads(crictl("stats", "-o", "json", "-p", web.id).stdout)["stats"]) == 2
    assert first_column(crictl("statsp", "-s", "0", web.id).stdout) == ["web"]
    # A pod without a cgroup of its own cannot be measured; the others are.
    config = kubelet.pod_config("lost")
    config.linux.ClearField("cgroup_parent")
    kubelet.run_pod(config)
    done = crictl("statsp", "-o", "json")
    assert done.code == 1
    found = {each["attributes"]["id"] for each in json.loads(done.stdout)["stats"]}
    assert found == {web.id, db.id}
    (line,) = done.stderr.splitlines()
    assert line.startswith("pycrictl: warning: pod ")
    assert "(lost): " in line
    assert "cgroup" in line
