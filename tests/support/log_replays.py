"""Recorded calls of `logs`, played against the fake runtime."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from pycrictl._proto import cri_pb2
from tests.captures import DATA, Capture, load
from tests.captures.runtimes import IDS
from tests.fakecri import FakeServer, answers

LOGS = DATA / "logs"
DIFFERENT = {
    "l-garbage-first": (0, "garbage first\ngood\n", "lines of no known format are passed on"),
    "l-noeol-tail1": (0, "incomplete-no-eol", "a last line that is not finished is one"),
}
"""Recordings deliberately not reproduced: our exit status, our output, and the reason."""
CAPTURES = [*load("l"), *load("logs")]
SCENE = {
    "logs-created-nofile": None,
    "logs-follow-exited": "done\n",
    "logs-follow-sigint": "line 989\nline 990\n",
    "logs-previous-none": "line 1\n",
    "logs-reopen": "line 142\nline 143\n",
    "logs-since-future": "line 1\n",
    "logs-tail0": "line 1\n",
    "logs-timestamps": "",
}
"""What the containers of the real scene had written to stdout."""


def container_status(
    path: str, *, name: str = "web", attempt: int = 0, lives: bool = False
) -> cri_pb2.ContainerStatusResponse:
    answer = cri_pb2.ContainerStatusResponse(status=answers.container_status())
    answer.status.metadata.name = name
    answer.status.metadata.attempt = attempt
    answer.status.log_path = path
    answer.status.state = cri_pb2.CONTAINER_RUNNING if lives else cri_pb2.CONTAINER_EXITED
    return answer


def line(text: str, stream: str = "stdout") -> str:
    return f"2024-01-02T03:04:05.123456789Z {stream} F {text}\n"


def _words(capture: Capture) -> list[str]:
    command = capture.command.removeprefix("timeout --preserve-status -s INT 3 ")
    for name, value in IDS.items():
        command = command.replace(f"${name}", value)
    return shlex.split(command.replace("$S/logs", str(LOGS)))[1:]


def is_interrupted(capture: Capture) -> bool:
    words = _words(capture)
    return "-f" in words and "--tail" in words


def prepare(fake: FakeServer, capture: Capture, folder: Path) -> list[str]:
    """Offer a recording's logs; return the words after ``crictl``."""
    if "ReopenContainerLog" in (rpc["rpc"] for rpc in capture.rpc):
        fake.offer("ReopenContainerLog", cri_pb2.ReopenContainerLogResponse())
    if capture.name.startswith("l-"):
        fake.offer("ContainerStatus", _of_prepared_scene)
    else:
        fake.offer("ContainerStatus", _of_real_scene(capture, folder))
    return _words(capture)


def _of_prepared_scene(request: Any, context: Any) -> cri_pb2.ContainerStatusResponse:
    """The log's path is in the ID: ``log@PATH`` or ``logprev@ATTEMPT@PATH``."""
    kind, *attempt, path = request.container_id.split("@")
    assert kind in ("log", "logprev")
    return container_status(path, attempt=int(attempt[0]) if attempt else 0)


def _of_real_scene(capture: Capture, folder: Path) -> cri_pb2.ContainerStatusResponse:
    path = folder / "1.log"
    if capture.name == "logs-previous":
        (folder / "0.log").write_text(line("previous attempt line 1"))
        return container_status(str(path), attempt=1)
    text = SCENE.get(capture.name)
    if text is not None:
        path.write_text("".join(map(line, text.splitlines())))
    return container_status(str(path), lives=capture.name == "logs-follow-sigint")
