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


def test_a_pod_that_cannot_be_measured(lab: Lab, crictl: Crictl) -> None:
    """One without a cgroup of its own; the others are."""
    kubelet = lab.node.kubelet
    web = kubelet.run_pod("web")
    config = kubelet.pod_config("lost")
    config.linux.ClearField("cgroup_parent")
    kubelet.run_pod(config)
    done = crictl("statsp", "-o", "json")
    assert done.code == 1
    found = [each["attributes"]["id"] for each in json.loads(done.stdout)["stats"]]
    assert found == [web.id]
    (line,) = done.stderr.splitlines()
    assert line.startswith("pycrictl: warning: pod ")
    assert "(lost): " in line
    assert "cgroup" in line
