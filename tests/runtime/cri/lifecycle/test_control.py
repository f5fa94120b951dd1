from __future__ import annotations

from pathlib import Path

import pytest

from pycrictl._proto import cri_pb2
from pycrictl.base.errors import RuntimeFault
from pycrictl.runtime.cri.calls.client import CriClient
from pycrictl.runtime.cri.lifecycle import control
from tests.fakecri import FakeServer

POD = cri_pb2.PodSandboxConfig(metadata=cri_pb2.PodSandboxMetadata(name="web", namespace="n"))
CONTAINER = cri_pb2.ContainerConfig(
    metadata=cri_pb2.ContainerMetadata(name="main"),
    image=cri_pb2.ImageSpec(image="x/a:1", annotations={"k": "v"}),
    mounts=[
        cri_pb2.Mount(host_path="/tmp"),
        cri_pb2.Mount(image=cri_pb2.ImageSpec(image="x/data:1")),
    ],
)


def test_a_hint_is_kept_beside_the_outcome(fake: FakeServer, client: CriClient) -> None:
    fake.prepare("RunPodSandbox", cri_pb2.RunPodSandboxResponse(pod_sandbox_id="p1"))
    fake.prepare("StopPodSandbox", None)
    fake.prepare("RemovePodSandbox", None)

    def pull(request: cri_pb2.PullImageRequest) -> None:
        raise RuntimeFault("no", hint="log in")

    with pytest.raises(RuntimeFault) as caught:
        control.run_container(client, control.Launch(CONTAINER, POD, pull=pull))
    assert caught.value.hint == 'log in; its pod sandbox "p1" was removed again'


# Log files of removed containers


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    for name in ("0.log", "0.log.20261120-101010", "0.log.1.gz", "0.logs", "1.log", "a0.log"):
        (folder / name).write_text("x")
    return folder


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_log_and_its_rotated_ones_go(folder: Path) -> None:
    assert control.remove_logs(str(folder / "0.log")) == ()
    assert names(folder) == {"0.logs", "1.log", "a0.log"}


@pytest.mark.parametrize("path", ["", "/nonexistent/x/0.log"])
def test_nothing_there_is_fine(path: str) -> None:
    assert control.remove_logs(path) == ()


@pytest.mark.parametrize("path", ["0.log", "/", "{}/../logs/0.log", "{}/0.log\0"])
def test_odd_paths_are_left_alone(folder: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    before = names(folder)
    (warning,) = control.remove_logs(path.format(folder))
    assert "left alone" in warning
    assert names(folder) == before


def test_patterns_in_the_path_mean_nothing(folder: Path) -> None:
    (folder / "*.log").write_text("x")
    before = names(folder)
    assert control.remove_logs(str(folder / "*.log")) == ()
    assert names(folder) == before - {"*.log"}


def test_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("x")
    (folder / "0.log").unlink()
    (folder / "0.log").symlink_to(victim)
    (folder / "0.log.dir").mkdir()
    assert control.remove_logs(str(folder / "0.log")) == ()
    assert names(folder) == {"0.log.dir", "0.logs", "1.log", "a0.log"}
    assert victim.exists()


def test_a_linked_folder_is_left_alone(folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(folder)
    before = names(folder)
    (warning,) = control.remove_logs(str(link / "0.log"))
    assert "could not be deleted" in warning
    assert names(folder) == before
