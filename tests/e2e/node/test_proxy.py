"""The proxy in front of a real containerd."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from pycrictl._proto import cri_pb2
from pycrictl.proxy import admin
from tests.cli.run import PROGRAM
from tests.cli.run import start as run_program
from tests.proxy.program import Program
from tests.waiting import wait_until

from .forked import Program as Forked
from .kubelet import RUNTIME
from .lab import MIB, Lab


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def images(lab: Lab, count: int, size_bytes: int = MIB) -> list[str]:
    return [lab.push(lab.image(f"of{size_bytes}n{n}:1", size_bytes)) for n in range(count)]


def status(proxy: Program) -> dict[str, Any]:
    return admin.ask(str(proxy.admin_path), "status", timeout_s=30.0)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def rest(process: subprocess.Popen[str]) -> str:
    """Return the output that was not read before, up to the end of the process."""
    assert process.stdout is not None
    with process:
        return process.stdout.read()


def records(text: str) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in text.splitlines()]
    assert all(type(record["progress"]) is int for record in records)
    assert all(type(record["total"]) is int for record in records)
    return records


def final_layers(records: list[dict[str, Any]]) -> dict[tuple[str, str], tuple[int, int, str]]:
    return {
        (record["image"], record["layer"]): (record["progress"], record["total"], record["phase"])
        for record in records
        if record.get("layer")
    }


def test_another_client_library_works(lab: Lab, start: Callable[..., Program]) -> None:
    """`ctr` uses Go's gRPC: it compresses headers, sends metadata, streams content and leases."""
    proxy = start().socket_path

    def ctr(address: Path, *words: str) -> str:
        command = ["ctr", "--address", str(address), "--namespace", "k8s.io", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    for words in (
        ("version",),
        ("images", "ls", "-q"),
        ("content", "get", lab.pause.config_digest),
        ("snapshots", "ls"),
    ):
        assert ctr(proxy, *words) == ctr(lab.node.socket_path, *words) != ""
    exported = lab.folder / "exported.tar"
    ctr(proxy, "images", "export", str(exported), lab.reference(lab.pause))
    ctr(proxy, "images", "import", "--base-name", "copy", str(exported))
    assert exported.stat().st_size > 100_000
    exported.unlink()


_MEASURED: Final = (
    (r'"\d+"(?=\s*[,}])', '"0"'),
    # The age grows meanwhile, and its column with it.
    (r"\b(CREATED|(Less than a second|\d+ seconds?|a minute) ago) +", "AGE "),
)


def test_commands_answer_what_they_answer_directly(
    lab: Lab, start: Callable[..., Program], tmp_path: Path, stack: ExitStack
) -> None:
    proxy = start()
    endpoints = (proxy.endpoint, lab.node.endpoint)
    programs = [stack.enter_context(Forked("-t", "20s", "-r", endpoint)) for endpoint in endpoints]
    reference = lab.push(lab.layout.image("run:1", [lab.base]))
    pulled = programs[0].run("pull", reference)
    assert pulled.stdout.decode() == f"Image is up to date for {lab.busybox.config_digest}\n"
    pod = proxy.kubelet.run_pod(proxy.kubelet.pod_config("web", log_directory=str(tmp_path)))
    command = ["sh", "-c", "echo up; sleep 1000000"]
    container = proxy.kubelet.create_container(pod, reference, command, log_path="main.log")
    proxy.kubelet.start_container(container)
    wait_until(lambda: "stdout F up" in (tmp_path / "main.log").read_text())

    def both(*words: str, status: int = 0) -> tuple[str, str]:
        """Return what a command writes to its outputs, which must be the same both ways."""
        codes = []
        for program, endpoint in zip(programs, endpoints, strict=True):
            ended = program.run(*words)
            assert ended.status == status, ended
            output = ended.stdout.decode()
            for pattern, mask in _MEASURED:
                output = re.sub(pattern, mask, output)
            codes.append((output, ended.stderr.replace(endpoint, "ENDPOINT")))
        assert codes[0] == codes[1]
        return codes[0]

    for words, expected in (
        (("images",), "run"),
        (("inspecti", reference), lab.busybox.config_digest),
        (("ps", "-a", "-o", "json"), container),
        (("inspectp", pod.id), pod.id),
        (("stats", "-o", "json"), container),
        (("info",), "cniconfig"),
        (("version",), "containerd"),
        (("logs", "--timestamps", container), " up\n"),
    ):
        output, errors = both(*words)
        assert expected in output
        assert errors == ""
    assert "does not implement GetContainerEvents" in both("events", status=1)[1]
    for transport in (("--transport", "spdy"), ("--transport", "websocket"), ("-s",)):
        words = ("exec", *transport, container, "sh", "-c", "echo out; echo err >&2; exit 7")
        assert both(*words, status=7) == ("out\n", "err\n")
    both("exec", "nosuch", "true", status=1)
    assert pod.id in programs[0].run("rmp", "-f", pod.id).stdout.decode()
    assert both("pods", "-q") == ("", "")


@pytest.mark.parametrize("source", ["cri", "containerd"])
def test_a_client_with_a_network_of_its_own(
    lab: Lab, start: Callable[..., Program], source: str
) -> None:
    """Such as an agent in a pod: it has the socket, but another loopback interface."""
    proxy = start()
    reference = lab.push(lab.image(f"own{source}:1", 2 * MIB, MIB))
    pod = proxy.kubelet.run_pod(f"own-{source}")
    lab.registry.limit(MIB // 4)
    pull = proxy.kubelet.start_pull(reference, pod)
    wait_until(lambda: bool(status(proxy)["running"]))
    words = ["image-pull-progress", pod.id[:13], "--progress", "json", "--interval", "0.2"]
    if source == "containerd":  # an older proxy, or one whose folder is not visible
        for path in proxy.socket_path.parent.glob("cri.sock.*/[0-9]*"):
            path.unlink()
    alone = ["unshare", "--net", *PROGRAM, "-r", proxy.endpoint, *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    watcher = subprocess.Popen(alone, text=True, **pipes)  # type: ignore[call-overload]  # pipes
    first = first_line(watcher)
    lab.registry.limit(None)
    text, told = watcher.communicate()
    assert watcher.returncode == 0, told
    assert pull.result().image_ref
    layers = final_layers(records(first + text))
    assert [f"own{source}" in image for image, _ in layers] == [True] * 3
    assert {phase for _, _, phase in layers.values()} <= {"done", "present"}
    assert ("watching the runtime itself" in told) == (source == "containerd")


def test_a_reload_while_pulls_run_and_wait(lab: Lab, start: Callable[..., Program]) -> None:
    proxy = start("--max-parallel-image-pulls", "1")
    references = images(lab, 2, 8 * MIB)
    pod = lab.node.kubelet.run_pod("handed-over")
    lab.registry.limit(MIB)
    pulls = []
    for count, reference in enumerate(references, 1):
        pulls.append(proxy.kubelet.start_pull(reference, pod))
        wait_until(partial(has_pulls, proxy, count))
    wait_until(lambda: fetched(proxy) > 0)
    lab.registry.limit(MIB // 16)  # containerd cancels a pull that receives nothing for a minute
    before, leases = fetched(proxy), lab.node.store.leases()
    proxy.reload()
    wait_until(lambda: len(status(proxy)["waiting"]) == 1)
    watcher = run_program("-r", proxy.endpoint, "image-pull-progress", "--progress", "json", pod.id)
    first = first_line(watcher)
    lab.registry.limit(MIB)
    wait_until(lambda: fetched(proxy) > before)
    assert lab.node.store.leases() == leases  # the same pull
    lab.registry.limit(None)
    assert all(pull.result(timeout=60).image_ref for pull in pulls)
    shown = records(first + rest(watcher))
    assert watcher.returncode == 0
    # A pull that waited and was then quick may have no records of its layers.
    last = {(record["image"], record.get("layer", "")): record["phase"] for record in shown}
    assert {image for image, _ in last} == set(references), shown
    assert {phase for (_, layer), phase in last.items() if layer} <= {"done", "present"}, shown
    assert proxy.wait() == 0
    assert status(proxy)["running"] == []


def fetched(proxy: Program) -> int:
    return status(proxy)["running"][0]["bytes"] or 0


def has_pulls(proxy: Program, count: int) -> bool:
    document = status(proxy)
    return len(document["running"]) + len(document["waiting"]) == count


def test_own_answers_do_not_upset_the_runtime(lab: Lab, start: Callable[..., Program]) -> None:
    """A client pings when it receives data, and containerd disconnects after too many pings."""
    proxy = start()
    reference = lab.reference(lab.busybox)
    pod = proxy.kubelet.run_pod("web")
    proxy.kubelet.pull(reference, pod)
    container = proxy.kubelet.create_container(pod, reference)
    proxy.kubelet.start_container(container)
    run = proxy.channel.unary_unary(
        RUNTIME + "ExecSync",
        request_serializer=cri_pb2.ExecSyncRequest.SerializeToString,
        response_deserializer=cri_pb2.ExecSyncResponse.FromString,
    )

    def start_command(script: str) -> grpc.Future[cri_pb2.ExecSyncResponse]:
        request = cri_pb2.ExecSyncRequest(container_id=container, cmd=["sh", "-c", script])
        return run.future(request, timeout=30)

    waiting = start_command("until [ -e /go ]; do sleep 0.05; done; echo on")
    for _ in range(300):
        assert proxy.kubelet.ask("ImagePullProgress", pod_sandbox_id=pod.id).url
    assert not waiting.done()
    assert start_command("touch /go").result().exit_code == 0
    assert waiting.result().stdout == b"on\n"
