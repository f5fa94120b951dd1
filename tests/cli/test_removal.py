"""``rm``, ``rmp`` and ``rmi`` as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest

from pycrictl._proto import cri_pb2
from tests.cli.run import Run
from tests.fakecri import FakeServer, Status, answers

MISSING = Status(grpc.StatusCode.NOT_FOUND, "gone")


def run(fake: FakeServer, *words: str) -> Run:
    return Run("-t", "5s", "-r", fake.endpoint, *words)


def container_status(request: Any, context: object) -> Any:
    """Containers ``run...`` are running, ``no...`` are missing, and ``null`` has no status."""
    if request.container_id.startswith("no"):
        return MISSING
    response = cri_pb2.ContainerStatusResponse()
    if request.container_id != "null":
        running = request.container_id.startswith("run")
        response.status.state = cri_pb2.CONTAINER_RUNNING if running else cri_pb2.CONTAINER_EXITED
        response.status.id = request.container_id
    return response


def test_rm_goes_on_after_a_failure(fake: FakeServer) -> None:
    fake.prepare("ContainerStatus", container_status, repeat=True)
    fake.prepare("RemoveContainer", None, None)
    result = run(fake, "rm", "a", "none", "run1", "null", "b")
    assert (result.code, result.stdout) == (1, "a\nb\n")
    assert result.stderr.splitlines() == [
        'pycrictl: removing container "none": not found: gone',
        'pycrictl: container "run1" is running',
        "hint: stop it first, or use --force",
        'pycrictl: the runtime gave no status for container "null"',
    ]


def test_rm_does_not_remove_what_it_could_not_stop(fake: FakeServer) -> None:
    fake.prepare("ContainerStatus", container_status)
    fake.prepare("StopContainer", Status(grpc.StatusCode.INTERNAL, "stuck"))
    result = run(fake, "rm", "-f", "run1")
    assert (result.code, result.stdout) == (1, "")
    assert result.stderr == 'pycrictl: stopping container "run1": internal error: stuck\n'


@pytest.mark.parametrize(
    ("words", "answer", "code", "left"),
    [("rm a", None, 0, 1), ("rm -k a", None, 0, 3), ("rm a", MISSING, 1, 3)],
)
def test_rm_deletes_the_logs_of_what_it_removes(
    fake: FakeServer, tmp_path: Path, words: str, answer: Status | None, code: int, left: int
) -> None:
    for name in ("0.log", "0.log.1", "other"):
        (tmp_path / name).write_text("x")
    status = answers.container_status(log_path=str(tmp_path / "0.log"), state="CONTAINER_EXITED")
    fake.prepare("ContainerStatus", cri_pb2.ContainerStatusResponse(status=status))
    fake.prepare("RemoveContainer", answer)
    assert run(fake, *words.split()).code == code
    assert len(list(tmp_path.iterdir())) == left


def test_rm_warns_of_logs_and_succeeds(fake: FakeServer) -> None:
    status = answers.container_status(log_path="relative/0.log", state="CONTAINER_EXITED")
    fake.prepare("ContainerStatus", cri_pb2.ContainerStatusResponse(status=status))
    fake.prepare("RemoveContainer", None)
    result = run(fake, "rm", "a")
    assert (result.code, result.stdout) == (0, "a\n")
    assert result.stderr.startswith('pycrictl: warning: the log path "relative/0.log"')


def image(number: int, *tags: str) -> cri_pb2.Image:
    return cri_pb2.Image(id=f"sha256:{number:064x}", repo_tags=tags)


def image_status(images: list[cri_pb2.Image]) -> Any:
    def answer(request: Any, context: object) -> cri_pb2.ImageStatusResponse:
        name = request.image.image
        matches = [image for image in images if name == image.id or name in image.repo_tags]
        return cri_pb2.ImageStatusResponse(image=matches[0] if matches else None)

    return answer


def test_rmi_tells_all_tags_first(fake: FakeServer) -> None:
    images = [image(1, "x/a:1", "x/a:2"), image(2, "x/b:1")]
    fake.prepare("ImageStatus", image_status(images), repeat=True)
    fake.prepare("RemoveImage", None, None)
    result = run(fake, "rmi", "x/a:1", "x/none:1", "x/b:1")
    assert (result.code, result.stdout) == (1, "Deleted: x/a:1\nDeleted: x/a:2\nDeleted: x/b:1\n")
    assert result.stderr.splitlines() == [
        "pycrictl: warning: x/a:1 is removed with all its tags: x/a:1, x/a:2",
        'pycrictl: no such image "x/none:1"',
        "hint: 'pycrictl images' lists the images of the node",
    ]


@pytest.mark.parametrize("flag", ["--prune", "-q", "-a"])
def test_rmi_removes_no_more_than_is_named(
    fake: FakeServer, monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    result = run(fake, "rmi", "x/a:1", flag)
    assert (result.code, result.stdout, fake.calls) == (1, "", [])
    assert "as well" in result.stderr
    monkeypatch.setattr("sys.argv", ["crictl"])
    fake.prepare("ListImages", cri_pb2.ListImagesResponse())
    fake.offer("ListContainers", cri_pb2.ListContainersResponse())
    fake.offer("ListPodSandbox", cri_pb2.ListPodSandboxResponse())
    fake.offer("Status", cri_pb2.StatusResponse())
    fake.prepare("ImageStatus", cri_pb2.ImageStatusResponse())
    result = run(fake, "rmi", "x/a:1", flag)
    assert "in addition to those that are named" in result.stderr
    assert "ListImages" in fake.methods()


def test_a_dry_run_removes_nothing(fake: FakeServer) -> None:
    images = [
        cri_pb2.Image(id=f"sha256:{letter * 64}", repo_tags=[f"x/{letter}:1"], size=2_000_000)
        for letter in "ab"
    ]
    used = cri_pb2.Container(image_ref=images[0].id)
    fake.offer("ListImages", cri_pb2.ListImagesResponse(images=images))
    fake.offer("ListContainers", cri_pb2.ListContainersResponse(containers=[used]))
    fake.offer("Status", cri_pb2.StatusResponse())
    fake.offer("ImageStatus", cri_pb2.ImageStatusResponse(image=images[1]))
    result = run(fake, "rmi", "--prune", "--dry-run")
    assert (result.code, result.stdout) == (0, "Would delete: x/b:1\n")
    assert result.stderr == "pycrictl: would free up to 2MB: 1 image\n"
    assert "RemoveImage" not in fake.methods()
    fake.prepare("RemoveImage", None)
    pruned = run(fake, "rmi", "--prune")
    assert (pruned.code, pruned.stdout) == (0, "Deleted: x/b:1\n")
    assert pruned.stderr == "pycrictl: freed up to 2MB: 1 image\n"
