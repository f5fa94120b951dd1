"""``pull --max-parallel-image-pulls``: slots shared by processes, without a proxy."""

from __future__ import annotations

import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

from pycrictl._proto import cri_pb2
from tests.cli.run import Run, start
from tests.fakecri import FakeServer
from tests.waiting import wait_until

ABSENT = cri_pb2.ImageStatusResponse()
PRESENT = cri_pb2.ImageStatusResponse(image=cri_pb2.Image(id="sha256:11"))


def environ(tmp_path: Path) -> dict[str, str]:
    return {"PYCRICTL_SLOTS_DIR": str(tmp_path / "slots")}


def pull(fake: FakeServer, tmp_path: Path, *words: str) -> subprocess.Popen[str]:
    words = ("-r", fake.endpoint, "pull", "--max-parallel-image-pulls", "1", *words)
    return start(*words, environ=environ(tmp_path))


def test_a_present_image_succeeds_at_once(fake: FakeServer, tmp_path: Path) -> None:
    fake.prepare("ImageStatus", PRESENT)
    words = ("--max-parallel-image-pulls", "1", "a/b:1")
    run = Run("-r", fake.endpoint, "pull", *words, environ=environ(tmp_path))
    assert (run.code, run.stdout) == (0, "Image is up to date for sha256:11\n")
    assert fake.methods() == ["ImageStatus"]
    assert not (tmp_path / "slots").exists()


def test_processes_take_turns_and_a_killed_one_frees_its_slot(
    fake: FakeServer, tmp_path: Path
) -> None:
    release = threading.Event()
    running: list[str] = []

    def answer(request: Any, context: Any) -> Any:
        running.append(request.image.image)
        ended = threading.Event()
        context.add_callback(ended.set)
        while not (release.wait(0.01) or ended.is_set()):
            pass
        return cri_pb2.PullImageResponse(image_ref=request.image.image)

    fake.prepare("ImageStatus", ABSENT, repeat=True)
    fake.prepare("PullImage", answer, repeat=True)
    first = pull(fake, tmp_path, "a/first")
    wait_until(lambda: running == ["a/first"])
    second = pull(fake, tmp_path, "a/second")
    wait_until(lambda: fake.methods().count("ImageStatus") == 2)
    hasty = pull(fake, tmp_path, "--pull-timeout", "1500ms", "a/hasty")
    stderr = hasty.communicate(timeout=60)[1]
    assert hasty.returncode == 1
    assert 'no slot for pulling "a/hasty" became free in time' in stderr
    assert running == ["a/first"]
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=60)
    wait_until(lambda: running == ["a/first", "a/second"])
    refused = pull(
        *(fake, tmp_path, "--when-full", "retry", "--retry-interval", "50ms"),
        *("--retries", "2", "a/third"),
    )
    stderr = refused.communicate(timeout=60)[1]
    assert refused.returncode == 1
    assert "\npycrictl: TooManyPullingInParallelErr: " in stderr
    waiting = pull(fake, tmp_path, "a/fourth")
    wait_until(lambda: fake.methods().count("ImageStatus") == 5)
    waiting.send_signal(signal.SIGINT)
    stderr = waiting.communicate(timeout=60)[1]
    assert waiting.returncode == 130
    assert "a/fourth" not in running
    release.set()
    assert second.communicate(timeout=60)[0] == "Image is up to date for a/second\n"
    assert second.returncode == 0
