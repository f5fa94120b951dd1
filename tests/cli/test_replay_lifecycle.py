"""Recordings of commands that change state, and their order; ``test_as_crictl`` replays all."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

import pytest

from tests.captures import Capture, load
from tests.captures.calls import calls_of, expected, made, recorded_calls
from tests.captures.lifecycle import FILES, prepare
from tests.cli.run import Run
from tests.fakecri import FakeServer

COMMANDS = (
    *("create", "run", "runp", "start", "stop", "stopp", "rm", "rmp", "rmi", "checkpoint"),
    *("update", "f-checkpoint", "f-rm", "f-rmi", "f-stop", "f-update", "f-pull"),
)
NOT_HERE = ("jsonschema",)

CAPTURES = [
    capture
    for command in COMMANDS
    for capture in load(command)
    if not any(word in capture.name for word in NOT_HERE)
]


def words_of(capture: Capture, folder: Path) -> list[str]:
    command = capture.command
    if "> /scene/p.json; " in command:  # a pod with another UID, made on the way
        pod = (FILES / "pod-web.json").read_text().replace('0001"', '00ff"')
        (folder / "p.json").write_text(pod)
        command = command.partition("; ")[2].replace("/scene/p.json", str(folder / "p.json"))
    requests = [rpc["request"] for rpc in capture.rpc]
    ids = {
        "$CW": _first(requests, "container_id"),
        "$CO": _first(requests, "container_id"),
        "$PW": _first(requests, "pod_sandbox_id"),
        "$S": str(FILES),
    }
    for variable, value in ids.items():
        command = command.replace(variable, value)
    return shlex.split(command)[1:]


def _first(requests: list[dict[str, str]], field: str) -> str:
    return next((request[field] for request in requests if field in request), "id")


def replay(fake: FakeServer, capture: Capture, folder: Path) -> Run:
    prepare(fake, capture, time.time())
    timeout = "5s" if capture.name.startswith("f-") else "20s"
    config = folder / "crictl.yaml"
    config.touch()
    words = ("-t", timeout, "-r", fake.endpoint, *words_of(capture, folder))
    return Run(*words, environ={"CRI_CONFIG_FILE": str(config)})


@pytest.mark.parametrize("name", ["f-stop", "f-stop-all", "f-update-hex"])
def test_sequence_is_kept(fake: FakeServer, name: str, tmp_path: Path) -> None:
    (capture,) = [capture for capture in CAPTURES if capture.name == name]
    prepare(fake, capture, time.time())
    run = Run("-t", "5s", "-r", fake.endpoint, *words_of(capture, tmp_path))
    assert run.stdout == capture.output
    assert made(calls_of(fake)) == expected(recorded_calls(capture))
