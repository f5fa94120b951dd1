"""``runp``, ``create`` and ``run`` as a whole."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import grpc
import pytest

from pycrictl._proto import cri_pb2
from tests.cli.run import Run, start
from tests.fakecri import FakeServer, Status, hang
from tests.waiting import wait_until

POD = "metadata: {name: web, namespace: default}\n"
CONTAINER = """
metadata: {name: main}
image: {image: x/app:1, annotations: {a: b}}
mounts:
- {container_path: /data, image: {image: x/data:1}}
- {container_path: /host, host_path: /tmp}
"""
BROKEN = Status(grpc.StatusCode.INTERNAL, "broken")


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    container, pod = tmp_path / "container.yaml", tmp_path / "pod.yaml"
    container.write_text(CONTAINER)
    pod.write_text(POD)
    return str(container), str(pod)


def run(fake: FakeServer, *words: str, config: str | None = None) -> Run:
    given = ["-c", config] if config else []
    return Run(*given, "-t", "5s", "-r", fake.endpoint, *words)


def prepare_run(fake: FakeServer, *, pulls: bool = True) -> None:
    fake.offer("RunPodSandbox", cri_pb2.RunPodSandboxResponse(pod_sandbox_id="p1"))
    if pulls:
        fake.offer("PullImage", cri_pb2.PullImageResponse(image_ref="sha256:1"))
    fake.offer("CreateContainer", cri_pb2.CreateContainerResponse(container_id="c1"))
    fake.offer("StartContainer", None)
    fake.offer("StopPodSandbox", None)
    fake.offer("RemovePodSandbox", None)


def requests(fake: FakeServer, method: str) -> list[Any]:
    return [call.request for call in fake.calls if call.method == method]


def test_cancel_timeout_replaces_the_global_one(fake: FakeServer, files: tuple[str, str]) -> None:
    fake.prepare("RunPodSandbox", hang())
    result = run(fake, "runp", "-T", "300ms", files[1])
    assert result.code == 1
    assert result.stderr.splitlines() == [
        'pycrictl: running pod sandbox "web": no answer within 600ms',
        "hint: the runtime may be busy: allow it more time with --cancel-timeout",
    ]


def test_run_is_four_steps_with_one_uid(fake: FakeServer, files: tuple[str, str]) -> None:
    prepare_run(fake)
    result = run(fake, "run", "--creds", "u:p", *files)
    assert (result.code, result.stdout, result.stderr) == (0, "c1\n", "")
    steps = ["RunPodSandbox", "PullImage", "PullImage", "CreateContainer", "StartContainer"]
    assert fake.methods() == steps
    (pod,) = requests(fake, "RunPodSandbox")
    pulls = requests(fake, "PullImage")
    assert [pull.image.image for pull in pulls] == ["x/app:1", "x/data:1"]
    assert dict(pulls[0].image.annotations) == {"a": "b"}
    assert all(pull.auth.username == "u" for pull in pulls)
    (create,) = requests(fake, "CreateContainer")
    assert create.pod_sandbox_id == "p1"
    assert create.config.image.user_specified_image == "x/app:1"
    configs = [pod.config, create.sandbox_config, *(pull.sandbox_config for pull in pulls)]
    assert {config.metadata.uid for config in configs} == {pod.config.metadata.uid}


@pytest.mark.parametrize(
    ("line", "config", "pulls"),
    [
        ("run", "", True),
        ("run --no-pull", "", False),
        ("run", "disable-pull-on-run: true\n", False),
        ("run --with-pull", "disable-pull-on-run: true\n", True),
        ("create p1", "", False),
        ("create --with-pull p1", "", True),
        ("create p1", "pull-image-on-create: true\n", True),
        ("create --no-pull p1", "pull-image-on-create: true\n", False),
    ],
)
def test_when_images_are_pulled(
    fake: FakeServer, files: tuple[str, str], tmp_path: Path, line: str, config: str, pulls: bool
) -> None:
    prepare_run(fake, pulls=pulls)
    settings = tmp_path / "crictl.yaml"
    settings.write_text(config)
    result = run(fake, *line.split(), *files, config=str(settings))
    assert (result.code, result.stdout, result.stderr) == (0, "c1\n", "")
    assert ("PullImage" in fake.methods()) == pulls


@pytest.mark.parametrize(
    ("failing", "doing"),
    [
        ("PullImage", 'pulling "x/app:1"'),
        ("CreateContainer", 'creating container "main"'),
        ("StartContainer", 'starting container "main"'),
    ],
)
def test_run_leaves_nothing_behind(
    fake: FakeServer, files: tuple[str, str], failing: str, doing: str
) -> None:
    prepare_run(fake)
    fake.offer(failing, BROKEN)
    result = run(fake, "run", *files)
    assert (result.code, result.stdout) == (1, "")
    assert result.stderr.splitlines() == [
        f"pycrictl: {doing}: internal error: broken",
        'hint: its pod sandbox "p1" was removed again',
    ]
    assert fake.methods()[-2:] == ["StopPodSandbox", "RemovePodSandbox"]
    assert requests(fake, "RemovePodSandbox")[0].pod_sandbox_id == "p1"


def test_ctrl_c_removes_the_pod(fake: FakeServer, files: tuple[str, str]) -> None:
    prepare_run(fake)
    fake.offer("CreateContainer", hang(100))
    process = start("-t", "100s", "-r", fake.endpoint, "run", "--no-pull", *files)
    wait_until(lambda: "CreateContainer" in fake.methods())
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=40)
    assert (process.returncode, stdout) == (130, "")
    assert stderr == 'pycrictl: interrupted; its pod sandbox "p1" was removed again\n'
