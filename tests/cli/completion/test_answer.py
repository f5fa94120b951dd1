"""The hidden command behind the completion scripts: candidates, silence on errors, time limit."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import grpc
import pytest

from pycrictl._proto import cri_pb2
from pycrictl.base import noderoot
from pycrictl.base.errors import PycrictlError
from pycrictl.cli.complete import DIRECTORIES, FILES, NO_FILES, NO_SPACE
from pycrictl.cli.completion import answer
from pycrictl.cli.completion.answer import candidates
from tests.fakecri import FakeServer, Status, hostile
from tools import surface

ENDPOINT = "CONTAINER_RUNTIME_ENDPOINT"

SHOP, DNS = "5ca3" + "0" * 60, "6000" + "0" * 60
LABELS = {"io.kubernetes.pod.name": "shop", "io.kubernetes.pod.namespace": "default"}
CONTAINERS = [
    cri_pb2.Container(
        id=start + digit * 60, pod_sandbox_id=pod, metadata={"name": name}, state=state
    )
    for start, digit, pod, name, state in (
        ("4b0c", "1", SHOP, "web", cri_pb2.CONTAINER_RUNNING),
        ("4b9f", "2", SHOP, "proxy", cri_pb2.CONTAINER_CREATED),
        ("77aa", "3", DNS, "proxy", cri_pb2.CONTAINER_EXITED),
    )
]
CONTAINERS[0].labels.update(LABELS)
PODS = [
    cri_pb2.PodSandbox(id=SHOP, metadata={"name": "shop", "namespace": "default"}),
    cri_pb2.PodSandbox(
        id=DNS,
        metadata={"name": "dns", "namespace": "kube-system"},
        state=cri_pb2.SANDBOX_NOTREADY,
    ),
]
IMAGES = [
    cri_pb2.Image(id="sha256:" + "ab" * 32, repo_tags=["docker.io/library/busybox:1"]),
    cri_pb2.Image(id="sha256:" + "cd" * 32, repo_digests=["quay.io/x/y@sha256:" + "ef" * 32]),
]


def ask(*words: str, timeout: str = "50s", **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command; its default time limit is long, so a busy machine fails no test."""
    inherited = {key: value for key, value in os.environ.items() if key != ENDPOINT}
    return subprocess.run(
        [sys.executable, "-m", "pycrictl", *words],
        env={**inherited, answer.LIMIT_VARIABLE: timeout, **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )


def completed(*words: str, **environ: str) -> dict[str, str]:
    result = ask("__complete", *words, **environ)
    assert (result.returncode, result.stderr) == (0, "")
    *lines, directive = result.stdout.splitlines()
    assert directive[0] == ":"
    return {word: text for word, _, text in (line.partition("\t") for line in lines)}


def offered(*words: str, **environ: str) -> dict[str, str]:
    """Do the same as ``completed``, but in this process; return no candidates after an error."""
    with mock.patch.dict(os.environ, environ), suppress(PycrictlError):
        if ENDPOINT not in environ:
            os.environ.pop(ENDPOINT, None)
        try:
            return dict(candidates("pycrictl", words)[0])
        finally:
            noderoot.use("/")
    return {}


@pytest.fixture
def runtime(fake: FakeServer) -> FakeServer:
    def containers(request: Any, _: object) -> cri_pb2.ListContainersResponse:
        wanted = request.filter
        running = [
            container
            for container in CONTAINERS
            if not wanted.HasField("state") or container.state == wanted.state.state
        ]
        return cri_pb2.ListContainersResponse(containers=running)

    fake.offer("ListContainers", containers)
    fake.offer("ListPodSandbox", cri_pb2.ListPodSandboxResponse(items=PODS))
    fake.offer("ListImages", cri_pb2.ListImagesResponse(images=IMAGES))
    return fake


@pytest.mark.parametrize(
    ("command", "word", "wanted"),
    [
        ("inspect", "", {"web", "shop/proxy", "dns/proxy"}),
        ("inspect", "4", {"4b0c111111111", "4b9f222222222"}),
        ("inspect", "4b9", {"4b9f222222222"}),
        ("inspect", "4b9f2222222222", {"4b9f" + "2" * 60}),
        ("inspect", "we", {"web"}),
        ("inspect", "sh", {"shop/web", "shop/proxy"}),
        ("inspect", "kube-system/", {"kube-system/dns/proxy"}),
        ("stop", "", {"web"}),
        ("start", "", {"shop/proxy"}),
        ("cp", "", {"web:"}),
        ("cp", "4b", {"4b0c111111111:"}),
        ("cp", "/tmp/", set()),
        ("cp", "./x:", set()),
        ("stopp", "", {"shop", "dns"}),
        ("stopp", "sh", {"shop"}),
        ("stopp", "kube", {"kube-system/dns"}),
        ("stopp", "6", {"6000000000000"}),
        ("logs", "", {"web", "shop/proxy", "dns/proxy", "shop", "dns"}),
        ("logs", "sh", {"shop/web", "shop/proxy", "shop"}),
        ("rmi", "", {"docker.io/library/busybox:1", "quay.io/x/y@sha256:" + "ef" * 32}),
        ("rmi", "docker", {"docker.io/library/busybox:1"}),
        ("rmi", "abab", {"ab" * 6 + "a"}),
        ("rmi", "sha256:cd", {"sha256:" + "cd" * 32}),
        ("ps --pod", "sh", {"shop"}),
        ("ps -qp", "sh", {"shop"}),
        ("ps --id", "we", {"web"}),
        ("inspect web", "sh", {"shop/web", "shop/proxy"}),
        ("inspect --", "we", {"web"}),
        ("exec", "w", {"web"}),
        ("exec -i", "w", {"web"}),
        ("exec web ls", "w", set()),
        ("runp", "", {"js", "jsonschema"}),
        ("ps", "", set()),
        ("ps --state", "", {"created", "running", "exited", "unknown"}),
        ("ps -qo", "wid", {"wide"}),
        ("ps -q", "-o=wid", {"-o=wide"}),
        ("ps", "--output=jsonp", {"--output=jsonpath="}),
        ("ps --name ps", "--no-h", {"--no-headers"}),
        ("exec x sh", "-o=js", set()),
        ("event -o", "go", {"go-template"}),
        ("help", "imagef", {"imagefsinfo"}),
        ("images --filter", "dangling=", {"dangling=true", "dangling=false"}),
        ("create js", "--cont", {"--container"}),
        ("create", "j", {"js", "jsonschema"}),
        ("pull-limiter", "st", {"status"}),
        ("config", "runtime-e", {"runtime-endpoint"}),
        ("completion", "fi", {"fish"}),
        ("stop --timeout", "", set()),
    ],
)
def test_candidates(runtime: FakeServer, command: str, word: str, wanted: set[str]) -> None:
    assert set(offered("-r", runtime.endpoint, *command.split(), word)) == wanted


def test_every_command_and_every_option() -> None:
    program = surface.program()
    names = {
        name
        for subcommand in program.subcommands
        for name in (subcommand.name, *subcommand.aliases)
    }
    assert set(offered("")) == names
    for command in program.walk():
        options = {name for option in command.options for name in option.names}
        assert set(offered(*command.path, "-")) == options, command.path
    assert offered("ps", "--qu") == {"--quiet": "Print IDs only"}


@pytest.mark.parametrize(
    ("words", "directive"),
    [
        (("runp", ""), FILES),
        (("-r", ""), FILES),
        (("--config=",), FILES),
        (("--host-root", ""), DIRECTORIES),
        (("ps", ""), NO_FILES),
        (("ps", "--output", ""), NO_FILES),
    ],
    ids=str,
)
def test_what_the_shell_adds(words: tuple[str, ...], directive: int) -> None:
    assert candidates("pycrictl", words)[1] == directive


def test_what_is_said_of_them(runtime: FakeServer) -> None:
    assert candidates("pycrictl", ["-r", runtime.endpoint, "cp", "./x"]) == ([], NO_SPACE)
    names = offered("-r", runtime.endpoint, "inspect", "")
    assert names["web"] == "4b0c111111111, running, in default/shop"
    assert names["shop/proxy"] == "4b9f222222222, created, in default"
    ids = offered("-r", runtime.endpoint, "inspect", "4b")
    assert ids["4b9f222222222"] == "default/shop/proxy, created"
    pods = offered("-r", runtime.endpoint, "stopp", "")
    assert pods["dns"] == "6000000000000, not ready, in kube-system"


def test_what_steers_a_terminal_stays_out(fake: FakeServer) -> None:
    names = ("good", "bad\x1b[2J", "bad\nname")
    listed = cri_pb2.ListContainersResponse()
    for number, name in enumerate(names):
        metadata = cri_pb2.ContainerMetadata(name=name)
        listed.containers.add(id=f"{number}" * 64, metadata=metadata)
    fake.offer("ListContainers", listed)
    assert set(completed("-r", fake.endpoint, "inspect", "")) == {"good"}
    reported = completed("-r", fake.endpoint, "inspect", "1")
    assert set(reported) == {"1" * 13}
    assert "\x1b" not in "".join(reported.values())


# Finding the runtime


def test_where_the_endpoint_comes_from(runtime: FakeServer, tmp_path: Path) -> None:
    elsewhere = {ENDPOINT: f"unix://{tmp_path}/none.sock"}
    assert offered("stopp", "", **{ENDPOINT: runtime.endpoint})
    assert not offered("stopp", "", **elsewhere)
    assert offered("--runtime-endpoint", runtime.endpoint, "stopp", "", **elsewhere)
    assert offered(f"-r={runtime.endpoint}", "stopp", "", **elsewhere)
    assert not offered("-r", runtime.endpoint, "rmi", "", IMAGE_SERVICE_ENDPOINT="x")
    assert offered("-i", runtime.endpoint, "rmi", "", **elsewhere)
    path = tmp_path / "my crictl.yaml"
    path.write_text(f"runtime-endpoint: {runtime.endpoint}\n")
    assert offered("--config", str(path), "stopp", "")
    assert offered("stopp", "", CRI_CONFIG_FILE=str(path))
    path.write_text("nosuch: [\n")
    assert not offered("--config", str(path), "stopp", "")


# Silence on errors


@pytest.mark.parametrize(
    "peer", [hostile.unaccepted, hostile.dead, hostile.closing, hostile.resetting]
)
def test_nothing_is_said_of_what_is_wrong(
    peer: Callable[[], AbstractContextManager[str]],
) -> None:
    with peer() as path:
        assert completed("-r", path, "stopp", "", timeout="1s") == {}


def test_nothing_is_said_of_an_error(fake: FakeServer) -> None:
    fake.prepare("ListPodSandbox", Status(grpc.StatusCode.INTERNAL, "broken"))
    assert completed("-r", fake.endpoint, "stopp", "") == {}
    assert completed() == completed("--nosuch", "ps", "") == {}


def test_a_runtime_that_hangs_does_not_hold_up() -> None:
    with hostile.hung() as path:
        began = time.monotonic()
        result = ask("__complete", "-r", path, "stopp", "", timeout="200ms")
        assert (result.returncode, result.stdout, result.stderr) == (0, ":4\n", "")
        # Much longer than the limit of 200 ms, as the machine may be busy.
        assert time.monotonic() - began < 30


# Imports


def test_little_is_imported(runtime: FakeServer) -> None:
    probe = (
        "import sys\n"
        "from pycrictl.cli.completion.answer import candidates\n"
        f"candidates('pycrictl', ['-r', {runtime.endpoint!r}, 'inspect', ''])\n"
        "sys.exit(' '.join({'websockets', 'tqdm', 'rich', 'yaml'} & {*sys.modules}) or 0)\n"
    )
    subprocess.run([sys.executable, "-c", probe], check=True, timeout=60)
