"""Commands on a real containerd, beyond what the recordings have (``test_replay``)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf import json_format

from tests.cli.run import Run

from .lab import Lab

Crictl = Callable[..., Run]


@pytest.fixture
def crictl(lab: Lab) -> Crictl:
    return lambda *words: Run("-t", "20s", "-r", lab.node.endpoint, *words)


@pytest.fixture
def image(lab: Lab) -> str:
    return lab.push(lab.layout.image("app:1", [lab.base]))


def pods(lab: Lab) -> list[str]:
    answer = lab.node.kubelet.ask("ListPodSandbox")
    return [pod.id for pod in answer.items]


@pytest.mark.parametrize(
    "fields", [{"command": ["/nonexistent"]}, {"image": {"image": "127.0.0.1:1/x:1"}}]
)
def test_a_failed_run_leaves_nothing(
    lab: Lab, crictl: Crictl, image: str, tmp_path: Path, fields: dict[str, object]
) -> None:
    pod, container = tmp_path / "pod.json", tmp_path / "bad.json"
    pod.write_text(json_format.MessageToJson(lab.node.kubelet.pod_config("web")))
    metadata = {"metadata": {"name": "bad"}, "image": {"image": image}, "linux": {}}
    container.write_text(json.dumps({**metadata, **fields}))
    run = crictl("run", str(container), str(pod))
    assert (run.code, run.stdout) == (1, "")
    assert run.stderr.endswith(" was removed again\n")
    assert pods(lab) == []


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
