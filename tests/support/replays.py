"""Recorded sessions of crictl, played against the fake runtime."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf.message import Message

from pycrictl._proto import cri_pb2
from tests.captures import DATA, Capture, documents, everything, load, runtimes
from tests.captures.calls import LOOKED_UP, LOOKUPS, OTHER_CALLS, calls_that_count
from tests.captures.scene import fake_containers, fake_images, prepared, real_version
from tests.cli.run import Run
from tests.cli.streaming_server import Played, playing
from tests.fakecri import FakeServer, Maker, Status

LISTING = frozenset(
    (
        "ps", "pods", "images", "image", "img", "inspect", "inspecti", "inspectp", "info",
        "imagefsinfo", "stats", "statsp", "metricsp", "metricdescs", "events", "event",
        "runtime-config",
    )
)  # fmt: skip
SHELL = {
    "x-logrus-tty": "crictl pods -s bogus",
    "x-env-config-missing": "crictl -c /nonexistent.yaml ps",
    "config-invalid-key-in-file": "crictl -c {folder}/foo.yaml ps",
    "config-invalid-default-ignored": "crictl -c {folder}/foo.yaml ps",
    "config-invalid-timeout-in-file": "crictl -c {folder}/timeout.yaml ps",
    "config-invalid-yaml": "crictl -c {folder}/bad.yaml ps",
    "endpoint-image-only-bad": "crictl --max-retries 0 -i unix:///nonexistent.sock ps",
    "images-filter-since-id": "crictl images -f since=340fc8c6ef9c",
    "inspecti-idprefix": "crictl inspecti -q 340fc8c6ef9c",
    "inspecti-yaml": "crictl inspecti -q -o yaml {tool}",
}
"""The replayed command lines of recordings that were made by a whole script."""
TOOL = "127.0.0.1:5555/tool@sha256:e1e2f4714f9d8c770fc03901d72e2879f678ab9ff753c49280236646e3474508"
ELSEWHERE = {
    "noconfig-default-endpoints": "looks for sockets at fixed places",
    "x-stats-watch-json": "needs Ctrl-C",
    "f-events-sigint": "needs Ctrl-C, which exits with 130, where crictl has 1",
    "m-images-after-prune": "another list of images, of which nothing else was recorded",
    "x-runp-cancel-timeout": "is about runp",
}
"""Recordings that are not replayed as lists, and why."""
EARLY = 1_795_208_999.5
"""The time at which "About a minute ago" was printed for the newest container."""
LATE = 1_795_209_010.0


def command_of(capture: Capture) -> str:
    """Return the first command of LISTING in the recording's script; empty if there is none."""
    for part in re.split(r"[|;&()\n]|\$\(", capture.command):
        words = part.replace('"', " ").split()
        if "crictl" not in words:
            continue
        rest = words[words.index("crictl") + 1 :]
        while rest and rest[0].startswith("-"):
            rest = rest[1 if rest[0] in ("-D", "--debug", "--help") else 2 :]
        if rest and rest[0] in LISTING:
            return rest[0]
    return ""


LISTS = [
    capture for capture in everything() if command_of(capture) and capture.name not in ELSEWHERE
]


def _list_words(capture: Capture, folder: Path) -> list[str]:
    """Return the words after ``crictl``, with the scene's variables filled in."""
    command = SHELL.get(capture.name, capture.command)
    command = command.replace("{folder}", str(folder)).replace("{tool}", TOOL)
    command = runtimes.with_ids(command)
    words = shlex.split(command)
    assert words[0] == "crictl", f"{capture.name}: {command}"
    if {"stats", "statsp"} & set(words[1:2]):
        # The last value counts: no need to wait here.
        words += ["-s" if "-s" in words else "--seconds", "0"]
    return words[1:]


def replay_list(fake: FakeServer, capture: Capture, folder: Path) -> Run:
    is_prepared = capture.name.startswith("f-")
    is_early = capture.stdout is not None and "About a minute" in capture.stdout
    now = EARLY if is_early and not is_prepared else LATE
    if is_prepared:
        runtimes.prepared(fake, now)
        if capture.command.endswith(" x"):  # an ID that is in no list
            fake.withdraw(*LOOKUPS)
    elif capture.name.startswith("t-"):
        runtimes.empty(fake)
    else:
        runtimes.real(fake)
    config = folder / "crictl.yaml"
    timeout_s = 5 if is_prepared else 20
    config.write_text(f"runtime-endpoint: {fake.endpoint}\ntimeout: {timeout_s}\n")
    (folder / "foo.yaml").write_text("timeout: 1\nfoo: bar\n")
    (folder / "timeout.yaml").write_text("timeout: 2s\n")
    (folder / "bad.yaml").write_text("a: b: c\n")
    return Run(
        *_list_words(capture, folder),
        environ={"CRI_CONFIG_FILE": str(config)},
        wall_clock=lambda: now,
    )


def assert_same_text(text: str, capture: Capture) -> None:
    words = capture.command.split()
    recorded = capture.output.removeprefix("\x1b[2J\x1b[H")  # for terminals only
    if recorded.startswith(("{", "[")) and "go-template" not in words:
        assert [*documents(text, list)] == [*documents(recorded, list)]
    elif words[1] in ("stats", "statsp"):
        assert measured_rows(text) == measured_rows(recorded)
    else:
        # The recorder ended every output with a line break.
        assert text.removesuffix("\n") == recorded.removesuffix("\n")


def measured_rows(text: str) -> str:
    rows = re.sub(r"\b\d+(\.\d+)?([kMGT]?B)?(?= )", "#", text)
    return re.sub(r" {2,}", "  ", rows)


SIGNALLED: Final = {
    "attach-7s": "prints what comes for some seconds",
    "m-attach-detach": "types the detach keys",
    "m-attach-sigint-twice": "the first Ctrl-C ends it with 130, where crictl swallows it",
    "m-exec-pty-resize": "has a terminal",
    "m-exec-sigint": "the first Ctrl-C ends it with 130, where crictl swallows it",
    "m-execsync-sigint": "Ctrl-C ends it with 130, where crictl has 1",
    "m-portforward-busy-one": "runs until a signal",
    "m-portforward-data": "runs until a signal",
    "m-portforward-refused": "a refused connection is reported, and forwarding goes on",
    "m-portforward-sigint-rc": "runs until a signal",
    "m-portforward-websocket": "WebSocket works here",
    "portforward-sigint": "runs until a signal",
    "x-exec-sigterm": "the first SIGTERM ends it, where crictl swallows it",
    "x-exec-stdin-large": "needs the real thing, and has it in the node's tests",
}
"""Recordings that are replayed or tested on a real runtime instead, and why."""
PLAYED: Final[Mapping[str, Played]] = {
    "exec-exit7": Played(code=7),
    "exec-ignore-errors": Played(code=9),
    "exec-ignore-errors-quiet": Played(code=9),
    "exec-name-filter": Played(b"127.0.0.1\n"),
    "exec-notfound-binary": Played(
        failure='exec: "nosuchbinary": executable file not found in $PATH: unknown'
    ),
    "exec-stdin": Played(is_cat=True),
    "exec-stdout-stderr": Played(b"out\n", b"err\n"),
}
"""What commands do, if their recorded output does not show it."""
SESSIONS: Final = [
    capture
    for capture in everything()
    if re.search(r"\bcrictl (exec|attach|port-forward)\b", capture.command)
    if capture.name not in SIGNALLED and not capture.command.startswith("crictl exec help")
]


def _session_words(capture: Capture) -> tuple[list[str], str]:
    command, stdin = capture.command, ""
    if command.startswith("echo data | "):
        command, stdin = command.removeprefix("echo data | "), "data\n"
    command = runtimes.with_ids(command)
    words = shlex.split(command)
    return words[words.index("crictl") + 1 :], stdin


def _played(capture: Capture) -> Played:
    """Return the recorded command; its output is without the lines of container IDs."""
    output = "" if capture.stdout is None else capture.output
    lines = [line for line in output.splitlines(keepends=True) if not line.endswith(":\n")]
    return PLAYED.get(capture.name, Played("".join(lines).encode()))


def replay_session(fake: FakeServer, capture: Capture, folder: Path) -> Run:
    if capture.name.startswith("t-"):
        runtimes.empty(fake)
    else:
        runtimes.real(fake)
    config = folder / "crictl.yaml"
    timeout_s = 5 if capture.name.startswith("f-") else 20
    config.write_text(f"runtime-endpoint: {fake.endpoint}\ntimeout: {timeout_s}\n")
    words, stdin = _session_words(capture)
    with playing(fake, _played(capture)):
        fake.offer(
            "ExecSync", cri_pb2.ExecSyncResponse(stdout=b"out\n", stderr=b"err\n", exit_code=7)
        )
        if capture.name == "f-exec-empty-url":
            fake.offer("Exec", None)
            fake.withdraw(*LOOKUPS)  # its container is in no list
        for rpc in capture.rpc:
            if rpc["code"] != "OK":
                fake.offer(rpc["rpc"], Status(grpc.StatusCode[rpc["code"]], "as recorded"))
        return Run(*words, environ={"CRI_CONFIG_FILE": str(config)}, stdin=stdin)


CHANGING = (
    "create", "run", "runp", "start", "stop", "stopp", "rm", "rmp", "rmi", "checkpoint",
    "update", "f-checkpoint", "f-rm", "f-rmi", "f-stop", "f-update", "f-pull",
)  # fmt: skip
CHANGES = [
    capture for command in CHANGING for capture in load(command) if "jsonschema" not in capture.name
]


def _change_words(capture: Capture, folder: Path) -> list[str]:
    command = capture.command
    if "> /scene/p.json; " in command:  # a pod config with another UID, made by the script
        pod = (DATA / "files" / "pod-web.json").read_text().replace('0001"', '00ff"')
        (folder / "p.json").write_text(pod)
        command = command.partition("; ")[2].replace("/scene/p.json", str(folder / "p.json"))
    requests = [rpc["request"] for rpc in capture.rpc]
    ids = {
        "$CW": _first(requests, "container_id"),
        "$CO": _first(requests, "container_id"),
        "$PW": _first(requests, "pod_sandbox_id"),
        "$S": str(DATA / "files"),
    }
    for variable, value in ids.items():
        command = command.replace(variable, value)
    return shlex.split(command)[1:]


def _first(requests: list[dict[str, str]], field: str) -> str:
    return next((request[field] for request in requests if field in request), "id")


def _prepare_change(fake: FakeServer, capture: Capture, now: float) -> None:
    answers: dict[str, list[Any]] = {}
    is_looked_up = OTHER_CALLS.get(capture.name) == LOOKED_UP
    if is_looked_up:
        fake.offer("ListContainers", cri_pb2.ListContainersResponse())
        fake.offer("ListPodSandbox", cri_pb2.ListPodSandboxResponse())
    for rpc in calls_that_count(capture):
        if is_looked_up and rpc["code"] == "NOT_FOUND":
            continue  # the empty lists show it
        code = grpc.StatusCode[rpc["code"]]
        ok = code is grpc.StatusCode.OK
        answers.setdefault(rpc["rpc"], []).append(
            _answer_to(capture, now) if ok else Status(code, "as recorded")
        )
    for name, queued in answers.items():
        fake.prepare(name, *queued)


def _answer_to(capture: Capture, now: float) -> Maker:
    is_fake = capture.name.startswith("f-")

    def make(request: Any, context: grpc.ServicerContext) -> Message | None:
        match request:
            case cri_pb2.ListContainersRequest() if is_fake:
                return cri_pb2.ListContainersResponse(containers=fake_containers(now))
            case cri_pb2.ContainerStatusRequest() if is_fake:
                status: Message = prepared("ContainerStatus")
                return status
            case cri_pb2.ContainerStatusRequest():
                response = cri_pb2.ContainerStatusResponse()
                response.status.id = request.container_id
                response.status.state = cri_pb2.CONTAINER_RUNNING
                return response
            case cri_pb2.PodSandboxStatusRequest():
                pod = cri_pb2.PodSandboxStatusResponse()
                pod.status.id = request.pod_sandbox_id
                return pod
            case cri_pb2.ImageStatusRequest() if is_fake:
                images = [i for i in fake_images() if request.image.image in i.repo_tags]
                return cri_pb2.ImageStatusResponse(image=images[0])
            case cri_pb2.VersionRequest():
                return real_version()
        return None

    return make


def replay_change(fake: FakeServer, capture: Capture, folder: Path) -> Run:
    _prepare_change(fake, capture, time.time())
    timeout = "5s" if capture.name.startswith("f-") else "20s"
    config = folder / "crictl.yaml"
    config.touch()
    words = ("-t", timeout, "-r", fake.endpoint, *_change_words(capture, folder))
    return Run(*words, environ={"CRI_CONFIG_FILE": str(config)})
